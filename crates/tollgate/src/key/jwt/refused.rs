//! Remembers recently rejected tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::JwtKeys;

/// The SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// Remembers tokens that failed verification. If a client repeats such a token, the verifier only
/// has to compute a hash.
///
/// A digest determines its slot, and a new token replaces an earlier token in the same slot, so
/// memory is bounded. A key change clears all slots, because the new keys may accept a token.
#[derive(Debug, Default)]
pub(super) struct RefusedTokens(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    /// The keys used to verify the tokens.
    keys: Option<Arc<JwtKeys>>,
    /// Empty until the first token is rejected.
    slots: Vec<Option<(Digest, Instant)>>,
}

impl RefusedTokens {
    pub(super) fn contain(&self, keys: &Arc<JwtKeys>, digest: &Digest, now: Instant) -> bool {
        let slots = self.0.lock();
        if !slots.keys.as_ref().is_some_and(|known| Arc::ptr_eq(known, keys)) {
            return false;
        }
        matches!(slots.slots.get(index(digest)), Some(Some((known, at)))
            if known == digest && now.saturating_duration_since(*at) < REMEMBERED)
    }

    pub(super) fn insert(&self, keys: &Arc<JwtKeys>, digest: Digest, now: Instant) {
        let mut slots = self.0.lock();
        if !slots.keys.as_ref().is_some_and(|known| Arc::ptr_eq(known, keys)) {
            *slots = Slots { keys: Some(Arc::clone(keys)), slots: vec![None; SLOTS] };
        }
        slots.slots[index(&digest)] = Some((digest, now));
    }
}

const fn index(digest: &Digest) -> usize {
    u16::from_le_bytes([digest[0], digest[1]]) as usize % SLOTS
}

/// About 50 KiB.
const SLOTS: usize = 1024;

/// Short, because a clock correction can make an expired token valid again.
const REMEMBERED: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_tokens_are_forgotten() {
        let (keys, others) = (Arc::new(JwtKeys::none()), Arc::new(JwtKeys::none()));
        let (refused, now) = (RefusedTokens::default(), Instant::now());
        let digest = [7; 32];
        assert!(!refused.contain(&keys, &digest, now));
        refused.insert(&keys, digest, now);
        assert!(refused.contain(&keys, &digest, now));
        assert!(!refused.contain(&keys, &[8; 32], now));
        assert!(!refused.contain(&others, &digest, now));
        let almost = now + REMEMBERED - Duration::from_nanos(1);
        assert!(refused.contain(&keys, &digest, almost));
        assert!(!refused.contain(&keys, &digest, now + REMEMBERED));
        refused.insert(&others, [9; 32], now);
        assert!(!refused.contain(&keys, &digest, now));
    }

    #[test]
    fn refused_tokens_use_bounded_memory() {
        let (keys, now) = (Arc::new(JwtKeys::none()), Instant::now());
        let refused = RefusedTokens::default();
        let digest = |number: u32| {
            let mut digest = [0; 32];
            digest[..4].copy_from_slice(&number.to_le_bytes());
            digest
        };
        let tokens = 100_000;
        (0..tokens).for_each(|number| refused.insert(&keys, digest(number), now));
        let known = (0..tokens).filter(|number| refused.contain(&keys, &digest(*number), now));
        assert_eq!(known.count(), SLOTS);
    }
}
