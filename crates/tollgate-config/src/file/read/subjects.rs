use crate::code;
use crate::file::tables::{RateLimiter, Subjects};
use crate::files;
use crate::plan::{IdentitySource, SubjectsPlan};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Item, Key, Setting, Text, values};

pub(super) fn lists(
    limiter: &RateLimiter,
    identity: Checked<&[IdentitySource]>,
) -> Checked<(SubjectsPlan, SubjectsPlan)> {
    let has_users = |chain: &[IdentitySource]| {
        chain.iter().any(|source| matches!(source, IdentitySource::User(_)))
    };
    let knows_users = identity.map_or(true, has_users);
    let deny = list(&limiter.deny, knows_users);
    let allow = list(&limiter.allow, knows_users);
    if let (Some(deny), Some(allow)) = (limiter.deny.there(), limiter.allow.there()) {
        warn_of_both(&deny.addresses, &allow.addresses);
        warn_of_both(&deny.users, &allow.users);
    }
    Ok((deny?, allow?))
}

fn list(key: &Key<Option<Box<Subjects>>>, knows_users: bool) -> Checked<SubjectsPlan> {
    let Some(list) = key.get()? else { return Ok(SubjectsPlan::default()) };
    let kinds: [&Setting; 4] = [&list.addresses, &list.api_keys, &list.users, &list.file];
    if !kinds.iter().any(|kind| kind.is_set()) && !list.info.has_unknown {
        return Err(list.info.location.error(
            code::EMPTY_LIST,
            "this list is empty",
            "add `addresses`, `apiKeys`, `users` or a `file`, or remove it",
        ));
    }
    if list.users.is_set() && !knows_users {
        return Err(list.users.name().error(
            code::IDENTITY_SOURCE,
            "a user is a token's subject, but `identity` does not read tokens",
            "add `jwt`, and `user` to `identity`",
        ));
    }
    let file = list.file.value()?;
    if let Some(file) = file.clone() {
        list.file.location().check_with(move || files::subjects(&file).err());
    }
    let keys = list.api_keys.items()?.iter().map(|item| item.get()?.sha256.value());
    Ok(SubjectsPlan {
        addresses: values(list.addresses.items()?)?,
        api_keys: keys.collect::<Checked<_>>()?,
        users: values(list.users.items()?)?,
        file,
    })
}

fn warn_of_both<T: Text<Value = String>>(
    deny: &Key<Option<Vec<Item<T>>>>,
    allow: &Key<Option<Vec<Item<T>>>>,
) {
    let denied: Vec<_> = deny.items().into_iter().flatten().flat_map(Item::get).collect();
    for item in allow.items().into_iter().flatten() {
        if item.get().is_ok_and(|text| denied.contains(&text)) {
            item.location.warn(
                code::LISTS,
                "this is also in `deny`, which has precedence: its requests are rejected",
                "remove it from one of the two",
            );
        }
    }
}
