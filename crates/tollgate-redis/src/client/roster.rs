//! Counts the processes that share the quotas, because each grants its share while Redis is down.
//!
//! About once a second, a process sends its random number to Redis. `roster.lua` returns how many
//! processes did so recently.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::client::keyed_script::KeyedScript;
use crate::client::topology::Topology;
use crate::random::Random;
use crate::script;
use crate::script::names::Name;

/// Keeps this process in the roster until it is dropped.
#[derive(Debug)]
pub(crate) struct Roster {
    /// Zero before the first answer.
    count: Arc<AtomicU32>,
    task: AbortHandle,
}

/// The pause between two heartbeats, on average.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Many processes pause for longer, by this time for each of them. Their heartbeats would otherwise
/// take more than a percent of Redis' time.
const FOR_EACH: Duration = Duration::from_millis(3);
/// Less than the script's period.
const LONGEST: Duration = Duration::from_secs(4);
/// A smaller count is believed after one to two of these periods. After an outage or a loss of
/// data, processes return one after the other, and the first must not take the quota for itself.
const PERIOD: Duration = Duration::from_secs(10);

impl Roster {
    /// Joins the roster that is stored under `name`. `number` must differ between processes.
    pub(crate) fn join(
        topology: &Arc<Topology>,
        name: Name,
        number: u64,
        runtime: &Handle,
    ) -> Self {
        let count = Arc::new(AtomicU32::new(0));
        let process = Process {
            script: KeyedScript::new(topology, script::ROSTER, name),
            number: Bytes::copy_from_slice(&number.to_be_bytes()),
            random: Random::new(number),
        };
        let task = runtime.spawn(process.renew(Arc::clone(&count))).abort_handle();
        Self { count, task }
    }

    /// Returns the number of processes, as of the last answer. `None` before the first answer.
    pub(crate) fn count(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.count.load(Ordering::Relaxed))
    }
}

impl Drop for Roster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Process {
    script: KeyedScript,
    number: Bytes,
    random: Random,
}

impl Process {
    async fn renew(self, count: Arc<AtomicU32>) {
        let mut counts = Counts::default();
        loop {
            if let Some(answer) = self.heartbeat().await {
                count.store(counts.learn(answer, Instant::now()), Ordering::Relaxed);
            }
            let pause = pause(count.load(Ordering::Relaxed));
            // Processes that started together must not call together.
            sleep(pause * 9 / 10 + self.random.up_to(pause / 5)).await;
        }
    }

    /// Returns Redis' count. If this call fails, the next heartbeat may succeed.
    async fn heartbeat(&self) -> Option<u32> {
        // Otherwise the first count after a slow discovery would be late by a pause.
        self.script.discovered().await;
        let answer = self.script.call(std::slice::from_ref(&self.number)).await.ok()?;
        u32::try_from(answer.as_u64()?).ok()
    }
}

/// The average pause between two heartbeats of a process, if there are `count` processes.
fn pause(count: u32) -> Duration {
    (FOR_EACH * count).clamp(HEARTBEAT, LONGEST)
}

/// The largest answers in this period and in the period before.
#[derive(Debug, Default)]
struct Counts {
    current: u32,
    previous: u32,
    since: Option<Instant>,
}

impl Counts {
    /// Records an answer, and returns the number of processes to assume.
    fn learn(&mut self, answer: u32, now: Instant) -> u32 {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            *self = Self { current: 0, previous: self.current, since: Some(now) };
        }
        self.current = self.current.max(answer);
        self.current.max(self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_processes_pause_for_longer() {
        for (count, millis) in
            [(0, 1_000), (333, 1_000), (334, 1_002), (1_333, 3_999), (1_334, 4_000), (9_999, 4_000)]
        {
            assert_eq!(pause(count), Duration::from_millis(millis), "{count} processes");
        }
    }

    #[test]
    fn smaller_counts_need_a_full_period() {
        let (mut counts, start) = (Counts::default(), Instant::now());
        let mut learn = |second, answer| counts.learn(answer, start + Duration::from_secs(second));
        assert_eq!(learn(0, 3), 3);
        assert_eq!(learn(1, 5), 5);
        assert_eq!(learn(9, 1), 5);
        // Redis was down for a minute, and the other processes return after this process.
        assert_eq!(learn(70, 1), 5);
        assert_eq!(learn(75, 2), 5);
        assert_eq!(learn(81, 2), 2);
    }
}
