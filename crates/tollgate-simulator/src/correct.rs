//! A replica's settlements and renewals.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;
use tollgate_core::{Cost, Receipt, Settlement, Source, Store, StoreError, Timestamp};

use crate::history::PolicyKey;
use crate::limit::{Limit, once_in};
use crate::reached::{FALLBACK, LEASES};
use crate::replica::{Replica, text};

/// A receipt with the cost at which it is settled.
struct Correction<'a> {
    limit: &'a Limit,
    receipt: Receipt,
    policy_key: PolicyKey,
    admitted: Timestamp,
    actual: u64,
    may_be_settled: bool,
    is_settled: bool,
    /// Whether the store remembers that it is settled.
    is_known: bool,
}

impl Replica {
    /// Settles a receipt, and often renews a permit before. "A receipt settles once."
    pub(crate) async fn correct(
        &self,
        limit: &Limit,
        mut receipt: Receipt,
        admitted: Timestamp,
        rng: &mut Rng,
    ) {
        let store = &self.0.with_local;
        let is_permit = receipt.policy.is_concurrency();
        sleep(Duration::from_millis(rng.u64(..100))).await;
        if is_permit && rng.bool() {
            if let Ok(Some(renewed)) = store.renew(&receipt).await {
                receipt = renewed;
                if receipt.source == Source::Local {
                    self.reach(FALLBACK, "renews a permit");
                }
            }
            sleep(Duration::from_millis(rng.u64(..100))).await;
        }
        let cost = receipt.charged.cost.get();
        let actual = match rng.u8(..3) {
            _ if is_permit => 0,
            0 => cost + 1,
            _ => rng.u64(..=cost),
        };
        let policy_key = (receipt.policy.name().to_owned(), text(&receipt.key));
        let (may_be_settled, is_settled, is_known) = (false, false, false);
        let mut correction = Correction {
            limit,
            receipt,
            policy_key,
            admitted,
            actual,
            may_be_settled,
            is_settled,
            is_known,
        };
        let local = (correction.receipt.source == Source::Local).then_some(self.number());
        let is_failure = limit.is_penalty() && actual > cost;
        if is_failure {
            self.world().lock().history.penalties.may_strike(local, &correction.policy_key);
        }
        for _ in 0..rng.u8(1..=2) {
            self.world().lock().history.correct(self.number(), &correction.policy_key);
            let settled = store.settle(&correction.receipt, Cost::new(actual)).await;
            if is_failure && matches!(settled, Ok(Settlement::Charged { units: 1.. })) {
                let penalties = &mut self.world().lock().history.penalties;
                penalties.answered(local, &correction.policy_key, true);
            }
            self.settled(&mut correction, &settled);
        }
        if is_permit && correction.is_known && once_in(rng, 4) {
            let renewed = store.renew(&correction.receipt).await;
            let mut state = self.world().lock();
            if matches!(renewed, Ok(Some(_))) && (local.is_some() || state.history.is_whole()) {
                let violation = format!("a settled permit was renewed: {renewed:?}");
                state.history.fail(correction.policy_key, violation);
            }
        }
    }

    /// Records a settlement's answer, and checks it against the server.
    fn settled(&self, correction: &mut Correction<'_>, settled: &Result<Settlement, StoreError>) {
        let Correction { limit, receipt, policy_key, actual, .. } = &*correction;
        let (number, cost, actual) = (self.number(), receipt.charged.cost.get(), *actual);
        let (is_local, name) = (receipt.source == Source::Local, receipt.policy.name());
        let shares = is_local && self.shares_overflow();
        let mut state = self.world().lock();
        let history = &mut state.history;
        history.corrected(number, policy_key);
        history.counts.corrections += 1;
        if matches!(settled, Ok(Settlement::Repeated)) && !correction.may_be_settled {
            let admitted = correction.admitted;
            let violation = format!(
                "a charge of {name} at {admitted:?} was already settled, by another receipt"
            );
            history.fail(policy_key.clone(), violation);
        }
        // Charges expire, which reduces refunds, and a debt is at most one capacity.
        let fits = match *settled {
            Ok(Settlement::Returned { units }) => actual + units <= cost,
            Ok(Settlement::Charged { units }) => cost + units <= actual,
            _ => true,
        };
        let is_unknown = !is_local
            && settled.as_ref().is_ok_and(|settled| !history.has_settled(receipt.id, *settled));
        if !fits || is_unknown {
            let violation = format!("{cost} units were settled at {actual}: {settled:?}");
            history.fail(policy_key.clone(), violation);
        }
        let counts =
            matches!(settled, Ok(Settlement::Returned { .. } | Settlement::Charged { .. }));
        if counts && correction.is_settled && (is_local || history.is_whole()) {
            history.fail(policy_key.clone(), format!("a charge of {name} was settled twice"));
        }
        // "A refund is as if the units had never been charged."
        let is_exact = match receipt.source {
            Source::Store | Source::Cache => history.is_whole(),
            Source::Local => !shares && !history.reshared.contains(policy_key),
            Source::Lease => false,
        };
        if let (Ok(Settlement::Returned { units }), true) = (settled, is_exact)
            && limit.refunds_exactly()
        {
            history.check_refund(policy_key, cost - actual, *units);
        }
        if let (Ok(settled), true) = (settled, is_local) {
            history.settle_locally(number, policy_key, *settled);
        }
        let branch = match settled {
            Ok(Settlement::Returned { units: 1.. }) if is_local => Some((FALLBACK, "refunds")),
            Ok(Settlement::Charged { units: 1.. }) if is_local => Some((FALLBACK, "owes")),
            Ok(_) if receipt.source == Source::Lease => Some((LEASES, "settles a leased charge")),
            _ => None,
        };
        if let Some((part, branch)) = branch {
            history.reached.enter(part, branch);
        }
        state.note(format_args!(
            "replica {number} {name}/{} {cost}: settled at {actual}: {settled:?}",
            policy_key.1
        ));
        drop(state);
        correction.is_settled |= settled.is_ok();
        correction.is_known |= counts;
        correction.may_be_settled |=
            settled.as_ref().err().is_none_or(StoreError::may_have_charged);
    }

    fn reach(&self, part: &'static str, branch: &str) {
        self.world().lock().history.reached.enter(part, branch);
    }
}
