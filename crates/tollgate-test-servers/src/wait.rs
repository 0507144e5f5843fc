//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// Asks again and again until there is an answer.
///
/// # Panics
///
/// If there is none after `limit`; `what` then names what did not happen.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        // Asked once more past the deadline, because this process may have slept.
        let is_last = Instant::now() > deadline;
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(!is_last, "waited {limit:?} in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Short against what is waited for, long against the question.
const PAUSE: Duration = Duration::from_millis(5);
