//! Admitted requests above a limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::redis::load::Ask;

/// The quota in [`worst`]: up to `LIMIT` units per `WINDOW`.
pub(crate) const LIMIT: u64 = 1_000;
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// The most requests that replicas with a shared quota certainly admitted within any [`WINDOW`].
/// Each replica has 32 tasks, which run for a window and two seconds.
///
/// The decision is made between the request and its answer. So a request counts only if both are in
/// the window, and slow answers cannot look like an exceeded limit.
pub(crate) async fn worst<A: Ask>(replicas: [Arc<A>; 2]) -> Result<usize, Failure> {
    let begin = Instant::now();
    let tasks = replicas.iter().flat_map(|replica| (0..32).map(move |_| Arc::clone(replica)));
    let running: Vec<_> = tasks
        .map(|replica| {
            tokio::spawn(async move {
                let mut admitted = Vec::new();
                while begin.elapsed() < WINDOW + Duration::from_secs(2) {
                    let sent = begin.elapsed();
                    if replica.ask(0).await? {
                        admitted.push((sent, begin.elapsed()));
                    }
                    // Several thousand requests per second are far above the limit, but leave the
                    // machine mostly idle.
                    tokio::time::sleep(Duration::from_millis(4)).await;
                }
                Ok::<_, Failure>(admitted)
            })
        })
        .collect();
    let mut admitted = Vec::new();
    for task in running {
        admitted.extend(task.await??);
    }
    Ok(most_within(&admitted, WINDOW))
}

/// The largest number of spans, each from a request to its answer, within less than `window`.
fn most_within(spans: &[(Duration, Duration)], window: Duration) -> usize {
    let count = |from: Duration| {
        spans.iter().filter(|(sent, answered)| *sent >= from && *answered < from + window).count()
    };
    spans.iter().map(|&(sent, _)| count(sent)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullest_window_starts_anywhere() {
        let instants = [0, 4, 9, 10, 13, 30].map(Duration::from_secs);
        let spans = instants.map(|instant| (instant, instant));
        assert_eq!(most_within(&spans, Duration::from_secs(10)), 4);
        assert_eq!(most_within(&[], Duration::from_secs(10)), 0);
    }

    #[test]
    fn spans_across_an_edge_do_not_count() {
        let spans = [(0, 1), (2, 9), (5, 12), (11, 12)];
        let spans = spans
            .map(|(sent, answered)| (Duration::from_secs(sent), Duration::from_secs(answered)));
        assert_eq!(most_within(&spans, Duration::from_secs(10)), 2);
    }
}
