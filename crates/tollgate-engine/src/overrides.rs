//! Applies operators' overrides to requests.

use std::any::Any;
use std::sync::Arc;

use tollgate_core::{Decision, Micros, Outcome, OverrideChange, Overrides, Policy, Verdict};

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

    /// Replaces the policies of overridden keys. Returns whether an operator has blocked the
    /// request. Then it must start as a [`Request`](crate::Request), which rejects it.
    ///
    /// An override replaces a client's tier and its own quota. An override that does not fit the
    /// limit, which may have changed since, has no effect.
    #[cold]
    pub fn apply_overrides<'a>(
        &self,
        charges: impl IntoIterator<Item = &'a mut AppliedLimit>,
    ) -> bool {
        let Some(overridden) = &self.overridden else { return false };
        let mut is_blocked = false;
        for applied in charges {
            let name = self.of(applied).policy.name();
            let Some(found) = overridden.overrides.find(name, &applied.key) else { continue };
            let is_block = found.change == OverrideChange::Block;
            if is_block && !self.of(applied).mode.enforces() {
                continue;
            }
            if let Some(own) = overridden.own(applied.limit, self.policy(applied), &found) {
                is_blocked |= own.blocked_until.is_some();
                applied.own = Some(own);
            }
        }
        is_blocked
    }

    /// Returns the verdict on a request that is blocked at the verdict's time. `verdict` has the
    /// decisions without the block.
    pub fn blocked(&self, charges: &[AppliedLimit], verdict: &Verdict) -> Option<Verdict> {
        let left = |applied: &AppliedLimit| {
            let until = applied.own.as_ref()?.blocked_until?;
            Some(until.since(verdict.decided_at())).filter(|left| *left > Micros::ZERO)
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

    /// Returns the verdict of a store that decides nothing now.
    pub(crate) fn undecided(&self, charges: &[AppliedLimit]) -> Verdict {
        let now = self.overridden.as_ref().map(|it| it.overrides.now()).unwrap_or_default();
        let undecided = |applied| Decision::undecided(self.policy(applied).capacity());
        Verdict::new(false, now, charges.iter().map(undecided))
    }
}
