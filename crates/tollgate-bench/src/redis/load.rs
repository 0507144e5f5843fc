//! Tasks that ask one after the other, and what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::prelude::Client;

use crate::Failure;
use crate::redis::server::processor_time;

/// Asks for the decision of a number; says whether there was one.
pub(crate) trait Ask: Send + Sync + 'static {
    fn ask(&self, number: u64) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// What a round showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Decisions a second.
    pub(crate) rate: f64,
    /// Seconds from asking to the answer.
    pub(crate) median: f64,
    pub(crate) p99: f64,
    /// Processor seconds of Redis a decision.
    pub(crate) redis: f64,
}

/// For so long all tasks ask.
const SPAN: Duration = Duration::from_millis(500);

/// `tasks` tasks ask, each as soon as it was answered.
pub(crate) async fn round<A: Ask>(
    asks: &Arc<A>,
    tasks: usize,
    redis: &Client,
) -> Result<Round, Failure> {
    let next = Arc::new(AtomicU64::new(0));
    let before = processor_time(redis).await?;
    let begin = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (asks, next) = (Arc::clone(asks), Arc::clone(&next));
            tokio::spawn(async move {
                let mut waits = Vec::with_capacity(1 << 14);
                while begin.elapsed() < SPAN {
                    // An odd factor: neighbours do not ask for neighbouring keys.
                    let number = next.fetch_add(1, Ordering::Relaxed).wrapping_mul(7_654_321);
                    let asked = Instant::now();
                    asks.ask(number).await?;
                    waits.push(asked.elapsed());
                }
                Ok::<_, Failure>(waits)
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in running {
        waits.extend(task.await??);
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let used = processor_time(redis).await? - before;
    waits.sort_unstable();
    let at = |percent: usize| {
        let index = (waits.len() * percent / 100).min(waits.len().saturating_sub(1));
        waits.get(index).map_or(f64::NAN, Duration::as_secs_f64)
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let count = waits.len() as f64;
    Ok(Round { rate: count / elapsed, median: at(50), p99: at(99), redis: used / count })
}
