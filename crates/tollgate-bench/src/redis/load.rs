//! Tasks that each send one request after the other, and their results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;

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
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
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
