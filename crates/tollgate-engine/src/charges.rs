//! A request's charges: one record for each limit that applies. It is filled in place and travels
//! with the request.

use std::ops::Deref;
use std::{mem, slice};

use tollgate_core::{
    Cost, Key, Micros, Outcome, Receipt, ReceiptId, Source, Store, StoreError, Timestamp, Verdict,
};

use crate::applied::{AppliedLimit, SubjectKind};
use crate::conclusion::{Conclusion, Rejection};
use crate::limit::Limits;

/// The limits that apply to a request, with the store's decisions after its reply.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    list: List,
    decided_at: Timestamp,
    source: Source,
}

/// Most layers have a single limit, which needs no allocation. A `SmallVec` would also check at each
/// access whether its items are inline.
#[derive(Clone, Debug, Default)]
enum List {
    #[default]
    Empty,
    One(AppliedLimit),
    Many(Vec<AppliedLimit>),
}

impl List {
    #[inline(always)]
    fn push(&mut self, applied: AppliedLimit, capacity: usize) {
        match self {
            Self::Many(all) => all.push(applied),
            // Without a drop, which the compiler would call even for an empty list.
            Self::Empty if capacity == 1 => mem::forget(mem::replace(self, Self::One(applied))),
            _ => self.start_many(capacity).push(applied),
        }
    }

    #[inline(never)]
    fn start_many(&mut self, capacity: usize) -> &mut Vec<AppliedLimit> {
        let mut all = Vec::with_capacity(capacity);
        if let Self::One(first) = mem::take(self) {
            all.push(first);
        }
        *self = Self::Many(all);
        let Self::Many(all) = self else { unreachable!("it has just been set") };
        all
    }

    #[inline(always)]
    fn as_mut_slice(&mut self) -> &mut [AppliedLimit] {
        match self {
            Self::Empty => &mut [],
            Self::One(only) => slice::from_mut(only),
            Self::Many(all) => all,
        }
    }
}

impl Charges {
    /// Charges every limit the same units under the same key.
    pub fn of_each(limits: &Limits, key: &Key, cost: Cost) -> Self {
        let mut charges = Self::default();
        for (limit, _) in (0..).zip(limits.iter()) {
            charges.push(AppliedLimit::new(limit, SubjectKind::Other, key.clone(), cost), limits);
        }
        charges
    }

    /// Adds a limit that applies.
    // Without calls, a request with two limits takes 60 instructions less, also below.
    #[inline(always)]
    pub fn push(&mut self, applied: AppliedLimit, limits: &Limits) {
        self.list.push(applied, limits.len());
    }

    /// Removes all charges.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.list = List::Empty;
    }

    /// Returns the charges, whose decisions a correction may change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut AppliedLimit> {
        self.list.as_mut_slice().iter_mut()
    }

    /// Returns when the store decided.
    #[inline]
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns which store decided.
    #[inline]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Writes a verdict's decisions into the charges.
    #[inline(always)]
    pub fn fill_in(&mut self, verdict: &Verdict) {
        for (applied, decision) in self.iter_mut().zip(verdict.decisions()) {
            applied.decision = *decision;
        }
        (self.decided_at, self.source) = (verdict.decided_at(), verdict.source());
    }

    /// Writes the store's reply into the charges, or applies the failure policies. A request that
    /// may not wait needs no [`Request`](crate::Request), because it has no other step.
    #[inline(always)]
    pub fn conclude(&mut self, limits: &Limits, reply: Result<Verdict, StoreError>) -> Conclusion {
        let verdict = match reply {
            Ok(verdict) => verdict,
            Err(error) => return self.fail(limits, error),
        };
        self.fill_in(&verdict);
        self.judge(limits, verdict.is_admitted())
    }

    /// Decides one or two charges with a store that always decides immediately.
    #[inline(always)]
    pub fn decide_now(&mut self, limits: &Limits, store: &impl Store) -> Option<Conclusion> {
        let reply = match self.list.as_mut_slice() {
            [only] => store.decide_now(&[limits.charge(only)])?.map(|verdict| {
                [only.decision] = verdict.decisions;
                (verdict.admitted, verdict.decided_at)
            }),
            [one, two] => {
                let charges = [limits.charge(one), limits.charge(two)];
                store.decide_now(&charges)?.map(|verdict| {
                    [one.decision, two.decision] = verdict.decisions;
                    (verdict.admitted, verdict.decided_at)
                })
            }
            _ => return None,
        };
        Some(match reply {
            Ok((admitted, decided_at)) => {
                (self.decided_at, self.source) = (decided_at, Source::Store);
                self.judge(limits, admitted)
            }
            Err(error) => self.fail(limits, error),
        })
    }

    #[inline(always)]
    fn judge(&self, limits: &Limits, admitted: bool) -> Conclusion {
        if admitted {
            Conclusion::Pass(self.delay(limits))
        } else {
            Conclusion::Reject(self.rejection(limits))
        }
    }

    /// Why the store denied the request: its place in the store's queue would be too late, or another
    /// limit denies it for good.
    #[cold]
    fn rejection(&self, limits: &Limits) -> Rejection {
        let denying = || {
            let enforced = self.iter().filter(|it| limits.of(it).mode.enforces());
            enforced.filter(|applied| applied.decision.denies())
        };
        let is_late = |applied: &AppliedLimit| {
            let queues = limits.policy(applied).max_queue_time().is_some();
            queues && applied.decision.retry_after().is_some()
        };
        if denying().all(is_late) { Rejection::TooLate } else { Rejection::Denied }
    }

    #[cold]
    fn fail(&self, limits: &Limits, error: StoreError) -> Conclusion {
        if limits.failing_closed(self, &error).next().is_none() {
            Conclusion::FailOpen(Box::new(error))
        } else {
            Conclusion::Reject(Rejection::Undecided(Box::new(error)))
        }
    }

    /// Returns how long an admitted request is delayed: the longest delay by an enforced limit.
    #[inline]
    pub fn delay(&self, limits: &Limits) -> Micros {
        if limits.delaying().is_none() {
            return Micros::ZERO;
        }
        let enforced = self.iter().filter(|applied| limits.of(applied).mode.enforces());
        enforced.map(|applied| applied.decision.delay()).max().unwrap_or_default()
    }

    /// Denies an admitted request under the enforced limits that delay it for longer than
    /// `patience`. Its units must have been refunded.
    pub fn deny_delay(&mut self, limits: &Limits, patience: Micros) {
        for applied in self.iter_mut() {
            let Outcome::Allow { delay, .. } = applied.decision.outcome else { continue };
            let is_late = delay > patience && limits.of(applied).mode.enforces();
            applied.decision.outcome = if is_late {
                Outcome::Deny { retry_after: Micros::new(delay.get() - patience.get()) }
            } else {
                Outcome::WouldAllow
            };
        }
    }

    /// Returns the receipts of an admitted request, each with an ID from `next_id`.
    pub fn receipts<'a>(
        &'a self,
        limits: &'a Limits,
        mut next_id: impl FnMut() -> ReceiptId + 'a,
    ) -> impl Iterator<Item = Receipt> + 'a {
        let charges = limits.charges(self);
        self.iter().enumerate().filter_map(move |(index, applied)| {
            let (at, source) = (self.decided_at, self.source);
            applied.decision.receipt(&charges[index], &charges, at, source, &mut next_id)
        })
    }

    /// Returns the fewest units that remain under any policy that decided.
    pub fn remaining(&self) -> Option<u64> {
        let decided = self.iter().filter(|it| it.decision.outcome != Outcome::Undecided);
        decided.map(|applied| applied.decision.remaining).min()
    }
}

impl Deref for Charges {
    type Target = [AppliedLimit];

    #[inline]
    fn deref(&self) -> &[AppliedLimit] {
        match &self.list {
            List::Empty => &[],
            List::One(only) => slice::from_ref(only),
            List::Many(all) => all,
        }
    }
}
