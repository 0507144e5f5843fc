//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// Asks again and again until there is an answer.
///
/// # Panics
///
/// If there is none after `limit`; `what` then names what did not happen.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, ask: impl FnMut() -> Option<T>) -> T {
    try_until(limit, ask).unwrap_or_else(|| panic!("waited {limit:?} in vain: {what}"))
}

/// As [`until`], for those who have more to say about it.
pub(crate) fn try_until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        // Asked once more past the deadline, because this process may have slept.
        let is_last = Instant::now() > deadline;
        let answer = ask();
        if answer.is_some() || is_last {
            return answer;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Short against what is waited for, long against the question.
const PAUSE: Duration = Duration::from_millis(5);
