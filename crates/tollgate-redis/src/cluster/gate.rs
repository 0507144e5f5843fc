//! A breaker for one node of a Cluster.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Keeps a node that fails from costing every request for its slots the timeout: after
/// some calls in a row that came to nothing, only a probe now and then gets through.
///
/// A breaker around the whole store cannot do that. It sees as many failures whichever
/// node they come from, and would close the way to those that are well.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Calls in a row that came to nothing.
    failures: u32,
    /// When the next call may try, once they are too many.
    probe_at: Option<Instant>,
}

/// As a breaker around a whole store has it.
const FAILURES_TO_SHUT: u32 = 5;
const PROBE_EVERY: Duration = Duration::from_millis(200);

impl Gate {
    /// Whether a call may go to the node. Of those that try while it fails, that is one
    /// each period.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        if state.failures < FAILURES_TO_SHUT {
            return true;
        }
        let is_due = state.probe_at.is_none_or(|at| now >= at);
        if is_due {
            state.probe_at = Some(now + PROBE_EVERY);
        }
        is_due
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.lock().failures < FAILURES_TO_SHUT
    }

    /// What came of a call.
    pub(crate) fn learn(&self, is_well: bool, now: Instant) {
        let mut state = self.0.lock();
        if is_well {
            *state = State::default();
        } else {
            state.failures = state.failures.saturating_add(1);
            state.probe_at = Some(now + PROBE_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shuts_after_so_many_failures_in_a_row_and_lets_one_probe_through_at_a_time() {
        let (gate, now) = (Gate::default(), Instant::now());
        for _ in 0..3 {
            for _ in 1..FAILURES_TO_SHUT {
                gate.learn(false, now);
                assert!(gate.is_open() && gate.admits(now));
            }
            gate.learn(true, now);
        }
        for _ in 0..FAILURES_TO_SHUT {
            gate.learn(false, now);
        }
        assert!(!gate.is_open() && !gate.admits(now));
        let later = now + PROBE_EVERY;
        assert!(gate.admits(later) && !gate.admits(later));
        gate.learn(false, later);
        assert!(!gate.admits(later));
        assert!(gate.admits(later + PROBE_EVERY));
        gate.learn(true, later);
        assert!(gate.is_open() && gate.admits(later) && gate.admits(later));
    }
}
