//! A blocklist and an allowlist, and the layer that applies them.
//!
//! | file | holds |
//! |---|---|
//! | `layer.rs` | the Tower layer |
//! | `subjects.rs` | a list of subjects, and how a subject is written |
//! | `networks.rs` | a set of networks, searched by address |

mod layer;
mod networks;
mod subjects;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_core::Key;

pub use self::layer::{Access, AccessFuture, AccessLayer, is_allowed};
use self::networks::Networks;
pub use self::subjects::{SubjectList, SubjectListError};
use crate::Head;
use crate::key::{ApiKeys, ClientIp, KeyError, KeySource, UnverifiedApiKey};

/// Two lists of subjects: those that are refused with 403, and those that no limit holds
/// for. **Clones share them**, so that one that is kept aside can replace them while the
/// others serve.
///
/// # Which one counts
/// Whoever is denied is denied, whatever else is said of him: by exempt paths, or by the
/// other list. A request is looked at as a whole: that of a customer who is allowed, from a
/// network that is denied, is refused.
///
/// # How subjects are found
/// By the address of the client, the whole of it; by an API key, which a list holds by its
/// digest and so verifies; by the user that a source believes. Each is looked for where the
/// builder was told to look, whatever the keys of limits are.
///
/// # Attacker
/// Who can leave his key or token away is not found by it: deny networks as well, or require
/// a key. A list of what a client can choose freely, as an unverified header, would allow
/// everybody: the source of users has to be one that [cannot be forged](crate::key).
///
/// # Cost
/// An address is found in 100 000 networks in some 20 comparisons. Users are asked for only
/// while somebody is listed, since verifying a token is dear.
///
/// [`AccessLayer`] has an example.
#[derive(Clone, Default)]
pub struct Lists {
    addresses: Option<Arc<ClientIp>>,
    api_keys: Option<Arc<UnverifiedApiKey>>,
    users: Option<Arc<dyn KeySource>>,
    listed: Arc<ArcSwap<Pair>>,
}

/// What the lists say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Listed {
    /// It is refused.
    Denied,
    /// No limit holds for it.
    Allowed,
    /// Nothing.
    Neither,
}

/// A list that could not take the place of another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListsError {
    /// A list names subjects that nobody looks for, and would have no effect.
    #[error("the list names {what}, and nothing says where a request has one: add `.{cure}(..)`")]
    NobodyLooks {
        /// What they are.
        what: &'static str,
        /// The method that says it.
        cure: &'static str,
    },

    /// The source of users can never find this one: another issuer, say.
    #[error("user number {position} of the list is none that the source of users could find")]
    NoSuchUser {
        /// Which of the users, from 1. The name is withheld: it may be personal.
        position: usize,
    },
}

impl Lists {
    /// Nobody is listed, and nobody looked for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Finds networks by the address that `source` tells.
    #[must_use]
    pub fn addresses_by(mut self, source: ClientIp) -> Self {
        self.addresses = Some(Arc::new(source));
        self
    }

    /// Finds API keys in this place.
    #[must_use]
    pub fn api_keys_in(mut self, place: UnverifiedApiKey) -> Self {
        self.api_keys = Some(Arc::new(place));
        self
    }

    /// Finds users by `source`.
    #[must_use]
    pub fn users_by(mut self, source: impl KeySource) -> Self {
        self.users = Some(Arc::new(source));
        self
    }

    /// Puts these lists in the place of those before, both at once and for all clones.
    ///
    /// # Errors
    /// A list names somebody who could never be found. Then those before stay.
    pub fn replace(&self, deny: &SubjectList, allow: &SubjectList) -> Result<(), ListsError> {
        let pair = Pair { deny: self.prepare(deny)?, allow: self.prepare(allow)? };
        self.listed.store(Arc::new(pair));
        // What begins at zero is seen to change when it happens for the first time.
        for listed in [Listed::Denied, Listed::Allowed] {
            listed.count(0);
        }
        Ok(())
    }

    /// What the lists say of a request.
    ///
    /// # Errors
    /// As [`KeySource::subject`].
    pub fn find(&self, head: &Head<'_>) -> Result<Listed, KeyError> {
        let pair = self.listed.load();
        let Pair { deny, allow } = &**pair;
        if deny.is_empty() && allow.is_empty() {
            return Ok(Listed::Neither);
        }
        let either = |has: fn(&Prepared) -> bool| has(deny) || has(allow);
        let address = match &self.addresses {
            Some(source) if either(|list| !list.networks.is_empty()) => source.address(head)?,
            _ => None,
        };
        let api_key = match &self.api_keys {
            Some(place) if either(|list| !list.api_keys.is_empty()) => {
                place.find(head).map(ApiKeys::digest)
            }
            _ => None,
        };
        let user = match &self.users {
            Some(source) if either(|list| !list.users.is_empty()) => {
                source.subject(head)?.map(|subject| subject.key)
            }
            _ => None,
        };
        let names = |list: &Prepared| {
            address.is_some_and(|address| list.networks.contain(address))
                || api_key.is_some_and(|digest| list.api_keys.contains(&digest))
                || user.as_ref().is_some_and(|user| list.users.contains(user))
        };
        let listed = match (names(deny), names(allow)) {
            (true, _) => Listed::Denied,
            (false, true) => Listed::Allowed,
            (false, false) => Listed::Neither,
        };
        listed.count(1);
        Ok(listed)
    }

    fn prepare(&self, list: &SubjectList) -> Result<Prepared, ListsError> {
        let missing = |what, cure| Err(ListsError::NobodyLooks { what, cure });
        if self.addresses.is_none() && !list.networks.is_empty() {
            return missing("networks", "addresses_by");
        }
        if self.api_keys.is_none() && !list.api_keys.is_empty() {
            return missing("API keys", "api_keys_in");
        }
        let mut users = HashSet::new();
        for (index, name) in list.users.iter().enumerate() {
            let Some(source) = &self.users else {
                return missing("users", "users_by");
            };
            let subject =
                source.named(name).ok_or(ListsError::NoSuchUser { position: index + 1 })?;
            users.insert(subject.key);
        }
        let networks = Networks::new(&list.networks);
        Ok(Prepared { networks, api_keys: list.api_keys.clone(), users })
    }
}

impl Listed {
    #[cfg(feature = "metrics")]
    fn count(self, requests: u64) {
        let list = match self {
            Self::Denied => "deny",
            Self::Allowed => "allow",
            Self::Neither => return,
        };
        metrics::counter!(crate::metrics::name::LISTED, "list" => list).increment(requests);
    }

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "nobody looks")]
    const fn count(self, _: u64) {}
}

#[derive(Default)]
struct Pair {
    deny: Prepared,
    allow: Prepared,
}

/// A list, made to be looked things up in.
#[derive(Default)]
struct Prepared {
    networks: Networks,
    api_keys: HashSet<[u8; 32]>,
    users: HashSet<Key>,
}

impl Prepared {
    fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.api_keys.is_empty() && self.users.is_empty()
    }
}

/// Neither addresses nor names: logs travel.
impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = self.listed.load();
        f.debug_struct("Lists")
            .field("deny_nobody", &pair.deny.is_empty())
            .field("allow_nobody", &pair.allow.is_empty())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
