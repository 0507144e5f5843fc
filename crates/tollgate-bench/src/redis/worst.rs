//! By how much a limit is passed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::redis::load::Ask;

/// The quota of [`worst`]: up to `LIMIT` units per `WINDOW`.
pub(crate) const LIMIT: u64 = 1_000;
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// The most that replicas with one quota admit in any [`WINDOW`], asked by 32 tasks each for a
/// window and a bit. An admission is dated to the arrival of its answer.
pub(crate) async fn worst<A: Ask>(replicas: [Arc<A>; 2]) -> Result<usize, Failure> {
    let begin = Instant::now();
    let tasks = replicas.iter().flat_map(|replica| (0..32).map(move |_| Arc::clone(replica)));
    let running: Vec<_> = tasks
        .map(|replica| {
            tokio::spawn(async move {
                let mut admitted = Vec::new();
                while begin.elapsed() < WINDOW + Duration::from_secs(2) {
                    if replica.ask(0).await? {
                        admitted.push(begin.elapsed());
                    }
                    // Some thousand requests a second: far too many for the limit, and few
                    // enough that what is slow is not the machine.
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
    admitted.sort_unstable();
    Ok(most_within(&admitted, WINDOW))
}

/// The most of the sorted `instants` that lie within less than `window`.
fn most_within(instants: &[Duration], window: Duration) -> usize {
    let until = |first: &Duration| instants.partition_point(|instant| *instant < *first + window);
    let counts = instants.iter().enumerate().map(|(place, first)| until(first) - place);
    counts.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_window_may_begin_anywhere() {
        let instants: Vec<_> = [0, 4, 9, 10, 13, 30].map(Duration::from_secs).into();
        assert_eq!(most_within(&instants, Duration::from_secs(10)), 4);
        assert_eq!(most_within(&[], Duration::from_secs(10)), 0);
    }
}
