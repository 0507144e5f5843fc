//! Which keys denied a request with charges in several slots.

use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::calls::ticket::NamedCharge;

/// Keys that recently denied a request with charges in several slots. The store decides such a key
/// first: if it denies again, the request has cost one call and wrote no key.
///
/// This is only an ordering hint. A wrong hint costs a refund, but no units.
#[derive(Debug, Default)]
pub(crate) struct RecentDenials {
    /// When each hint expires, by the key's hash.
    until: Mutex<HashMap<u64, Instant, RandomState>>,
    hasher: RandomState,
}

const LASTS: Duration = Duration::from_secs(1);
const MOST: usize = 4096;

impl RecentDenials {
    /// Whether a charge's key denied a request within the last second.
    pub(crate) fn has(&self, charge: &NamedCharge) -> bool {
        let hash = self.hasher.hash_one(&charge.state);
        let until = self.until.lock();
        !until.is_empty() && until.get(&hash).is_some_and(|until| *until > Instant::now())
    }

    pub(crate) fn add(&self, charge: &NamedCharge) {
        let (hash, now) = (self.hasher.hash_one(&charge.state), Instant::now());
        let mut until = self.until.lock();
        if until.len() >= MOST {
            until.retain(|_, until| *until > now);
        }
        if until.len() < MOST {
            until.insert(hash, now + LASTS);
        }
    }
}
