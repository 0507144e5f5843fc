//! Learns from the called service's response.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, timeout};
use tollgate_core::{Charge, Cost, Decision, Micros, PenaltyBlock, Store, StoreError};
use tollgate_engine::AppliedLimit;

use super::permit::Permit;
use super::rate::Rate;
use super::state::{Face, State};
use crate::feedback::{Feedback, Pause, ServerQuota};
use crate::observe::PauseSource;

impl<St: Store> Permit<St> {
    /// Reads the called service's own limits from its response, and applies them to all processes.
    ///
    /// * A denial pauses the key until the service's instant. If the service names none, the pause
    ///   starts with a second, and doubles with each further denial.
    /// * With [`adaptive`](super::LimiterBuilder::adaptive), such a denial halves the rate, too.
    /// * If fewer units remain at the service than here, because other programs use them, the
    ///   difference is charged, unless calls queue. With several policies, this needs a quota with
    ///   the policy's name, such as `tokens`.
    ///
    /// Returns the pause that this response has started. A response has no effect if its call left
    /// before the last pause started. Without [`pausable`](super::LimiterBuilder::pausable), no
    /// response starts a pause.
    ///
    /// # Errors
    /// The store failed, so the pause may be unknown to other processes. A `tollgate` event reports
    /// it, too.
    pub async fn learn(&self, feedback: &Feedback) -> Result<Option<Duration>, StoreError> {
        let paused = self.pause_for(feedback).await;
        let slowed = self.slow_down(feedback).await;
        let lowered = self.lower(feedback.quotas()).await;
        let result = slowed.and(lowered).and(paused);
        result.inspect_err(|error| {
            tracing::warn!(target: "tollgate", %error, "a response's limits are not shared");
        })
    }

    async fn pause_for(&self, feedback: &Feedback) -> Result<Option<Duration>, StoreError> {
        let State { store, limits, face, telemetry, .. } = self.state();
        let longest = face.pause.map_or(Duration::ZERO, |(_, longest)| longest);
        let pause = feedback.pause_at_most(longest);
        let Some(paused) = self.pause().filter(|_| pause.is_some() || feedback.is_denial()) else {
            return Ok(None);
        };
        let (policy, key) = (limits.policy(paused), &paused.key);
        let left_at = self.decided.charges.decided_at() + self.decided.charges.delay(limits);
        let length = pause.as_ref().map(|pause| pause.duration().into());
        let block = PenaltyBlock { length, known_at: left_at };
        let blocked = store.block(policy, key, block).await?.map(Duration::from);
        if let Some(length) = blocked {
            let header = pause.as_ref().map(|it| it.header().as_str());
            let source = header.map_or(PauseSource::Unnamed, PauseSource::Header);
            telemetry.paused(limits, paused, length, source);
            if let Some(pause) = pause.filter(Pause::is_capped) {
                let (policy, requested) = (policy.name(), pause.requested());
                tracing::warn!(target: "tollgate", policy, ?requested, ?length, "capped a pause");
            }
        }
        Ok(blocked)
    }

    /// Halves the rate at which this call has left, if the service names no wait.
    async fn slow_down(&self, feedback: &Feedback) -> Result<(), StoreError> {
        let State { store, limits, .. } = self.state();
        let is_unnamed = feedback.is_denial() && feedback.pause().is_none();
        let Some(bucket) = self.state().rate(&self.decided).filter(|_| is_unnamed) else {
            return Ok(());
        };
        let half = Rate::halved(bucket.decision.remaining);
        let charge = limits.charge(bucket);
        let peek = store.decide(&[Charge { cost: Cost::ZERO, ..charge }]).await?;
        let excess = Cost::new(peek.decisions()[0].remaining.saturating_sub(half));
        if excess > Cost::ZERO {
            // Only if this leaves half: another process may have halved it meanwhile.
            let lowering = Charge { cost: excess, ..charge }.leaving(Cost::new(half));
            if store.decide(&[lowering]).await?.is_admitted() {
                let policy = limits.policy(bucket).name();
                tracing::info!(target: "tollgate", policy, permille = half, "lowered the rate");
            }
        }
        Ok(())
    }

    /// Charges the units that someone else has used.
    async fn lower(&self, quotas: &[ServerQuota]) -> Result<(), StoreError> {
        let State { store, limits, face, telemetry, .. } = self.state();
        let rates = || self.decided.charges.iter().filter(|it| face.is_rate(limits, it));
        let is_alone = rates().count() == 1;
        for applied in rates() {
            let name = limits.policy(applied).name();
            let Some((granted, remaining)) = units_of(quotas, name, is_alone) else { continue };
            telemetry.service_said(applied.limit, granted, remaining);
            if applied.decision.remaining <= remaining {
                continue;
            }
            let charge = limits.charge(applied);
            let peek = store.decide(&[Charge { cost: Cost::ZERO, ..charge }]).await?;
            // In another window, the service's number does not apply.
            let decided_at = self.decided.charges.decided_at();
            if peek.decided_at() >= decided_at + applied.decision.reset_after {
                continue;
            }
            // Other calls may have been charged since, and units may have come back.
            let ours = peek.decisions()[0].remaining.min(applied.decision.remaining);
            let used = Cost::new(ours.saturating_sub(remaining));
            if used > Cost::ZERO {
                // Charged only if the service's number then remains, because another response may
                // have reported the same. While calls queue, it is not charged, because the service
                // does not know these calls.
                let queue = charge.queue.map(|_| Micros::ZERO);
                let used = Charge { cost: used, queue, ..charge }.leaving(Cost::new(remaining));
                store.decide(&[used]).await?;
            }
        }
        Ok(())
    }

    /// The charge to the penalty that pauses the key.
    fn pause(&self) -> Option<&AppliedLimit> {
        let (pause, _) = self.state().face.pause?;
        self.decided.charges.iter().find(|it| usize::from(it.limit) == pause)
    }

    /// Decides what to do with a call's turn. `asked` is when the call entered the queue. If the call
    /// has queued, this reads the key's pause and rate from the store again.
    pub(super) async fn turn(&mut self, asked: Instant) -> Turn {
        let Face { pause, rate, .. } = &self.state().face;
        if pause.is_none() && rate.is_none() {
            return Turn::Used;
        }
        if asked.elapsed() >= RECHECK && self.look().await {
            return Turn::Paused;
        }
        match (&self.state().face.rate, self.state().rate(&self.decided)) {
            (Some(rate), Some(bucket))
                if !rate.uses_turn(&bucket.key, bucket.decision.remaining) =>
            {
                Turn::Unused
            }
            _ => Turn::Used,
        }
    }

    /// Updates the rate, and returns whether the key is paused. If the store's reply is late,
    /// this assumes no change, because a late departure may be too close to the next departures.
    async fn look(&mut self) -> bool {
        let State { store, limits, .. } = self.state();
        let (pause, bucket) = (self.pause(), self.state().rate(&self.decided));
        let looks = [pause, bucket].into_iter().flatten();
        let looks: SmallVec<[_; 2]> =
            looks.map(|it| Charge { queue: None, ..limits.charge(it) }.dry()).collect();
        if looks.is_empty() {
            return false;
        }
        let reply = store.decide(&looks);
        drop(looks);
        let Ok(Ok(verdict)) = timeout(LONGEST_LOOK, reply).await else { return false };
        let mut decisions = verdict.decisions().iter();
        let is_paused = pause.and_then(|_| decisions.next()).is_some_and(Decision::denies);
        let seen = bucket.map(|bucket| bucket.limit).zip(decisions.next().copied());
        if let Some((number, now)) = seen {
            let mut charges = self.decided.charges.iter_mut();
            if let Some(bucket) = charges.find(|it| it.limit == number) {
                bucket.decision = now;
            }
        }
        is_paused
    }
}

/// A key may have been paused while a call was in the queue for this long.
const RECHECK: Duration = Duration::from_secs(1);

/// The longest time that a departing call waits for the store's reply.
const LONGEST_LOOK: Duration = Duration::from_millis(250);

/// Whether a call uses its turn.
pub(super) enum Turn {
    /// It leaves.
    Used,
    /// It does not leave, because the key was paused after it had entered the queue.
    Paused,
    /// It lets the turn pass, because the service denies calls at the full rate.
    Unused,
}

/// The limit and the remaining units that the service states for a policy: in the quota with the
/// policy's name or, for the only policy, in the quota without a name or in the only quota.
fn units_of(quotas: &[ServerQuota], policy: &str, is_alone: bool) -> Option<(Option<u64>, u64)> {
    let named = |name: &str| quotas.iter().find(|quota| quota.name() == name);
    let only = || if let [only] = quotas { Some(only) } else { None };
    let quota = named(policy).or_else(|| named("default").or_else(only).filter(|_| is_alone))?;
    // A limit of 0 does not apply, and a soft limit allows calls although no units remain.
    let applies = quota.limit() != Some(0) && (quota.remaining() != Some(0) || quota.is_used_up());
    let remaining = quota.remaining().filter(|_| applies)?;
    Some((quota.limit(), remaining))
}
