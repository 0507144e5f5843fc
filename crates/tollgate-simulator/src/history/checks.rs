//! Compares a record with `docs/guarantees.md`. Each check quotes the promise that it verifies.

use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::Timestamp;

use super::faults::Break;
use super::{Charges, History, PolicyKey, TICK};

/// A sliding window log's limit.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) name: String,
    pub(crate) limit: u64,
    /// What all local stores admit together.
    pub(crate) local: u64,
    /// In microseconds.
    pub(crate) window: u64,
}

impl History {
    /// "Redis executes no call after its deadline. Processes know Redis' clock to within the fastest
    /// transit time of the last 10 s."
    pub(super) fn check_deadline(
        &mut self,
        way: (usize, usize),
        policy_key: &PolicyKey,
        cost: u64,
    ) {
        let Some(asked) = self.asked.get(&cost) else {
            let violation = format!("the server charged {cost} units, which no request costs");
            return self.fail(policy_key.clone(), violation);
        };
        if self.is_uneven {
            return;
        }
        let now = Instant::now();
        let transits = self.transits.get(&way).into_iter().flatten().rev();
        let recent = transits.take_while(|(at, _)| now - *at < Duration::from_secs(10));
        let Some(fastest) = recent.map(|(_, transit)| *transit).min() else { return };
        if now > asked.deadline + fastest + TICK {
            let late = now - asked.deadline;
            let replica = asked.replica;
            let violation = format!(
                "the request of replica {replica} for {cost} units was charged {late:?} after its \
                 deadline, and the fastest transit took {fastest:?}"
            );
            self.fail(policy_key.clone(), violation);
        }
    }

    /// Whether the server may differ from what this replica remembers of a key: "until the process
    /// sees another process's reset, refund or raised quota, plus up to 0.2 s while NTP slews". A
    /// replica forgets before its own corrections, and again when it has the answer.
    pub(crate) fn may_be_old(
        &self,
        policy_key: &PolicyKey,
        replica: usize,
        timeout: Duration,
    ) -> bool {
        let now = Instant::now();
        let since = |at: Instant, bound: Duration| now - at <= bound + TICK;
        let own = self.correcting.get(&(replica, policy_key.clone()));
        let is_own_seen = |at: Instant| {
            own.is_some_and(|own| own.in_flight == 0 && own.ended >= Some(at))
                || !since(at, timeout)
        };
        let freed = self.freed.get(policy_key).into_iter().flatten();
        self.changed.contains(&policy_key.0)
            || self.is_slewed()
            || self.disturbed.is_some_and(|at| since(at, self.remembered * 6 / 5))
            || freed.into_iter().any(|(by, at)| match by {
                Some(by) if *by == replica => !is_own_seen(*at),
                _ => since(*at, self.remembered),
            })
    }

    /// Compares both sides after the run, and the admitted units with the limits.
    pub(crate) fn check(&mut self, logs: &[Log]) {
        let mut violations = Vec::new();
        // "The call is never repeated. `Not charged` means that Redis refused the call or never
        // received it."
        for ((policy_key, cost), charges) in &self.charges {
            let Charges { admitted, maybe, executed, refunded } = *charges;
            if executed < admitted || executed > admitted + maybe + refunded {
                let violation = format!(
                    "servers charged {executed} requests for {cost} and refunded {refunded}, and \
                     replicas know of {admitted}, and of {maybe} that may be charged"
                );
                violations.push((policy_key.clone(), violation));
            }
        }
        for ((policy_key, _), block) in &self.blocks {
            if block.breaks == self.breaks(policy_key).count()
                && block.returned.is_some_and(|used| used < block.spent)
            {
                violations
                    .push((policy_key.clone(), format!("too few units were reported: {block:?}")));
            }
        }
        for Log { name, limit, local, window } in logs {
            let is_changed = self.changed.contains(name);
            let is_one = |policy_key: &PolicyKey| policy_key.0 == *name && !is_changed;
            let keys = self.admitted.keys().filter(|policy_key| is_one(policy_key));
            for policy_key in keys.filter(|policy_key| !self.corrected.contains(*policy_key)) {
                let breaks: Vec<_> = self.breaks(policy_key).collect();
                let found = if breaks.is_empty() {
                    excess(&mut self.admitted[policy_key].clone(), *limit, *window)
                } else {
                    let charged = self.charged.get(policy_key).map_or(&[][..], Vec::as_slice);
                    excess_beside(charged, &breaks, *limit, *window)
                };
                violations.extend(found.map(|found| (policy_key.clone(), found)));
            }
            // "All processes together allow at most a quota, or one unit each."
            let settled = &self.settled_locally;
            let beside = self.local.iter_mut().filter(|(policy_key, _)| is_one(policy_key));
            for (policy_key, admitted) in
                beside.filter(|(policy_key, _)| !settled.contains(*policy_key))
            {
                let found = excess(admitted, *local, *window);
                violations
                    .extend(found.map(|found| (policy_key.clone(), format!("local: {found}"))));
            }
        }
        if let Some((policy_key, violation)) = violations.into_iter().next() {
            self.fail(policy_key, violation);
        }
    }
}

/// Describes a window in which servers charged more than the limit, and another limit for each break
/// in it. A failover, data loss, a clock step, and a slot's move to a server with another clock each
/// allow "**more**, by a quota", and a failover another one while replicas reach the old master. A
/// step back by less than a second allows none: "time stops for live keys, which outlive their
/// charges by a second".
fn excess_beside(
    charged: &[(Instant, u64)],
    breaks: &[&Break],
    limit: u64,
    window: u64,
) -> Option<String> {
    // A clock that is slewed runs up to a twelfth faster.
    let window = Duration::from_micros(window * 12 / 13);
    for (index, (end, _)) in charged.iter().enumerate() {
        let since = |at: Instant| *end - at < window && at <= *end;
        let units: u64 =
            charged[..=index].iter().rev().take_while(|(at, _)| since(*at)).map(|(_, it)| it).sum();
        let concerns = |it: &&&Break| it.since <= *end && *end - it.until < window;
        let more: u64 = breaks.iter().filter(concerns).map(|it| it.quotas).sum();
        if units > (1 + more) * limit {
            return Some(format!("{units} units of {limit}, and {more} more quotas"));
        }
    }
    None
}

/// Describes a window in which more than `limit` units were admitted.
fn excess(admitted: &mut [(Timestamp, u64)], limit: u64, window: u64) -> Option<String> {
    admitted.sort_unstable();
    let (mut first, mut units) = (0, 0);
    for (at, cost) in &*admitted {
        units += cost;
        while admitted[first].0.as_micros() + window <= at.as_micros() {
            units -= admitted[first].1;
            first += 1;
        }
        if units > limit {
            return Some(format!("{units} units of {limit} in the window up to {at:?}"));
        }
    }
    None
}
