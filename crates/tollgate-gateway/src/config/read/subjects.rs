//! Who is refused whatever he asks, and who is never limited.

use std::path::PathBuf;

use super::super::problem::Problems;
use super::super::view::{Item, View};
use crate::plan::{IdentitySource, SubjectsPlan};

/// The lists of a file: `deny`, and `allow`.
pub(super) fn lists(
    limiter: &View<'_>,
    identity: Option<&[IdentitySource]>,
    problems: &mut Problems,
) -> Option<(SubjectsPlan, SubjectsPlan)> {
    let knows_users =
        identity.is_none_or(|chain| chain.iter().any(|it| matches!(it, IdentitySource::User(_))));
    let deny = list(limiter, "deny", knows_users, problems);
    let allow = list(limiter, "allow", knows_users, problems);
    warn_of_both(limiter, problems);
    Some((deny?, allow?))
}

fn list(
    limiter: &View<'_>,
    key: &str,
    knows_users: bool,
    problems: &mut Problems,
) -> Option<SubjectsPlan> {
    if !limiter.has(key) {
        return Some(SubjectsPlan::default());
    }
    let view = limiter.view(key)?;
    if !KINDS.iter().any(|kind| view.has(kind)) {
        if !view.has_unknown() {
            problems.error(
                view.place(),
                "nobody is on this list",
                "add `addresses`, `apiKeys`, `users` or a `file`, or remove it",
            );
        }
        return None;
    }
    if view.has("users") && !knows_users {
        problems.error(
            view.place_of_key("users"),
            "a user is whoever a token names, and `identity` looks for none",
            "add `jwt`, and `user` to `identity`",
        );
        return None;
    }
    let texts = |items: Vec<Item<'_>>| -> Option<Vec<_>> {
        items.iter().map(|item| item.text().map(str::to_owned)).collect()
    };
    let keys = view.items("apiKeys").into_iter();
    let keys = keys.map(|item| item.view()?.text("sha256").map(str::to_ascii_lowercase));
    Some(SubjectsPlan {
        addresses: texts(view.items("addresses"))?,
        api_keys: keys.collect::<Option<_>>()?,
        users: texts(view.items("users"))?,
        file: match view.has("file") {
            true => Some(PathBuf::from(view.text("file")?)),
            false => None,
        },
    })
}

const KINDS: [&str; 4] = ["addresses", "apiKeys", "users", "file"];

/// Who stands on both lists is denied.
fn warn_of_both(limiter: &View<'_>, problems: &mut Problems) {
    let (Some(deny), Some(allow)) = (limiter.view("deny"), limiter.view("allow")) else { return };
    for key in ["addresses", "users"] {
        let denied: Vec<_> = deny.items(key).iter().filter_map(Item::text).collect();
        for item in allow.items(key) {
            if item.text().is_some_and(|text| denied.contains(&text)) {
                problems.warn(
                    item.place(),
                    "this stands in `deny` as well, which comes first: it is refused",
                    "remove it from one of the two",
                );
            }
        }
    }
}
