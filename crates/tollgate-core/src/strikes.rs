//! A penalty's strikes and blocks.

use core::time::Duration;

use crate::algorithm::penalty::Terms;
use crate::{Micros, Quota, Timestamp};

/// How many strikes within which time lead to a block, and how long blocks last.
///
/// By default, the first block is as long as the strike window, and each following block is twice
/// as long as the previous one, up to a day. After a day without a block, the next block is a first
/// block again.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Policy, Strikes};
///
/// let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
/// // Ten denials within a minute block for 5 minutes, then for 15, and so on up to a day.
/// let strikes = Strikes::of_denials(10, minute).block(5 * minute).growing(3, day);
/// let penalty = Policy::penalty("banned", strikes.forgotten_after(7 * day))?;
/// # let _ = penalty;
/// # Ok::<(), tollgate_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Strikes {
    pub(crate) quota: Quota,
    pub(crate) terms: Terms,
}

impl Strikes {
    /// Counts denials as strikes: each request for which another policy denies the same key.
    /// Requests denied by the block itself do not count.
    pub fn of_denials(strikes: u64, within: Duration) -> Self {
        let day = Micros::new(86_400_000_000);
        let terms = Terms {
            block: within.into(),
            factor: 2,
            max_block: day.max(within.into()),
            forget_after: day,
            counts_denials: true,
        };
        Self { quota: Quota::new(strikes, within), terms }
    }

    /// Counts failures as strikes: charges that are settled as failures, which the layer does for
    /// matching responses. Denials do not count.
    pub fn of_failures(strikes: u64, within: Duration) -> Self {
        let of_denials = Self::of_denials(strikes, within);
        Self { terms: Terms { counts_denials: false, ..of_denials.terms }, ..of_denials }
    }

    /// Sets the length of the first block.
    pub fn block(mut self, time: Duration) -> Self {
        self.terms.block = time.into();
        self.terms.max_block = self.terms.max_block.max(time.into());
        self
    }

    /// Makes each block `factor` times as long as the previous block, up to `longest`.
    pub fn growing(mut self, factor: u64, longest: Duration) -> Self {
        self.terms.factor = factor;
        self.terms.max_block = longest.into();
        self
    }

    /// Sets how long after a block the next block is a first block again.
    pub fn forgotten_after(mut self, time: Duration) -> Self {
        self.terms.forget_after = time.into();
        self
    }
}

/// A block that no strikes cause, see [`Store::block`](crate::Store::block).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct PenaltyBlock {
    /// How long the key is blocked from now on, at most the penalty's longest block. `None` means as
    /// long as if strikes caused it, so each block is longer than the one before it.
    pub length: Option<Micros>,
    /// When the caller last knew the key, by the store's clock. If the key was blocked or got a
    /// strike since, the block is old news, and changes nothing.
    pub known_at: Timestamp,
}

impl PenaltyBlock {
    /// Blocks a key, whatever happened to it.
    pub fn of(length: Duration) -> Self {
        Self { length: Some(length.into()), known_at: Timestamp::MAX }
    }

    /// Blocks a key as strikes would: longer each time.
    pub const fn next() -> Self {
        Self { length: None, known_at: Timestamp::MAX }
    }

    /// Ignores the block if the key was blocked since this instant. For answers about a request that
    /// left at this instant, which may arrive late or out of order.
    pub const fn as_known_at(mut self, known_at: Timestamp) -> Self {
        self.known_at = known_at;
        self
    }
}
