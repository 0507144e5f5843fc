//! A blocklist and an allowlist.
//!
//! A layer with [`access_lists`](crate::layer::RateLimitLayerBuilder::access_lists) forbids clients
//! on the blocklist with 403, and applies no limits to clients on the allowlist. A program can
//! replace both lists while the layer serves.

mod networks;
mod subjects;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_core::Key;

use self::networks::Networks;
pub use self::subjects::{SubjectList, SubjectListError};
use crate::head::RequestHead;
use crate::key::{ApiKeys, ClientIp, KeyError, KeySource, UnverifiedApiKey};

/// A blocklist and an allowlist. The layer forbids clients on the blocklist with 403, and applies
/// no limits to clients on the allowlist. **Clones share both lists**, so a program can retain a
/// clone and replace the lists while the layer serves.
///
/// # Precedence
/// The blocklist overrides the allowlist and exempt paths. A single match suffices: a request from
/// a blocked network is forbidden even if its customer is allowed.
///
/// # How clients are found
/// A list can match a request by the client's full address, by an API key (compared by digest), or
/// by the user that a key source finds. A NAT64 address (64:ff9b::/96) also matches as its embedded
/// IPv4 address, unless [`ClientIp::nat64`] is off. The keys of limits have no effect here.
///
/// # Attacker
/// A client can omit its key or token, so block networks as well, or require a key. A request with
/// several API keys is rejected while a list contains API keys. The source of users must not be [forgeable](crate::key), or any client could claim to be on the allowlist.
///
/// # Cost
/// An address takes about 20 comparisons in 100 000 networks. The source of users is only called
/// while a list contains users, because it may verify tokens.
///
/// ```
/// use tollgate::access::{AccessLists, SubjectList};
/// use tollgate::key::ClientIp;
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let lists = AccessLists::new().addresses_by(ClientIp::peer());
/// let blocklist: SubjectList = "203.0.113.0/24\n2001:db8:bad::/48".parse()?;
/// lists.replace(&blocklist, &SubjectList::new().network("198.51.100.7")?)?;
/// let policy = Policy::sliding_window_log("client", Quota::per_minute(100))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .access_lists(&lists)
///     .limit(Limit::per_ip(policy))
///     .build()?;
/// // Later: new lists apply to all following requests.
/// lists.replace(&SubjectList::new(), &SubjectList::new())?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct AccessLists {
    addresses: Option<Arc<ClientIp>>,
    api_keys: Option<Arc<UnverifiedApiKey>>,
    users: Option<Arc<dyn KeySource>>,
    listed: Arc<ArcSwap<Pair>>,
}

/// Which list a request's client is on, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Listed {
    /// The request is on the blocklist and is forbidden.
    Blocked,
    /// The request is on the allowlist, and no limits apply.
    Allowed,
    /// The request is on neither list.
    Neither,
}

/// The error for lists that cannot replace the current lists.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessListsError {
    /// The list has entries that the layer cannot match against requests.
    #[doc(alias = "TG0214")]
    #[error("the list has {what}, but the layer does not check them: add `.{cure}(..)` [TG0214]")]
    UnusedEntries {
        /// The kind of the entries.
        what: &'static str,
        /// The method to call.
        cure: &'static str,
    },

    /// The source of users can never find this user, for example because its issuer differs.
    #[doc(alias = "TG0214")]
    #[error("user number {position} of the list cannot be found by the source of users [TG0214]")]
    NoSuchUser {
        /// The user's number in the list, starting at 1. The name is withheld because it may be
        /// personal.
        position: usize,
    },
}

tollgate_core::debug_as_display!(AccessListsError);

impl AccessLists {
    /// Creates an empty blocklist and an empty allowlist.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the source of client addresses, which are compared with the networks on the lists.
    pub fn addresses_by(mut self, source: ClientIp) -> Self {
        self.addresses = Some(Arc::new(source));
        self
    }

    /// Sets where requests carry API keys, which are compared with the keys on the lists.
    pub fn api_keys_in(mut self, header: UnverifiedApiKey) -> Self {
        self.api_keys = Some(Arc::new(header));
        self
    }

    /// Sets the source of users, who are compared with the users on the lists.
    pub fn users_by(mut self, source: impl KeySource) -> Self {
        self.users = Some(Arc::new(source));
        self
    }

    /// Replaces both lists atomically, for all clones.
    ///
    /// # Errors
    /// A list has an entry that no request can match. The previous lists then remain in effect.
    pub fn replace(
        &self,
        blocklist: &SubjectList,
        allowlist: &SubjectList,
    ) -> Result<(), AccessListsError> {
        let (blocklist, allowlist) = (self.prepare(blocklist)?, self.prepare(allowlist)?);
        let pair = Pair { blocklist, allowlist };
        self.listed.store(Arc::new(pair));
        // Counters must start at zero so that their first event has a rate.
        for listed in [Listed::Blocked, Listed::Allowed] {
            listed.count(0);
        }
        Ok(())
    }

    /// Returns the list that the request's client is on.
    ///
    /// # Errors
    /// The same as for [`KeySource::subject`].
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
            Some(header) if either(|list| !list.api_keys.is_empty()) => {
                header.find(head)?.map(ApiKeys::digest)
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
        let missing = |what, cure| Err(AccessListsError::UnusedEntries { what, cure });
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

/// Omits addresses and names, which must not appear in logs.
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
