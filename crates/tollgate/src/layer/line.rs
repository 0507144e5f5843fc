//! Which requests stand in line, and which others they stand behind.

use tollgate_core::{Cost, Store, StoreError, Verdict};

use super::excess::{Answer, Patient};
use super::queued::Charged;
use super::room::{Arrival, LineKey, Room};
use super::rules::{Applied, Question, Rules, bits};
use super::witness::Sight;

impl<St: Store> Rules<St> {
    /// The end of the line, if others wait for the same quotas.
    pub(super) fn follow_line(
        &self,
        room: &Room,
        applied: Applied,
        charged: &[Charged],
        sight: &mut Sight,
    ) -> Option<Answer<St>> {
        let (patient, key) = self.patient(applied, charged)?;
        let waits = key.first().map(|(index, _)| *index);
        let answer: Answer<St> = match room.arrive(key) {
            Arrival::Free => return None,
            Arrival::Behind(place) => {
                Answer::Line(Box::pin(patient.wait(place, None, self.witness.waits(waits))))
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
        let (patient, key) = self.patient(question.applied, charged)?;
        patient.wait_after(verdict)?;
        let waits = key.first().map(|(index, _)| *index);
        let place = self.room.as_ref()?.enter(key)?;
        question.sight.waits();
        let waits = self.witness.waits(waits);
        Some(Answer::Line(Box::pin(patient.wait(place, Some(verdict.clone()), waits))))
    }

    /// How the request waits and for what, if one of its limits lets it.
    fn patient(&self, applied: Applied, charged: &[Charged]) -> Option<(Patient<St>, LineKey)> {
        let patience: Box<[_]> = self.applied(applied).map(|rule| rule.limit.patience()).collect();
        let charges = bits(applied.rules).zip(charged).zip(&patience);
        let waits = charges.filter(|((_, charged), patience)| {
            // What costs nothing passes at once.
            patience.is_some() && charged.charge().cost > Cost::ZERO
        });
        let key: LineKey =
            waits.map(|((index, charged), _)| (index, charged.charge().key.clone())).collect();
        (!key.is_empty()).then(|| (Patient::new(&self.store, charged, patience), key))
    }
}
