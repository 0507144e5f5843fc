//! When to stop calling a server that does not answer.

use tollgate_core::{Micros, Timestamp};

/// A circuit breaker: decides from past calls to a server whether to send further calls.
///
/// A store has one breaker per server, behind a lock. It counts *calls* instead of requests: a lost
/// call that 64 requests shared counts as one loss.
///
/// | state | calls | next state |
/// |---|---|---|
/// | [`Closed`](BreakerState::Closed) | are sent | open, when at least five calls, and at least half of all calls, within the window were lost |
/// | [`Down`](BreakerState::Down) | fail immediately | after the answer to a probe |
/// | [`Slow`](BreakerState::Slow) | fail immediately, as shed | after the answer to a probe |
///
/// The window is one second, or four timeouts if that is longer. Five consecutive lost calls also
/// count if they are further apart, so the breaker opens for a server with little traffic too.
///
/// A *probe* is a cheap command that belongs to no request, so no request waits for it. The store
/// sends the first probe as soon as the breaker opens, and further probes after
/// [`next_probe`](Self::next_probe). It waits longer for a probe's answer than for a call's: a
/// server that answers after the timeout is slow, and a server that does not answer is down.
///
/// Time is an argument, by any monotonic clock.
#[derive(Clone, Debug)]
pub struct Breaker {
    timeout: Micros,
    /// The window, in slices.
    slices: [Slice; SLICES],
    /// Calls lost since the last answer.
    lost_in_a_row: u32,
    state: BreakerState,
    probe_at: Timestamp,
}

/// A circuit breaker's state, from best to worst.
///
/// The set is closed because a store with a breaker has to handle each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerState {
    /// Calls are sent to the server.
    Closed,
    /// Calls fail immediately because the server only answers after the timeout.
    Slow,
    /// Calls fail immediately because the server does not answer.
    Down,
}

/// The calls in a slice of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    /// The index of this slice, counted from time zero.
    number: u64,
    answered: u32,
    lost: u32,
}

impl Breaker {
    /// Creates a breaker for a server that should answer within `timeout`.
    pub const fn new(timeout: Micros) -> Self {
        Self {
            timeout,
            slices: [Slice { number: 0, answered: 0, lost: 0 }; SLICES],
            lost_in_a_row: 0,
            state: BreakerState::Closed,
            probe_at: Timestamp::EPOCH,
        }
    }

    /// Returns the breaker's state.
    pub const fn state(&self) -> BreakerState {
        self.state
    }

    /// Counts a call that was answered before its timeout, even with an error.
    pub fn answered(&mut self, now: Timestamp) {
        self.lost_in_a_row = 0;
        let slice = self.slice(now);
        slice.answered = slice.answered.saturating_add(1);
    }

    /// Counts a call that was not answered before its timeout. Returns whether this opens the
    /// breaker, so the first probe is due.
    pub fn lost(&mut self, now: Timestamp) -> bool {
        self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
        let slice = self.slice(now);
        slice.lost = slice.lost.saturating_add(1);
        let (answered, lost) = self.within_window(now);
        let opens = self.state == BreakerState::Closed
            && lost.max(self.lost_in_a_row.into()) >= LEAST_LOST
            && lost >= answered;
        if opens {
            self.state = BreakerState::Down;
            self.probe_at = now;
        }
        opens
    }

    /// Returns the time until the next probe is due.
    pub const fn next_probe(&self, now: Timestamp) -> Micros {
        self.probe_at.since(now)
    }

    /// Returns how long to wait for a probe's answer.
    pub fn patience(&self) -> Micros {
        Micros::new(self.timeout.get().saturating_mul(4).max(LEAST_PATIENCE.get()))
    }

    /// Counts a probe's answer and how long it took; `None` means no answer. Returns the new state
    /// if it changed.
    pub fn probed(&mut self, took: Option<Micros>, now: Timestamp) -> Option<BreakerState> {
        let (state, again) = match took {
            Some(took) if took <= self.timeout => (BreakerState::Closed, Micros::ZERO),
            // The server has finished the probe, so another probe right away adds little load.
            Some(_) => (BreakerState::Slow, Micros::ZERO),
            None => (BreakerState::Down, PROBE_AGAIN),
        };
        if self.state == BreakerState::Closed {
            return None;
        }
        self.probe_at = now + again;
        if state == BreakerState::Closed {
            *self = Self::new(self.timeout);
        } else if state == self.state {
            return None;
        }
        self.state = state;
        Some(state)
    }

    /// Returns the current slice of the window.
    fn slice(&mut self, now: Timestamp) -> &mut Slice {
        let number = self.number(now);
        let slice = &mut self.slices[usize::try_from(number).unwrap_or_default() % SLICES];
        if slice.number != number {
            *slice = Slice { number, ..Slice::default() };
        }
        slice
    }

    /// Returns how many calls within the window were answered and how many were lost.
    fn within_window(&self, now: Timestamp) -> (u64, u64) {
        let number = self.number(now);
        let slices = self.slices.iter();
        let slices = slices.filter(|slice| number.saturating_sub(slice.number) < SLICES as u64);
        slices.fold((0, 0), |(answered, lost), slice| {
            (answered + u64::from(slice.answered), lost + u64::from(slice.lost))
        })
    }

    fn number(&self, now: Timestamp) -> u64 {
        let window = self.timeout.get().saturating_mul(4).max(LEAST_WINDOW.get());
        now.as_micros() / (window / SLICES as u64)
    }
}

impl BreakerState {
    /// Returns whether calls fail immediately in this state.
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Closed)
    }

    /// Returns the word for this state in logs and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Slow => "slow",
            Self::Down => "down",
        }
    }
}

/// The window slides in tenths.
const SLICES: usize = 10;
/// Long enough that a 100 ms pause does not outweigh the calls around it. Also the longest time
/// that requests in an outage wait for their timeouts before the breaker opens.
const LEAST_WINDOW: Micros = Micros::new(1_000_000);
/// Fewer prove too little: a few calls are in flight at any moment, and a single pause loses them
/// all.
const LEAST_LOST: u64 = 5;
/// A server that is silent for longer counts as down.
const LEAST_PATIENCE: Micros = Micros::new(500_000);
/// A recovered server is noticed within this time.
const PROBE_AGAIN: Micros = Micros::new(200_000);

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Micros = Micros::new(50_000);
    const IN_TIME: Option<Micros> = Some(Micros::new(50_000));
    const LATE: Option<Micros> = Some(Micros::new(50_001));

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000 + millis * 1_000)
    }

    fn breaker() -> Breaker {
        Breaker::new(TIMEOUT)
    }

    /// A breaker that opened at `at(0)`.
    fn open() -> Breaker {
        let mut breaker = breaker();
        for lost in 1..=5 {
            assert_eq!(breaker.lost(at(0)), lost == 5, "after {lost} calls");
        }
        assert_eq!(breaker.state(), BreakerState::Down);
        breaker
    }

    #[test]
    fn five_lost_calls_open() {
        open();
    }

    #[test]
    fn few_lost_calls_do_not_open() {
        let mut breaker = breaker();
        // Twice a second, a pause loses the sixteen calls in flight.
        for millis in 0..10_000 {
            match millis % 500 {
                300 => (0..16).for_each(|_| assert!(!breaker.lost(at(millis)), "at {millis}")),
                250..330 => {}
                _ => breaker.answered(at(millis)),
            }
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn half_lost_calls_open() {
        let mut breaker = breaker();
        for call in 0..4 {
            breaker.answered(at(call));
            assert!(!breaker.lost(at(call)));
        }
        breaker.answered(at(5));
        assert!(breaker.lost(at(6)), "five of ten");
    }

    #[test]
    fn calls_leave_the_window() {
        let mut breaker = breaker();
        for _ in 0..1_000 {
            breaker.answered(at(0));
        }
        let mut opened_at = None;
        for millis in (0..3_000).step_by(50) {
            if breaker.lost(at(millis)) {
                opened_at = Some(millis);
            }
        }
        assert!(matches!(opened_at, Some(900..=1_000)), "{opened_at:?}");
    }

    #[test]
    fn consecutive_losses_open_at_any_interval() {
        let mut breaker = breaker();
        for hour in 0..4 {
            assert!(!breaker.lost(at(hour * 3_600_000)));
        }
        assert!(breaker.lost(at(4 * 3_600_000)));
    }

    #[test]
    fn alternating_losses_do_not_open() {
        let mut breaker = breaker();
        for minute in 0..20 {
            breaker.answered(at(minute * 60_000));
            assert!(!breaker.lost(at(minute * 60_000 + 30_000)));
        }
    }

    #[test]
    fn window_grows_with_timeout() {
        let mut breaker = Breaker::new(Micros::new(1_000_000));
        breaker.answered(at(0));
        for second in 0..4 {
            assert!(!breaker.lost(at(second * 900)));
        }
        assert!(breaker.lost(at(3_600)));
    }

    #[test]
    fn fast_probe_resets_the_breaker() {
        let mut breaker = open();
        assert_eq!(breaker.next_probe(at(0)), Micros::ZERO, "the first probe is due immediately");
        assert_eq!(breaker.probed(IN_TIME, at(1)), Some(BreakerState::Closed));
        for _ in 0..4 {
            assert!(!breaker.lost(at(2)));
        }
        assert!(breaker.lost(at(2)));
    }

    #[test]
    fn late_probe_means_slow() {
        let mut breaker = open();
        assert_eq!(breaker.probed(LATE, at(60)), Some(BreakerState::Slow));
        assert_eq!(breaker.next_probe(at(60)), Micros::ZERO);
        assert_eq!(breaker.probed(LATE, at(120)), None, "the state is unchanged");
        assert_eq!(breaker.probed(None, at(620)), Some(BreakerState::Down));
        assert_eq!(breaker.probed(LATE, at(900)), Some(BreakerState::Slow));
        assert_eq!(breaker.probed(IN_TIME, at(950)), Some(BreakerState::Closed));
    }

    #[test]
    fn silent_server_is_probed_every_200_ms() {
        let mut breaker = open();
        assert_eq!(breaker.probed(None, at(500)), None);
        assert_eq!(breaker.next_probe(at(500)).get(), 200_000);
        assert_eq!(breaker.next_probe(at(650)).get(), 50_000);
        assert_eq!(breaker.next_probe(at(800)), Micros::ZERO);
    }

    #[test]
    fn calls_do_not_change_open_breaker() {
        let mut breaker = open();
        breaker.answered(at(1));
        assert!(!breaker.lost(at(1)));
        assert_eq!(breaker.state(), BreakerState::Down);
    }

    #[test]
    fn probe_does_not_change_closed_breaker() {
        let mut breaker = breaker();
        for took in [None, LATE, IN_TIME] {
            assert_eq!(breaker.probed(took, at(0)), None);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
