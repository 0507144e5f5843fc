//! Which requests stand in line, and which others they stand behind.

use tollgate_core::{Charge, Cost, Store, StoreError, Verdict};

use super::excess::{Answer, Patient};
use super::question::Question;
use super::queued::Charged;
use super::room::{Arrival, Awaited, LineKey, WaitingRoom};
use super::rules::{Applied, Rules, bits};
use super::witness::Sight;

impl<St: Store> Rules<St> {
    /// The end of the line, if others wait for the same quotas.
    pub(super) fn follow_line(
        &self,
        room: &WaitingRoom,
        applied: Applied,
        charged: &[Charged],
        bytes: usize,
        sight: &mut Sight,
    ) -> Option<Answer<St>> {
        let (patient, key, waits) = self.patient(applied, charged)?;
        let answer: Answer<St> = match room.arrive(key, bytes) {
            Arrival::Free => return None,
            Arrival::Behind(place) => {
                Answer::Line(Box::pin(patient.wait(place, None, self.witness.waits(Some(waits)))))
            }
            Arrival::Full => Answer::Line(Box::pin(patient.refuse())),
        };
        sight.waits();
        Some(answer)
    }

    /// A place in line for a request that the store has denied, if it is worth waiting.
    pub(super) fn line_up(
        &self,
        answer: &Result<Verdict, StoreError>,
        question: &mut Question,
    ) -> Option<Answer<St>> {
        let verdict = answer.as_ref().ok().filter(|verdict| !verdict.is_admitted())?;
        // Who has waited already is denied for good.
        let charged = question.charged.as_deref().filter(|_| !question.sight.has_waited())?;
        let (patient, key, waits) = self.patient(question.applied, charged)?;
        patient.wait_after(verdict)?;
        let place = self.room.as_ref()?.enter(key, question.bytes)?;
        question.sight.waits();
        let waits = self.witness.waits(Some(waits));
        Some(Answer::Line(Box::pin(patient.wait(place, Some(verdict.clone()), waits))))
    }

    /// How the request waits and for what, if one of its limits lets it, and the number of the
    /// first of these.
    fn patient(
        &self,
        applied: Applied,
        charged: &[Charged],
    ) -> Option<(Patient<St>, LineKey, usize)> {
        let patience: Box<[_]> = self.applied(applied).map(|rule| rule.limit.patience()).collect();
        let charges = bits(applied.rules).zip(charged).zip(&patience);
        let mut waits = charges.filter(|((_, charged), patience)| {
            // What costs nothing passes at once.
            patience.is_some() && charged.charge().cost > Cost::ZERO
        });
        let awaited = |charged: &Charged| {
            let Charge { policy, key, .. } = charged.charge();
            Awaited(policy.clone(), key.clone())
        };
        let ((first, charged_first), _) = waits.next()?;
        let others = waits.map(|((_, charged), _)| awaited(charged));
        let key: LineKey = std::iter::once(awaited(charged_first)).chain(others).collect();
        Some((Patient::new(&self.store, charged, patience), key, first))
    }
}
