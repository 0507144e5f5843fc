//! The server's clock, which has an offset and a rate, and can step and stop.

use tokio::time::Instant;
use tollgate_core::Timestamp;

#[derive(Debug)]
pub(crate) struct Clock {
    /// The clock's time at `since`, in microseconds.
    shown: u64,
    since: Instant,
    /// How much faster it runs than the simulation's clock, in parts per million.
    rate: i64,
    is_frozen: bool,
    /// The last time that a call has read.
    last_read: u64,
}

impl Clock {
    pub(super) fn new(shown: u64) -> Self {
        Self { shown, since: Instant::now(), rate: 0, is_frozen: false, last_read: 0 }
    }

    /// The time that the clock shows.
    pub(crate) fn now(&self) -> Timestamp {
        let ran = if self.is_frozen { 0 } else { self.since.elapsed().as_micros() };
        let ran = i128::try_from(ran).expect("a short run");
        let ran = ran + ran * i128::from(self.rate) / 1_000_000;
        Timestamp::from_micros(self.shown + u64::try_from(ran).expect("the rate is above -1"))
    }

    /// Returns the time of a call. A call takes longer than a microsecond, so each has a different time.
    pub(super) fn read(&mut self) -> Timestamp {
        self.last_read = self.now().as_micros().max(self.last_read + 1);
        Timestamp::from_micros(self.last_read)
    }

    pub(crate) fn step(&mut self, by: i64) {
        self.rebase();
        self.shown = self.shown.saturating_add_signed(by);
        if by < 0 {
            self.last_read = 0;
        }
    }

    /// Stops the clock at an instant, which the next call reads.
    pub(super) fn set(&mut self, shown: Timestamp) {
        (self.shown, self.is_frozen, self.last_read) = (shown.as_micros(), true, 0);
    }

    pub(crate) fn slew(&mut self, rate: i64) {
        self.rebase();
        self.rate = rate;
    }

    /// Stops the clock while a host pauses the machine, or restarts it.
    pub(crate) fn freeze(&mut self, is_frozen: bool) {
        self.rebase();
        self.is_frozen = is_frozen;
    }

    fn rebase(&mut self) {
        self.shown = self.now().as_micros();
        self.since = Instant::now();
    }
}
