//! Instants and time spans, in whole microseconds.

use core::fmt;
use core::time::Duration;

/// An instant, as microseconds since the Unix epoch.
///
/// The core never reads a clock. A store passes its own clock's time, and a test advances time by
/// hand.
///
/// Instants up to [`Timestamp::MAX`] (June 2255) are exact in every store.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The last instant that every store can express: 2^53 − 1 µs after the epoch, the largest odd
    /// integer that a double, and therefore Lua, represents exactly.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates the instant `micros` microseconds after the Unix epoch, capped at
    /// [`Timestamp::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the span from `earlier` to `self`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Micros> for Timestamp {
    type Output = Self;

    /// Capped at [`Timestamp::MAX`], like every other way to create an instant.
    fn add(self, span: Micros) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

impl core::ops::Sub<Micros> for Timestamp {
    type Output = Self;

    /// Saturates at the epoch instead of wrapping.
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

/// A span of time in whole microseconds.
///
/// [`Duration`] stores seconds and nanoseconds separately, so each conversion costs a division,
/// which is significant on a path that takes only a few nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// A span of zero.
    pub const ZERO: Self = Self(0);

    /// The longest span.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a span of `micros` microseconds.
    pub const fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the number of microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the seconds, rounded up as for a `Retry-After` header, so waiting that long is
    /// always enough.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns the seconds if the span is a whole number of seconds.
    pub const fn as_whole_secs(self) -> Option<u64> {
        if self.0.is_multiple_of(1_000_000) { Some(self.0 / 1_000_000) } else { None }
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

/// Rounds up to a microsecond; saturates.
impl From<Duration> for Micros {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from_micros(self.0), f)
    }
}

/// Human-readable: "60 seconds", "1 second", "250 milliseconds".
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0 {
            us if us % 1_000_000 == 0 => (us / 1_000_000, "second"),
            us if us % 1_000 == 0 => (us / 1_000, "millisecond"),
            us => (us, "microsecond"),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_display_in_largest_whole_unit() {
        for (micros, words) in [
            (60_000_000, "60 seconds"),
            (1_000_000, "1 second"),
            (250_000, "250 milliseconds"),
            (50, "50 microseconds"),
            (0, "0 seconds"),
        ] {
            assert_eq!(Micros::new(micros).to_string(), words);
        }
    }

    #[test]
    fn seconds_round_up() {
        assert_eq!(Micros::new(1).as_secs_ceil(), 1);
        assert_eq!(Micros::new(1_000_000).as_secs_ceil(), 1);
        assert_eq!(Micros::new(1_000_001).as_secs_ceil(), 2);
    }

    #[test]
    fn instants_saturate_at_both_ends() {
        let early = Timestamp::from_micros(5);
        assert_eq!(early - Micros::new(9), Timestamp::EPOCH);
        assert_eq!(early.since(Timestamp::from_micros(8)), Micros::ZERO);
        assert_eq!(early + Micros::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::MAX);
    }
}
