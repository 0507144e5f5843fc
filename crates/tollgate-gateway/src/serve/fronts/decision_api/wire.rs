//! The JSON of requests and answers. A test compares it with `openapi.json`.

use serde::{Deserialize, Serialize};
use tollgate::Policy;
use tollgate::key::Key;
use tollgate::layer::Verdicts;
use tollgate::limiter::Refusal;
use tollgate::policy::Cost;
use tollgate::store::{
    Charged, Decision, Micros, Outcome, Receipt, ReceiptId, Settlement, Source, Timestamp,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Decide {
    pub(super) charges: Vec<AskedCharge>,
    /// In seconds.
    pub(super) wait: Option<f64>,
    #[serde(default)]
    pub(super) dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedCharge {
    pub(super) policy: String,
    key: String,
    #[serde(default = "one")]
    pub(super) cost: u64,
}

const fn one() -> u64 {
    1
}

impl AskedCharge {
    pub(super) fn key(&self) -> Key {
        Key::from(&*self.key)
    }
}

#[derive(Serialize)]
pub(super) struct Decided {
    allowed: bool,
    /// In seconds; `null` if the request is allowed or never can be.
    retry_after: Option<f64>,
    policies: Vec<DecidedPolicy>,
    receipts: Vec<WireReceipt>,
}

#[derive(Serialize)]
struct DecidedPolicy {
    policy: String,
    allowed: bool,
    limit: u64,
    remaining: u64,
    reset_after: f64,
    retry_after: Option<f64>,
}

impl DecidedPolicy {
    fn new(policy: &Policy, decision: &Decision) -> Self {
        Self {
            policy: policy.name().to_owned(),
            allowed: !decision.denies(),
            limit: decision.limit,
            remaining: decision.remaining,
            reset_after: seconds(decision.reset_after),
            retry_after: decision.retry_after().map(seconds),
        }
    }
}

fn decisions(verdicts: &Verdicts) -> Vec<DecidedPolicy> {
    let decided = verdicts.iter().filter(|it| it.decision().outcome != Outcome::Undecided);
    decided.map(|it| DecidedPolicy::new(it.policy(), it.decision())).collect()
}

impl Decided {
    pub(super) fn allowed(verdicts: &Verdicts, receipts: &[Receipt], asked: &Decide) -> Self {
        let receipt = |receipt| WireReceipt::of(receipt, &asked.charges);
        Self {
            allowed: true,
            retry_after: None,
            policies: decisions(verdicts),
            receipts: receipts.iter().filter_map(receipt).collect(),
        }
    }

    pub(super) fn denied(refusal: &Refusal) -> Self {
        let retry_after = refusal.retry_after().map(|wait| wait.as_secs_f64());
        let policies = decisions(refusal.verdicts());
        Self { allowed: false, retry_after, policies, receipts: Vec::new() }
    }

    pub(super) fn dry<'a>(decisions: impl Iterator<Item = (&'a Policy, Decision)>) -> Self {
        let mut is_possible = true;
        let policies: Vec<_> = decisions
            .map(|(policy, decision)| {
                is_possible &= decision.outcome != Outcome::ExceedsCapacity;
                DecidedPolicy::new(policy, &decision)
            })
            .collect();
        let allowed = policies.iter().all(|policy| policy.allowed);
        let waits = policies.iter().filter_map(|policy| policy.retry_after);
        let retry_after = waits.max_by(f64::total_cmp).filter(|_| is_possible);
        Self { allowed, retry_after, policies, receipts: Vec::new() }
    }
}

/// A charge that can be corrected. Programs only return it, so members from a later version are
/// ignored.
#[derive(Serialize, Deserialize)]
pub(super) struct WireReceipt {
    pub(super) policy: String,
    key: String,
    id: String,
    cost: u64,
    charged_at: u64,
    leaves_at: u64,
    /// Absent in receipts from earlier versions.
    lapses_at: Option<u64>,
    local: bool,
}

impl WireReceipt {
    /// `None` for a policy that the request has not named.
    fn of(receipt: &Receipt, asked: &[AskedCharge]) -> Option<Self> {
        let policy = receipt.policy.name();
        let charge = asked.iter().find(|it| it.policy == policy && it.key() == receipt.key)?;
        let Charged { cost, charged_at, leaves_at, lifetime, .. } = receipt.charged;
        Some(Self {
            policy: policy.to_owned(),
            key: charge.key.clone(),
            id: format!("{:032x}", receipt.id.0),
            cost: cost.get(),
            charged_at: charged_at.as_micros(),
            leaves_at: leaves_at.as_micros(),
            lapses_at: Some((charged_at + lifetime).as_micros()),
            local: receipt.source == Source::Local,
        })
    }

    pub(super) fn key(&self) -> Key {
        Key::from(&*self.key)
    }

    pub(super) fn read(&self, policy: &Policy) -> Result<Receipt, &'static str> {
        // `from_str_radix` accepts a sign.
        let is_id = self.id.len() == 32 && !self.id.starts_with('+');
        let id = u128::from_str_radix(&self.id, 16).ok().filter(|_| is_id);
        let charged_at = Timestamp::from_micros(self.charged_at);
        let charged = Charged::new(policy, Cost::new(self.cost), charged_at);
        let lapses_at = self.lapses_at.map(Timestamp::from_micros);
        let lifetime = lapses_at.map_or(charged.lifetime, |at| at.since(charged_at));
        let lifetime = lifetime.min(Receipt::LIFETIME);
        let leaves_at = Timestamp::from_micros(self.leaves_at);
        Ok(Receipt {
            id: ReceiptId(id.ok_or("`receipt.id` must be 32 hex digits.")?),
            source: if self.local { Source::Local } else { Source::Store },
            policy: policy.clone(),
            key: self.key(),
            charged: Charged { leaves_at, lifetime, ..charged },
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settle {
    pub(super) receipt: WireReceipt,
    pub(super) actual: u64,
}

#[derive(Serialize)]
pub(super) struct Settled {
    settlement: &'static str,
    units: u64,
}

impl From<Settlement> for Settled {
    fn from(settlement: Settlement) -> Self {
        Self { settlement: settlement.name(), units: settlement.units() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Block {
    pub(super) key: String,
    pub(super) seconds: f64,
}

#[derive(Serialize)]
pub(super) struct Blocked {
    /// How long the key is blocked from now on; `null` if a full memory store has no room for it.
    pub(super) seconds: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "a microsecond is lost after 285 years")]
fn seconds(span: Micros) -> f64 {
    span.get() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate::Quota;

    use super::*;

    /// An override of the window between the charge and the settlement.
    #[test]
    fn receipt_keeps_its_lifetime() {
        let [short, long] = [60, 3_600].map(|seconds| {
            let quota = Quota::new(10, Duration::from_secs(seconds));
            Policy::sliding_window_log("p", quota).unwrap()
        });
        let charge = r#"{"charges": [{"policy": "p", "key": "k"}]}"#;
        let asked: Decide = serde_json::from_str(charge).unwrap();
        for (charged_under, settled_under) in [(&short, &long), (&long, &short)] {
            let charged_at = Timestamp::from_micros(1_764_000_000_000_000);
            let receipt = Receipt {
                id: ReceiptId(7),
                source: Source::Store,
                policy: charged_under.clone(),
                key: Key::from("k"),
                charged: Charged::new(charged_under, Cost::ONE, charged_at),
            };
            let sent = WireReceipt::of(&receipt, &asked.charges).unwrap();
            let mut sent = serde_json::to_value(&sent).unwrap();
            let read = |sent: &serde_json::Value| {
                let wire: WireReceipt = serde_json::from_value(sent.clone()).unwrap();
                wire.read(settled_under).unwrap()
            };
            let expected = Receipt { policy: settled_under.clone(), ..receipt.clone() };
            assert_eq!(read(&sent), expected);
            // A program cannot extend it beyond the longest lifetime.
            sent["lapses_at"] = u64::MAX.into();
            assert_eq!(read(&sent).lifetime(), Receipt::LIFETIME);
            // A receipt from an earlier version.
            sent.as_object_mut().unwrap().remove("lapses_at");
            assert_eq!(read(&sent).lifetime(), Receipt::lifetime_under(settled_under));
            // A receipt from a later version.
            sent["shard"] = 7.into();
            assert_eq!(read(&sent).lifetime(), Receipt::lifetime_under(settled_under));
        }
    }
}
