//! Tasks that each send one request after the other. The package `peers` includes this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::coop::consume_budget;

use crate::Failure;

/// The key for a number, the same for all limiters.
pub(crate) fn address(number: u64) -> String {
    format!("10.0.{number:09}")
}

/// A limiter that decides on numbered requests.
pub(crate) trait Ask: Send + Sync + 'static {
    /// Returns whether the request was allowed, or an error if there was no decision.
    fn ask(&self, number: u64) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// A round's results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) decisions: f64,
    /// The number of allowed requests.
    pub(crate) admitted: f64,
    /// Decisions per second.
    pub(crate) rate: f64,
    /// Seconds from the request to its answer.
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// The time for which all tasks send requests.
const SPAN: Duration = Duration::from_millis(500);

/// Runs `tasks` tasks. Each sends its next request when it receives an answer.
pub(crate) async fn round<A: Ask>(asks: &Arc<A>, tasks: usize) -> Result<Round, Failure> {
    let next = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (asks, next) = (Arc::clone(asks), Arc::clone(&next));
            tokio::spawn(async move {
                let mut waits = Vec::with_capacity(1 << 14);
                let mut admitted = 0_u64;
                while begin.elapsed() < SPAN {
                    // The factor scatters the keys, so consecutive requests use distant keys.
                    let number = next.fetch_add(1, Ordering::Relaxed).wrapping_mul(7_654_321);
                    let asked = Instant::now();
                    admitted += u64::from(asks.ask(number).await?);
                    waits.push(asked.elapsed());
                    // A service does other things between two decisions.
                    consume_budget().await;
                }
                Ok::<_, Failure>((waits, admitted))
            })
        })
        .collect();
    let (mut waits, mut admitted) = (Vec::new(), 0);
    for task in running {
        let (some, passed) = task.await??;
        waits.extend(some);
        admitted += passed;
    }
    let elapsed = begin.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |percent: usize| {
        let index = (waits.len() * percent / 100).min(waits.len().saturating_sub(1));
        waits.get(index).map_or(f64::NAN, Duration::as_secs_f64)
    };
    let decisions = waits.len() as f64;
    let admitted = admitted as f64;
    Ok(Round { decisions, admitted, rate: decisions / elapsed, median: at(50), p99: at(99) })
}

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
