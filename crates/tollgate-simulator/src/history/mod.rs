//! Records a run: the answers that replicas got, the changes that the servers made, their
//! [`faults`], and the [`blocks`] that replicas lease. [`checks`] compares both sides.

mod blocks;
mod checks;
mod faults;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Key, ReceiptId, Settlement, Timestamp};
use tollgate_redis::simulation::CommandError;

use self::blocks::Block;
pub(crate) use self::checks::Log;
use self::faults::Break;
use crate::balance::Account;
use crate::penalties::Penalties;
use crate::reached::{Reached, TOPOLOGY};
use crate::server::{Change, Done, Settled};

/// A policy and a key, by their names.
pub(crate) type PolicyKey = (String, String);

#[derive(Debug, Default)]
pub(crate) struct History {
    /// Readable names by Redis key.
    labels: BTreeMap<Vec<u8>, String>,
    charges: BTreeMap<(PolicyKey, u64), Charges>,
    /// The receipts of requests that are settled, with the servers' answers.
    receipts: BTreeMap<u128, Vec<Settlement>>,
    /// Requests with a unique cost, by that cost.
    asked: BTreeMap<u64, Asked>,
    blocks: BTreeMap<(PolicyKey, u64), Block>,
    /// The units that keys' charges have taken. Local stores have an account for each replica.
    accounts: BTreeMap<(Option<usize>, PolicyKey), Account>,
    pub(crate) penalties: Penalties,
    /// For how long replicas remember denials.
    remembered: Duration,
    /// Whether a server ran out of memory, and the keys with a changed local share.
    pub(crate) was_full: bool,
    pub(crate) reshared: BTreeSet<PolicyKey>,
    /// When the server last corrected a key, by replica, and when it last got leased units back.
    freed: BTreeMap<PolicyKey, BTreeMap<Option<usize>, Instant>>,
    /// Each replica's own corrections of a key.
    correcting: BTreeMap<(usize, PolicyKey), Correcting>,
    /// Keys that were refunded or reset: they have admitted more than their limit.
    corrected: BTreeSet<PolicyKey>,
    /// Units that were charged or spent, and when, in their server's time.
    admitted: BTreeMap<PolicyKey, Vec<(Timestamp, u64)>>,
    /// The charges that servers executed, in the time that passed for servers.
    charged: BTreeMap<PolicyKey, Vec<(Instant, u64)>>,
    /// The same for all local fallbacks together, by the clock that they share.
    local: BTreeMap<PolicyKey, Vec<(Timestamp, u64)>>,
    settled_locally: BTreeSet<PolicyKey>,
    /// For each replica and server, when answers arrived, and their commands' transit times.
    transits: BTreeMap<(usize, usize), VecDeque<(Instant, Duration)>>,
    /// Policies that have had several versions.
    pub(crate) changed: BTreeSet<String>,
    /// When the server last lost data, or its clock was wrong.
    disturbed: Option<Instant>,
    /// For how long the replicas' timers stopped, because their machines were suspended.
    slept: Duration,
    breaks: Vec<Break>,
    /// The number of current faults that change clock rates or split replicas between servers, and
    /// whether there ever was such a fault.
    slews: u64,
    is_uneven: bool,
    /// How often each server's clock started or stopped to run slower than the replicas' clocks.
    lags: BTreeMap<usize, usize>,
    pub(crate) violation: Option<Violation>,
    pub(crate) counts: Counts,
    pub(crate) reached: Reached,
}

/// The number of charges with the same policy, key and cost.
#[derive(Debug, Default)]
struct Charges {
    /// Admitted according to the replicas, and possibly charged.
    admitted: u64,
    maybe: u64,
    /// Executed by servers, and refunded because another slot denied the request.
    executed: u64,
    refunded: u64,
}

#[derive(Debug)]
struct Asked {
    replica: usize,
    deadline: Instant,
}

/// A replica's corrections of a key: the number in flight, and when the last one ended.
#[derive(Debug, Default)]
struct Correcting {
    in_flight: usize,
    ended: Option<Instant>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The policy and the key.
    pub(crate) policy_key: PolicyKey,
    pub(crate) text: String,
}

/// Numbers of requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that the server, the deny cache, a lease and the local fallback admitted or denied.
    pub decided: [u64; 4],
    /// Requests without a decision that were not charged.
    pub not_charged: u64,
    /// Requests without a decision that may have been charged.
    pub maybe_charged: u64,
    /// Settlements, renewals and resets.
    pub corrections: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = self.decided.iter_mut().zip(other.decided);
        pairs.for_each(|(sum, count)| *sum += count);
        self.not_charged += other.not_charged;
        self.maybe_charged += other.maybe_charged;
        self.corrections += other.corrections;
    }
}

/// A request's result, as its replica knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Admitted,
    Denied,
    NotCharged,
    /// Includes requests that the caller cancelled.
    MaybeCharged,
}

/// The policy under which each request has a unique cost.
pub(crate) const LEDGER: &str = "ledger";
/// Timers are up to a millisecond late.
const TICK: Duration = Duration::from_millis(2);

impl History {
    /// Creates a record for replicas that remember denials for this long.
    pub(crate) fn new(remembered: Duration) -> Self {
        Self { remembered, ..Self::default() }
    }

    /// Sets a key's readable name.
    pub(crate) fn label(&mut self, redis_key: &[u8], label: &str) {
        let end = redis_key.iter().position(|byte| *byte == b'}').expect("a subject");
        self.labels.insert(redis_key[..=end].to_vec(), label.to_owned());
    }

    fn policy_key(&self, policy: &str, key: &Key) -> Option<PolicyKey> {
        let label = self.labels.get(&*key.as_bytes())?;
        Some((policy.to_owned(), label.clone()))
    }

    pub(crate) fn fail(&mut self, policy_key: PolicyKey, violation: String) {
        self.violation.get_or_insert(Violation { policy_key, text: violation });
    }

    /// A replica's request has this receipt.
    pub(crate) fn issued(&mut self, id: ReceiptId) {
        self.receipts.insert(id.0, Vec::new());
    }

    /// Whether a server settled a receipt with this answer.
    pub(crate) fn has_settled(&self, id: ReceiptId, settlement: Settlement) -> bool {
        self.receipts.get(&id.0).is_some_and(|settlements| settlements.contains(&settlement))
    }

    /// A request with a unique cost was made.
    pub(crate) fn asked(&mut self, cost: u64, replica: usize, deadline: Instant) {
        self.asked.insert(cost, Asked { replica, deadline });
    }

    /// Answers with a server's time arrived at a replica.
    pub(crate) fn arrived(&mut self, way: (usize, usize), transit: Duration) {
        self.transits.entry(way).or_default().push_back((Instant::now(), transit));
    }

    /// Returns a key's subject in Redis, and its readable name.
    pub(crate) fn subject(&self, index: usize) -> (Vec<u8>, String) {
        let (subject, label) = self.labels.iter().nth(index).expect("a key");
        (subject.clone(), label.clone())
    }

    /// A server executed a replica's command. Returns a trace line for calls that changed or refused
    /// something.
    pub(crate) fn executed(
        &mut self,
        (replica, server): (usize, usize),
        name: &str,
        done: &Done,
    ) -> Option<String> {
        if !name.starts_with("EVAL") {
            return None;
        }
        if let Err(CommandError::Server(text)) = &done.answer {
            let word = text.split(' ').next().unwrap_or_default();
            self.reached.enter(TOPOLOGY, word);
        }
        let mut line = format!("server {server}  {name} of replica {replica}:");
        match (&done.answer, done.at) {
            (Err(error), _) => {
                let _ = write!(line, " {error}");
            }
            (Ok(_), None) => line.push_str(" late"),
            (Ok(_), Some(_)) => {}
        }
        let is_plain = done.at.is_some();
        let start = line.len();
        for change in &done.changes {
            self.change((replica, server), change, done.at.unwrap_or_default(), &mut line);
        }
        (!is_plain || line.len() > start).then_some(line)
    }

    fn change(&mut self, way: (usize, usize), change: &Change, at: Timestamp, line: &mut String) {
        let (replica, server) = way;
        let (policy, key) = match change {
            Change::Charged { policy, key, .. }
            | Change::Freed { policy, key, .. }
            | Change::Granted { policy, key, .. }
            | Change::Returned { policy, key, .. } => (policy, key),
        };
        // The store also tests its permissions with other keys.
        let Some(policy_key) = self.policy_key(policy, key) else { return };
        let _ = write!(line, " {}/{}", policy_key.0, policy_key.1);
        match *change {
            Change::Charged { cost, .. } => {
                let _ = write!(line, " charged {cost}");
                if policy_key.0 == LEDGER {
                    self.check_deadline(way, &policy_key, cost);
                }
                let now = self.now();
                let charged = self.charged.entry(policy_key.clone()).or_default();
                charged.push((now, cost));
                self.admit(policy_key.clone(), at, cost);
                self.charges.entry((policy_key, cost)).or_default().executed += 1;
            }
            Change::Freed { settled, .. } => {
                line.push_str(" corrected");
                if let Some(Settled { id, settlement, refund }) = settled {
                    // The store issues its own receipts for requests in several slots.
                    match (self.receipts.get_mut(&id.0), refund) {
                        (Some(settlements), _) => {
                            settlements.push(settlement);
                            self.account_mut(None, &policy_key).settle(settlement);
                        }
                        (None, Some(cost)) => {
                            self.charges.entry((policy_key.clone(), cost)).or_default().refunded +=
                                1;
                        }
                        (None, None) => {}
                    }
                }
                self.corrected.insert(policy_key.clone());
                self.freed.entry(policy_key).or_default().insert(Some(replica), Instant::now());
            }
            Change::Granted { id, units, until, .. } => {
                let _ = write!(line, " leased {units}");
                // An old master's blocks are lost when it is demoted.
                let now = self.now();
                let breaks = self.breaks(&policy_key).filter(|it| it.until <= now).count();
                let (granted_at, spent, returned, lags) = (at, 0, None, self.lags(server));
                let block =
                    Block { server, id, units, granted_at, until, spent, returned, breaks, lags };
                self.blocks.insert((policy_key, at.as_micros()), block);
            }
            Change::Returned { id, used, .. } => {
                let _ = write!(line, " spent {used}");
                self.freed.entry(policy_key.clone()).or_default().insert(None, Instant::now());
                let mut blocks = self.blocks.iter_mut();
                let found =
                    blocks.find(|((other, _), block)| *other == policy_key && block.id == id);
                if let Some((_, block)) = found {
                    block.returned.get_or_insert(used);
                }
            }
        }
    }

    /// A replica's request has ended.
    pub(crate) fn told(&mut self, policy_key: PolicyKey, cost: u64, told: Told) {
        let is_ledger = policy_key.0 == LEDGER;
        let charges = self.charges.entry((policy_key.clone(), cost)).or_default();
        // Unlike other costs, this cost belongs to a single request.
        if is_ledger && told == Told::NotCharged && charges.executed > charges.refunded {
            return self
                .fail(policy_key, format!("{cost} units are charged, and no refund is known"));
        }
        match told {
            Told::Admitted => charges.admitted += 1,
            Told::MaybeCharged => charges.maybe += 1,
            Told::Denied | Told::NotCharged => {}
        }
        let account = self.account_mut(None, &policy_key);
        match told {
            Told::Admitted => account.known += cost,
            Told::MaybeCharged => account.maybe += cost,
            Told::Denied | Told::NotCharged => {}
        }
    }

    /// Returns what a key's charges have taken, in a replica's local store or on servers.
    pub(crate) fn account(&self, local: Option<usize>, policy_key: &PolicyKey) -> Account {
        self.accounts.get(&(local, policy_key.clone())).copied().unwrap_or_default()
    }

    pub(crate) fn account_mut(
        &mut self,
        local: Option<usize>,
        policy_key: &PolicyKey,
    ) -> &mut Account {
        self.accounts.entry((local, policy_key.clone())).or_default()
    }

    /// Returns the charges that servers executed, in the time that passed for servers.
    pub(crate) fn charged(&self, policy: &str, label: &str) -> Vec<(Instant, u64)> {
        self.charged.get(&(policy.to_owned(), label.to_owned())).cloned().unwrap_or_default()
    }

    /// A server charged units at this time by its clock, or a replica spent leased units.
    pub(crate) fn admit(&mut self, policy_key: PolicyKey, at: Timestamp, units: u64) {
        self.admitted.entry(policy_key).or_default().push((at, units));
    }

    /// A replica's local fallback admitted a charge.
    pub(crate) fn admit_locally(
        &mut self,
        replica: usize,
        policy_key: PolicyKey,
        at: Timestamp,
        units: u64,
    ) {
        self.account_mut(Some(replica), &policy_key).known += units;
        self.local.entry(policy_key).or_default().push((at, units));
    }

    /// A local fallback settled a charge. Its key may have admitted more than the limit.
    pub(crate) fn settle_locally(
        &mut self,
        replica: usize,
        policy_key: &PolicyKey,
        settled: Settlement,
    ) {
        self.account_mut(Some(replica), policy_key).settle(settled);
        self.settled_locally.insert(policy_key.clone());
    }

    /// A replica starts to settle, renew or reset.
    pub(crate) fn correct(&mut self, replica: usize, policy_key: &PolicyKey) {
        self.correcting.entry((replica, policy_key.clone())).or_default().in_flight += 1;
    }

    pub(crate) fn corrected(&mut self, replica: usize, policy_key: &PolicyKey) {
        let correcting = self.correcting.entry((replica, policy_key.clone())).or_default();
        correcting.in_flight -= 1;
        correcting.ended = Some(Instant::now());
    }
}
