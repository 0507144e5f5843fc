//! Applies operators' overrides to requests.

use std::any::Any;
use std::sync::Arc;

use tollgate_core::{
    Decision, Micros, Outcome, Override, OverrideChange, Overrides, Policy, Source, Timestamp,
    Verdict,
};

use crate::applied::AppliedLimit;
use crate::limit::Limits;
use crate::overridden::Overridden;

impl Limits {
    /// Applies a store's overrides to these limits. `prepare` makes the values that responses to a
    /// client need, for the limit with this number. Its last argument is whether the client is blocked.
    #[must_use]
    pub fn overridden_by(
        mut self,
        overrides: Option<Overrides>,
        prepare: impl Fn(usize, &Policy, bool) -> Box<dyn Any + Send + Sync> + Send + Sync + 'static,
    ) -> Self {
        self.overridden = overrides.map(|it| Arc::new(Overridden::new(it, prepare)));
        self
    }

    /// Returns whether [`apply_overrides`](Self::apply_overrides) may have an effect. A program that
    /// drives the engine checks this for each request.
    #[inline(always)]
    pub fn has_overrides(&self) -> bool {
        self.overridden.as_ref().is_some_and(|it| it.overrides.is_any())
    }

    /// Returns whether an override applies to this charge now. Then the limit applies to its key, even
    /// if it does not apply to the key's tier, or if the key's own quota is unlimited or unknown.
    #[inline(always)]
    pub fn is_overridden(&self, applied: &AppliedLimit) -> bool {
        self.has_overrides() && self.is_overridden_now(applied)
    }

    #[cold]
    fn is_overridden_now(&self, applied: &AppliedLimit) -> bool {
        let find = |it: &Arc<Overridden>| self.find(it, applied, it.overrides.now());
        self.overridden.as_ref().and_then(find).is_some()
    }

    /// Returns the override that has an effect on a charge.
    fn find(&self, it: &Overridden, applied: &AppliedLimit, now: Timestamp) -> Option<Override> {
        let limit = self.of(applied);
        let found = it.overrides.find_at(limit.policy.name(), &applied.key, now)?;
        let has_effect = found.change != OverrideChange::Block || limit.mode.enforces();
        (has_effect && found.change.policy(&limit.policy).is_ok()).then_some(found)
    }

    /// Replaces the policies of overridden keys. Returns whether an operator has blocked the
    /// request. Then it must start as a [`Request`](crate::Request), which rejects it.
    ///
    /// An override replaces a client's tier and its own quota: it changes the policy outside of tiers.
    /// An override that does not fit the limit, which may have changed since, has no effect.
    #[cold]
    pub fn apply_overrides<'a>(
        &self,
        charges: impl IntoIterator<Item = &'a mut AppliedLimit>,
    ) -> bool {
        let Some(overridden) = &self.overridden else { return false };
        let (mut is_blocked, now) = (false, overridden.overrides.now());
        for applied in charges {
            let Some(found) = self.find(overridden, applied, now) else { continue };
            // A blocked client is told when its own quota allows it again.
            let base = match found.change {
                OverrideChange::Block => self.policy(applied),
                OverrideChange::Quota { .. } => &self.of(applied).policy,
            };
            if let Some(own) = overridden.own(applied.limit, base, &found) {
                is_blocked |= own.blocked_until.is_some();
                applied.own = Some(own);
            }
        }
        is_blocked
    }

    /// Returns the verdict on a request that is blocked at the verdict's time. `verdict` has the
    /// decisions without the block.
    pub fn blocked(&self, charges: &[AppliedLimit], verdict: &Verdict) -> Option<Verdict> {
        let overrides = &self.overridden.as_ref()?.overrides;
        let now = || match verdict.source() {
            // A local store has its own clock.
            Source::Local => overrides.now(),
            Source::Store | Source::Cache | Source::Lease => verdict.decided_at(),
        };
        let left = |applied: &AppliedLimit| {
            let until = applied.own.as_ref()?.blocked_until?;
            Some(until.since(now())).filter(|left| *left > Micros::ZERO)
        };
        charges.iter().find_map(left)?;
        let decisions = charges.iter().zip(verdict.decisions()).map(|(applied, decision)| {
            match (left(applied), decision.outcome) {
                (Some(left), _) => decision.blocked_for(left),
                (None, Outcome::Allow { .. }) => {
                    Decision { outcome: Outcome::WouldAllow, ..*decision }
                }
                (None, _) => *decision,
            }
        });
        let blocked = Verdict::new(false, verdict.decided_at(), decisions);
        Some(blocked.with_source(verdict.source()))
    }

    /// Returns whether an operator has blocked a request with these charges.
    pub(crate) fn are_blocked(&self, charges: &[AppliedLimit]) -> bool {
        let is_blocked = |applied: &AppliedLimit| {
            applied.own.as_ref().is_some_and(|own| own.blocked_until.is_some())
        };
        self.overridden.is_some() && charges.iter().any(is_blocked)
    }

    /// Returns the verdict for a request that the store could not decide.
    pub(crate) fn undecided(&self, charges: &[AppliedLimit]) -> Verdict {
        let now = self.overridden.as_ref().map(|it| it.overrides.now()).unwrap_or_default();
        let undecided = |applied| Decision::undecided(self.policy(applied).capacity());
        Verdict::new(false, now, charges.iter().map(undecided))
    }
}

#[cfg(test)]
mod tests;
