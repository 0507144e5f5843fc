//! A fleet of replicas, simulated from a seed.
//!
//! The replicas run the real client code of `tollgate-redis`: combiner, pace, breaker, deny cache,
//! leases, topology, and the local fallback. Simulated servers and a simulated network replace Redis,
//! under tokio's paused clock. So a run takes milliseconds, and a seed always gives the same trace.
//! Every master has a replica that takes over in a failover, and several masters are a Cluster.
//!
//! | file | content |
//! |---|---|
//! | `fleet.rs` | runs a user's limit |
//! | `regions.rs` | a test: distant regions lease from the same quota |
//! | `scenario.rs` | derives replicas, latency and faults from a seed |
//! | `limit.rs` | draws policies and settings from everything that a user can configure |
//! | `traffic.rs` | the run's mix of requests |
//! | `replica.rs`, `answer.rs`, `correct.rs` | a replica's requests, their answers, and settlements |
//! | `server/` | a server, its data, its clock, its Cluster slots, and replays of calls to real servers |
//! | `network.rs` | connections that delay, lose and break |
//! | `fault/` | the kinds, odds and effects of faults |
//! | `history/` | records both sides and checks the promises |
//! | `balance.rs`, `penalties.rs` | check that no unit is lost, and whom penalties block |
//! | `reached.rs` | the branches that runs entered |

mod answer;
mod balance;
mod correct;
mod fault;
mod fleet;
mod history;
mod limit;
mod network;
mod penalties;
mod reached;
#[cfg(test)]
mod regions;
mod replica;
mod scenario;
mod server;
mod traffic;
mod world;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::fleet::{Fleet, Worst};
pub use self::history::{Counts, Violation};
pub use self::reached::Reached;
use self::scenario::Scenario;
pub use self::server::replay::{Decided, Replay, Replayed};

/// A run's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The broken promise, if any.
    pub violation: Option<Violation>,
    /// One line for each event.
    pub trace: String,
    /// The requests by outcome.
    pub counts: Counts,
    /// The branches that the run entered.
    pub reached: Reached,
}

/// Simulates a seed.
///
/// # Panics
/// If the code under test panics.
pub fn run(seed: u64) -> Run {
    paused(Scenario::new(seed).run())
}

/// Runs a simulation under a paused clock.
fn paused<T>(simulation: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs no resources");
    runtime.block_on(simulation)
}

/// The results of several runs.
#[derive(Debug, Default)]
pub struct Search {
    /// The number of runs.
    pub runs: u64,
    /// All runs' requests by outcome.
    pub counts: Counts,
    /// The branches that the runs entered.
    pub reached: Reached,
    /// The run that broke a promise and stopped the search.
    pub violating: Option<Run>,
}

/// Simulates seeds on all processors, until a run breaks a promise or the time limit is reached.
///
/// # Panics
/// If the code under test panics.
pub fn search(seeds: Range<u64>, limit: Option<Duration>) -> Search {
    let start = Instant::now();
    let (next, search) = (AtomicU64::new(seeds.start), Mutex::new(Search::default()));
    let take = || {
        let is_over = limit.is_some_and(|limit| start.elapsed() >= limit);
        let seed = next.fetch_add(1, Ordering::Relaxed);
        (!is_over && seed < seeds.end && search.lock().violating.is_none()).then_some(seed)
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = take() {
                    let run = run(seed);
                    let mut search = search.lock();
                    search.runs += 1;
                    search.counts.add(&run.counts);
                    search.reached.add(&run.reached);
                    if run.violation.is_some() {
                        search.violating = Some(run);
                    }
                }
            });
        }
    });
    search.into_inner()
}

/// Shows the trace lines about the violation's key and about faults, then the violation.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        let Some(violation) = &self.violation else { return writeln!(f, "{:?}", self.counts) };
        let shown = violation.to_string();
        let (name, _) = shown.split_once(':').unwrap_or_default();
        let concerns = |line: &&str| {
            ["fault", "limit"].iter().any(|word| line.contains(word)) || line.contains(name)
        };
        let lines: Vec<_> = self.trace.lines().filter(concerns).collect();
        let hidden = lines.len().saturating_sub(MOST_LINES);
        if hidden > 0 {
            writeln!(f, "({hidden} lines before)")?;
        }
        lines[hidden..].iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "violation: {violation}")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (policy, key) = &self.policy_key;
        write!(f, "{policy}/{key}: {}", self.text)
    }
}

const MOST_LINES: usize = 100;

/// The guide's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/fleets.md")]
struct Guide;
