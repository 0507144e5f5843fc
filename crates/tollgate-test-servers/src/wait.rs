//! Polls for a condition in another process.

use std::time::{Duration, Instant};

/// Calls `ask` until it returns a value.
///
/// # Panics
///
/// If `ask` returns no value within `limit`. The message contains `what`.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, ask: impl FnMut() -> Option<T>) -> T {
    try_until(limit, ask)
        .unwrap_or_else(|| panic!("timed out after {limit:?} waiting until {what}"))
}

/// Like [`until`], for callers that build their own message.
pub(crate) fn try_until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        // Poll again after the deadline, because this process may have been suspended until then.
        let is_last = Instant::now() > deadline;
        let answer = ask();
        if answer.is_some() || is_last {
            return answer;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Like [`until`], but does not block the async runtime.
///
/// # Panics
///
/// Like [`until`].
#[cfg(feature = "faults")]
pub async fn until_async<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        let is_last = Instant::now() > deadline;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(!is_last, "timed out after {limit:?} waiting until {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Short compared to the awaited event, and long compared to a poll.
const PAUSE: Duration = Duration::from_millis(10);
