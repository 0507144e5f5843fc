//! A blocklist and an allowlist, and the layer that applies them.
//!
//! [`AccessLayer`] forbids clients on the blocklist with 403, and marks clients on the allowlist, to
//! which limits further inside do not apply. A program can replace both lists while the layer serves.

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
use crate::head::RequestHead;
use crate::key::{ApiKeys, ClientIp, KeyError, KeySource, UnverifiedApiKey};

/// A blocklist and an allowlist. The layer forbids clients on the blocklist with 403, and applies
/// no limit to clients on the allowlist. **Clones share both lists**, so a program can keep a clone
/// and replace the lists while the layer serves.
///
/// # Precedence
/// The blocklist wins over the allowlist and over exempt paths. One match is enough: a request of
/// an allowed customer from a blocked network is forbidden.
///
/// # How clients are found
/// By the whole address; by an API key, which a list verifies by its digest; by the user of a key
/// source. An address of a translator (64:ff9b::/96) is also found as the IPv4 address in it, unless
/// [`ClientIp::nat64`] is off. The keys of limits have no effect here.
///
/// # Attacker
/// A client can leave out its key or token: block networks as well, or require a key. The source of
/// users must not be [forgeable](crate::key), or the allowlist would allow all clients.
///
/// # Cost
/// An address takes about 20 comparisons in 100 000 networks. The source of users is called only
/// while a list has users, because it may verify tokens.
///
/// [`AccessLayer`] has an example.
#[derive(Clone, Default)]
pub struct AccessLists {
    addresses: Option<Arc<ClientIp>>,
    api_keys: Option<Arc<UnverifiedApiKey>>,
    users: Option<Arc<dyn KeySource>>,
    listed: Arc<ArcSwap<Pair>>,
}

/// The list that the client of a request is on: block, allow, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Listed {
    /// The request is on the blocklist: it is forbidden.
    Blocked,
    /// The request is on the allowlist: no limit applies.
    Allowed,
    /// The request is on neither list.
    Neither,
}

/// The error of a blocklist and an allowlist that cannot be replaced.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessListsError {
    /// The list has entries that the layer does not look for.
    #[error("the list has {what}, but the layer does not look for them: add `.{cure}(..)`")]
    NobodyLooks {
        /// The kind of the entries.
        what: &'static str,
        /// The method to call.
        cure: &'static str,
    },

    /// The source of users can never find this user: it has another issuer, for example.
    #[error("user number {position} of the list cannot be found by the source of users")]
    NoSuchUser {
        /// The number of the user, from 1. The name is withheld: it may be personal.
        position: usize,
    },
}

tollgate_core::debug_as_display!(AccessListsError);

impl AccessLists {
    /// Creates an empty blocklist and an empty allowlist.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the source of the client address, which is compared with the networks on the lists.
    #[must_use]
    pub fn addresses_by(mut self, source: ClientIp) -> Self {
        self.addresses = Some(Arc::new(source));
        self
    }

    /// Sets the place of API keys in a request, which are compared with the keys on the lists.
    #[must_use]
    pub fn api_keys_in(mut self, place: UnverifiedApiKey) -> Self {
        self.api_keys = Some(Arc::new(place));
        self
    }

    /// Sets the source of users, which are compared with the users on the lists.
    #[must_use]
    pub fn users_by(mut self, source: impl KeySource) -> Self {
        self.users = Some(Arc::new(source));
        self
    }

    /// Replaces the blocklist and the allowlist at once, for all clones.
    ///
    /// # Errors
    /// A list has an entry that no request can match. Then the lists stay as they were.
    pub fn replace(
        &self,
        blocklist: &SubjectList,
        allowlist: &SubjectList,
    ) -> Result<(), AccessListsError> {
        let (blocklist, allowlist) = (self.prepare(blocklist)?, self.prepare(allowlist)?);
        let pair = Pair { blocklist, allowlist };
        self.listed.store(Arc::new(pair));
        // A counter that begins at zero has a rate at its first event.
        for listed in [Listed::Blocked, Listed::Allowed] {
            listed.count(0);
        }
        Ok(())
    }

    /// Returns the list that the client of a request is on.
    ///
    /// # Errors
    /// As [`KeySource::subject`].
    pub fn find(&self, head: &RequestHead<'_>) -> Result<Listed, KeyError> {
        let pair = self.listed.load();
        let Pair { blocklist, allowlist } = &**pair;
        if blocklist.is_empty() && allowlist.is_empty() {
            return Ok(Listed::Neither);
        }
        let either = |has: fn(&Prepared) -> bool| has(blocklist) || has(allowlist);
        let addresses = match &self.addresses {
            Some(source) if either(|list| !list.networks.is_empty()) => {
                source.address(head)?.map(|address| source.listed_as(address))
            }
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
            addresses.iter().flatten().any(|address| list.networks.contain(*address))
                || api_key.is_some_and(|digest| list.api_keys.contains(&digest))
                || user.as_ref().is_some_and(|user| list.users.contains(user))
        };
        let listed = match (names(blocklist), names(allowlist)) {
            (true, _) => Listed::Blocked,
            (false, true) => Listed::Allowed,
            (false, false) => Listed::Neither,
        };
        listed.count(1);
        Ok(listed)
    }

    fn prepare(&self, list: &SubjectList) -> Result<Prepared, AccessListsError> {
        let missing = |what, cure| Err(AccessListsError::NobodyLooks { what, cure });
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
                source.named(name).ok_or(AccessListsError::NoSuchUser { position: index + 1 })?;
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
            Self::Blocked => "deny",
            Self::Allowed => "allow",
            Self::Neither => return,
        };
        metrics::counter!(crate::observe::name::LISTED, "list" => list).increment(requests);
    }

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "nothing is counted")]
    const fn count(self, _: u64) {}
}

#[derive(Default)]
struct Pair {
    blocklist: Prepared,
    allowlist: Prepared,
}

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

/// Without addresses and names, which must not be in logs.
impl fmt::Debug for AccessLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = self.listed.load();
        f.debug_struct("AccessLists")
            .field("blocklist_is_empty", &pair.blocklist.is_empty())
            .field("allowlist_is_empty", &pair.allowlist.is_empty())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
