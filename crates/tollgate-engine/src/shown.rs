//! Selects the limit that a response shows.

use tollgate_core::{Decision, Micros, Outcome};

/// A limit's decision as a response shows it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// Whether the limit counts requests in flight. Nobody knows when they end, so a denial shows an
    /// estimated wait.
    pub is_concurrency: bool,
}

impl Shown<'_> {
    /// The longest wait that a concurrency limit shows: one second.
    pub const SOON: Micros = Micros::new(1_000_000);

    /// Returns how long a denied client should wait. Returns `None` if the limit allows the request,
    /// or can never allow it.
    #[inline]
    pub fn wait(self) -> Option<Micros> {
        let most = if self.is_concurrency { Self::SOON } else { Micros::MAX };
        self.decision.retry_after().map(|wait| wait.min(most))
    }

    /// Returns the wait for comparisons. No wait is long enough for a request that costs more than
    /// the limit.
    pub fn rank(self) -> Option<Micros> {
        let exceeds = self.decision.outcome == Outcome::ExceedsCapacity;
        if exceeds { Some(Micros::MAX) } else { self.wait() }
    }

    /// Whether this limit restricts the client more than `other`: its wait is longer, or the waits
    /// are equal and its remaining fraction is smaller.
    pub fn is_tighter(self, other: Self) -> bool {
        let product =
            |a: Self, b: Self| u128::from(a.decision.remaining) * u128::from(b.decision.limit);
        let fractions = || product(other, self).cmp(&product(self, other));
        self.rank().cmp(&other.rank()).then_with(fractions).is_gt()
    }
}
