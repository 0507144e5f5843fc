//! Which keys denied requests lately.

use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ticket::Line;

/// Keys that denied a request with charges in several slots a moment ago. Such a key is asked
/// first: if it denies again, the request has cost one call and no key was written.
///
/// This is a hint about an order. A wrong one costs a refund, and no unit.
#[derive(Debug, Default)]
pub(crate) struct Deniers {
    /// By the hash of the key: until when.
    until: Mutex<HashMap<u64, Instant, RandomState>>,
    hasher: RandomState,
}

const LASTS: Duration = Duration::from_secs(1);
const MOST: usize = 4096;

impl Deniers {
    pub(crate) fn has(&self, line: &Line) -> bool {
        let hash = self.hasher.hash_one(&line.state);
        let until = self.until.lock();
        !until.is_empty() && until.get(&hash).is_some_and(|until| *until > Instant::now())
    }

    pub(crate) fn add(&self, line: &Line) {
        let (hash, now) = (self.hasher.hash_one(&line.state), Instant::now());
        let mut until = self.until.lock();
        if until.len() >= MOST {
            until.retain(|_, until| *until > now);
        }
        if until.len() < MOST {
            until.insert(hash, now + LASTS);
        }
    }
}
