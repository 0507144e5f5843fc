//! How requests end: they leave, or run and are corrected.

use super::*;

impl World {
    /// A request's caller leaves.
    pub(super) fn leave(&mut self, number: usize) {
        let flight = &mut self.flights[number];
        let (charges, refunds) = match std::mem::replace(&mut flight.stage, Stage::Over) {
            Stage::Asked(mut request, asking, reply) => {
                // The layer's choice: units of the first question count, because clients could
                // otherwise send requests for free.
                let refunds = asking.refunds(Refunds::Permits);
                let mut charges = request.take_charges();
                let verdict = reply.ok().filter(Verdict::is_admitted);
                verdict.iter().for_each(|verdict| charges.fill_in(verdict));
                (charges, if verdict.is_some() { refunds } else { Refunds::None })
            }
            Stage::Asleep(mut request, _) => (request.take_charges(), Refunds::None),
            Stage::Runs(charges, [start, _]) => {
                let is_delayed = self.clock.now() < start;
                (charges, if is_delayed { Refunds::All } else { Refunds::Permits })
            }
            Stage::Over => return,
        };
        let outcome = flight.outcome;
        self.outcomes[outcome] = "gone".to_owned();
        self.refund(refunds, &charges);
    }

    pub(super) fn refund(&mut self, refunds: Refunds, charges: &Charges) {
        let next_id = next_id(&mut self.receipts);
        let receipts: Vec<_> = refunds.of(&self.limits, charges, next_id).collect();
        for receipt in receipts {
            self.settle(&receipt, Cost::ZERO);
        }
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) {
        let settled = self.store.settle(receipt, actual).now();
        assert!(settled.is_ok_and(|settled| settled.is_ok()));
    }

    /// A request has run: its permits return, and its outcome corrects its charges.
    pub(super) fn finish(&mut self, number: usize, charges: &Charges) {
        let receipts: Vec<_> =
            charges.receipts(&self.limits, next_id(&mut self.receipts)).collect();
        for permit in receipts.iter().filter(|receipt| receipt.policy.is_concurrency()) {
            self.settle(permit, Cost::ZERO);
        }
        let Some(mut open) = OpenCharges::new(&self.limits, receipts) else { return };
        let Sent { counts, forgives, stated, .. } = self.flights[number].sent;
        let age = self.clock.now().since(charges.decided_at());
        let mut settled = Vec::new();
        for applied in charges.iter() {
            let limit = self.limits.of(applied);
            let ending = Ending {
                counts: limit.corrects.counts.then_some(counts),
                forgives: limit.corrects.forgives && forgives,
                stated: limit.corrects.reserve.and(stated).map(Cost::new),
            };
            settled.extend(open.settle(age, |charge| {
                let is_meant = charge.is_of(limit.policy.name());
                let Receipt { policy, charged, .. } = charge.receipt();
                is_meant.then(|| ending.correction(policy, charged.cost)).flatten()
            }));
        }
        for (receipt, correction) in settled {
            let done = correction.apply(&self.store, &receipt).now().ok().unwrap();
            // In an outage, only the local store forgives.
            assert!(done.is_ok() || correction == Correction::Forgive);
            let again =
                open.settle(age, |it| it.is_of(receipt.policy.name()).then_some(Cost::ZERO));
            assert!(again.is_empty(), "the first settlement counts");
            let forgive =
                |it: &OpenCharge| it.is_of(receipt.policy.name()).then_some(Correction::Forgive);
            let is_forgiven = open.settle(age, forgive).is_empty();
            assert_eq!(is_forgiven, correction == Correction::Forgive, "once, also when settled");
        }
    }
}
