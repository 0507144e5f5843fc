//! Which requests enter the wait queue: before they ask the store, and after it denied them.

use tollgate_core::{Charge, Cost, Store, StoreError, Verdict};

use super::excess::{Answer, Patient};
use super::lanes::LaneKey;
use super::question::Question;
use super::queued::Charged;
use super::room::{Arrived, Entry, WaitingRoom};
use super::rules::{Applied, Rules, bits};
use super::witness::Sight;

impl<St: Store> Rules<St> {
    /// Gives a request its number in the order of arrival, and lets it wait if earlier requests
    /// wait for one of its keys.
    pub(super) fn join(
        &self,
        room: &WaitingRoom,
        applied: Applied,
        charged: &[Charged],
        arrived: &mut Arrived,
        sight: &mut Sight,
    ) -> Option<Answer<St>> {
        let (number, others_wait) = room.arrive();
        arrived.number = number;
        if !others_wait || charged.iter().any(never_passes) {
            return None;
        }
        let Candidate { patient, keys, may_wait, first } = self.candidate(applied, charged)?;
        let answer: Answer<St> = match room.enter(*arrived, keys, may_wait, 0) {
            Entry::Free => return None,
            Entry::Waits(waiter) => {
                let waits = self.witness.waits(Some(first));
                Answer::Waiting(Box::pin(patient.wait(waiter, None, waits)))
            }
            Entry::Full(keys) => Answer::Waiting(Box::pin(patient.reject(keys))),
        };
        sight.waits();
        Some(answer)
    }

    /// Lets a request wait that the store has denied, if it can pass in time.
    pub(super) fn wait(
        &self,
        answer: &Result<Verdict, StoreError>,
        question: &mut Question,
    ) -> Option<Answer<St>> {
        let verdict = answer.as_ref().ok().filter(|verdict| !verdict.is_admitted())?;
        // A denial after a wait is final.
        let charged = question.charged.as_deref().filter(|_| !question.sight.has_waited())?;
        let Candidate { patient, keys, may_wait, first } =
            self.candidate(question.applied, charged)?;
        let denied = patient.denied(verdict)?;
        let room = self.room.as_ref()?;
        let Entry::Waits(waiter) = room.enter(question.arrived, keys, may_wait, denied.keys())
        else {
            return None;
        };
        question.sight.waits();
        let waits = self.witness.waits(Some(first));
        Some(Answer::Waiting(Box::pin(patient.wait(waiter, Some(denied), waits))))
    }

    /// How a request would wait. `None` if it waits for no limit.
    fn candidate(&self, applied: Applied, charged: &[Charged]) -> Option<Candidate<St>> {
        let patience: Box<[_]> = self.applied(applied).map(|rule| rule.limit.patience()).collect();
        let waits = |number: &usize| {
            patience[*number].is_some() && charged[*number].charge().cost > Cost::ZERO
        };
        let may_wait = (0..charged.len()).filter(waits).fold(0, |keys, number| keys | 1 << number);
        let first = bits(applied.rules).nth(bits(may_wait).next()?)?;
        let key = |charged: &Charged| {
            let Charge { policy, key, .. } = charged.charge();
            LaneKey { policy: policy.clone(), key: key.clone() }
        };
        let keys = charged.iter().map(key).collect();
        let patient = Patient::new(&self.store, charged, patience);
        Some(Candidate { patient, keys, may_wait, first })
    }
}

/// A request that may wait.
struct Candidate<St> {
    patient: Patient<St>,
    /// The keys of its charges, and a bit for each key that it may wait for.
    keys: Box<[LaneKey]>,
    may_wait: u64,
    /// The first of its limits that it may wait for, which its wait is counted under.
    first: usize,
}

/// Whether the charge is too dear for its policy at any time. The store then denies the request
/// whatever others have used, so there is nothing to wait for.
fn never_passes(charged: &Charged) -> bool {
    let Charge { policy, cost, enforce, .. } = charged.charge();
    enforce && cost.get() > policy.capacity()
}
