//! Records a run, and checks it against `docs/guarantees.md`.
//!
//! The simulation knows both sides: the answers that replicas got, and the changes that the server
//! made. Each check below quotes the promise that it verifies. The checks are in one file because they
//! share the record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Key, ReceiptId, Settlement, Timestamp};
use tollgate_redis::simulation::CommandError;

use crate::balance::Account;
use crate::penalties::Penalties;
use crate::reached::{Reached, TOPOLOGY};
use crate::server::{Change, Done, Settled};

/// A policy and a key, by their names.
pub(crate) type Place = (String, String);

#[derive(Debug, Default)]
pub(crate) struct History {
    /// Readable names by Redis key.
    labels: BTreeMap<Vec<u8>, String>,
    charges: BTreeMap<(Place, u64), Charges>,
    /// The receipts of requests that are settled, with the servers' answers.
    receipts: BTreeMap<u128, Vec<Settlement>>,
    /// Requests with a unique cost, by that cost.
    asked: BTreeMap<u64, Asked>,
    blocks: BTreeMap<(Place, u64), Block>,
    /// The units that keys' charges have taken. Local stores have an account for each replica.
    accounts: BTreeMap<(Option<usize>, Place), Account>,
    pub(crate) penalties: Penalties,
    /// For how long replicas remember denials.
    remembered: Duration,
    /// Whether a server ran out of memory, and the keys with a changed local share.
    pub(crate) was_full: bool,
    pub(crate) reshared: BTreeSet<Place>,
    /// When the server last corrected a key, by replica, and when it last got leased units back.
    freed: BTreeMap<Place, BTreeMap<Option<usize>, Instant>>,
    /// Each replica's own corrections of a key.
    correcting: BTreeMap<(usize, Place), Correcting>,
    /// Keys that were refunded or reset: they have admitted more than their limit.
    corrected: BTreeSet<Place>,
    /// Units that were charged or spent, and when, in their server's time.
    admitted: BTreeMap<Place, Vec<(Timestamp, u64)>>,
    /// The charges that servers executed, in the time that passed for servers.
    charged: BTreeMap<Place, Vec<(Instant, u64)>>,
    /// The same for all local fallbacks together, by the clock that they share.
    local: BTreeMap<Place, Vec<(Timestamp, u64)>>,
    settled_locally: BTreeSet<Place>,
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

/// A leased block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) server: usize,
    id: u64,
    units: u64,
    pub(crate) granted_at: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) spent: u64,
    /// The spent units that were reported to the server.
    pub(crate) returned: Option<u64>,
    breaks: usize,
}

/// A replica's corrections of a key: the number in flight, and when the last one ended.
#[derive(Debug, Default)]
struct Correcting {
    in_flight: usize,
    ended: Option<Instant>,
}

/// A server lost data, or its clock stepped.
#[derive(Clone, Debug)]
struct Break {
    /// How many more quotas servers may admit.
    quotas: u64,
    since: Instant,
    /// Later than `since` if replicas reach an old master until this instant, or a slot moved.
    until: Instant,
    /// The key, if only one is concerned.
    label: Option<String>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The policy and the key.
    pub(crate) place: Place,
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

/// A sliding window log's limit.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) name: String,
    pub(crate) limit: u64,
    /// What all local stores admit together.
    pub(crate) local: u64,
    /// In microseconds.
    pub(crate) window: u64,
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

    fn place(&self, policy: &str, key: &Key) -> Option<Place> {
        let label = self.labels.get(&*key.as_bytes())?;
        Some((policy.to_owned(), label.clone()))
    }

    pub(crate) fn fail(&mut self, place: Place, violation: String) {
        self.violation.get_or_insert(Violation { place, text: violation });
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

    /// The server's data or clock may differ from what replicas remember.
    pub(crate) fn disturb(&mut self) {
        self.disturbed = Some(Instant::now());
        self.is_uneven = true;
    }

    /// All machines except the servers' are suspended.
    pub(crate) fn sleep(&mut self, lasts: Duration) {
        self.disturb();
        // A failover's timer stops, too.
        let now = self.now();
        let lasting = self.breaks.iter_mut().filter(|it| it.until > now);
        lasting.for_each(|it| it.until += lasts);
        self.slept += lasts;
    }

    /// The time that has passed for servers.
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.slept
    }

    /// A server lost data, or its clock stepped. It may admit this many more quotas.
    pub(crate) fn break_off(&mut self, quotas: u64) {
        self.disturb();
        let (since, until) = (self.now(), self.now());
        self.breaks.push(Break { quotas, since, until, label: None });
    }

    /// For this long, some replicas reach the old master instead of the new one.
    pub(crate) fn split(&mut self, lasts: Duration) {
        self.slew(true);
        let (since, until) = (self.now(), self.now() + lasts);
        self.breaks.push(Break { quotas: 1, since, until, label: None });
    }

    /// A key has moved to a server with another clock, at some time since this instant.
    pub(crate) fn break_key(&mut self, label: &str, since: Instant) {
        self.disturb();
        let (until, label) = (self.now(), Some(label.to_owned()));
        self.breaks.push(Break { quotas: 1, since, until, label });
    }

    /// Returns the breaks that affect a key.
    fn breaks<'a>(&'a self, place: &Place) -> impl Iterator<Item = &'a Break> + use<'a> {
        let label = place.1.clone();
        self.breaks.iter().filter(move |it| it.label.as_ref().is_none_or(|other| *other == label))
    }

    /// Returns a key's subject in Redis, and its readable name.
    pub(crate) fn subject(&self, index: usize) -> (Vec<u8>, String) {
        let (subject, label) = self.labels.iter().nth(index).expect("a key");
        (subject.clone(), label.clone())
    }

    /// A fault that changes clock rates, or splits replicas between servers, starts or stops.
    pub(crate) fn slew(&mut self, starts: bool) {
        self.disturb();
        self.slews = if starts { self.slews + 1 } else { self.slews - 1 };
    }

    pub(crate) const fn is_slewed(&self) -> bool {
        self.slews > 0
    }

    /// Whether servers still have all their writes.
    pub(crate) const fn is_whole(&self) -> bool {
        self.breaks.is_empty()
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
        let Some(place) = self.place(policy, key) else { return };
        let _ = write!(line, " {}/{}", place.0, place.1);
        match *change {
            Change::Charged { cost, .. } => {
                let _ = write!(line, " charged {cost}");
                if place.0 == LEDGER {
                    self.check_deadline(way, &place, cost);
                }
                let now = self.now();
                let charged = self.charged.entry(place.clone()).or_default();
                charged.push((now, cost));
                self.admit(place.clone(), at, cost);
                self.charges.entry((place, cost)).or_default().executed += 1;
            }
            Change::Freed { settled, .. } => {
                line.push_str(" corrected");
                if let Some(Settled { id, settlement, refund }) = settled {
                    // The store issues its own receipts for requests in several slots.
                    match (self.receipts.get_mut(&id.0), refund) {
                        (Some(settlements), _) => {
                            settlements.push(settlement);
                            self.account_mut(None, &place).settle(settlement);
                        }
                        (None, Some(cost)) => {
                            self.charges.entry((place.clone(), cost)).or_default().refunded += 1;
                        }
                        (None, None) => {}
                    }
                }
                self.corrected.insert(place.clone());
                self.freed.entry(place).or_default().insert(Some(replica), Instant::now());
            }
            Change::Granted { id, units, until, .. } => {
                let _ = write!(line, " leased {units}");
                let breaks = self.breaks(&place).count();
                let (granted_at, spent, returned) = (at, 0, None);
                let block = Block { server, id, units, granted_at, until, spent, returned, breaks };
                self.blocks.insert((place, at.as_micros()), block);
            }
            Change::Returned { id, used, .. } => {
                let _ = write!(line, " spent {used}");
                self.freed.entry(place.clone()).or_default().insert(None, Instant::now());
                let mut blocks = self.blocks.iter_mut();
                let found = blocks.find(|((other, _), block)| *other == place && block.id == id);
                if let Some((_, block)) = found {
                    block.returned.get_or_insert(used);
                }
            }
        }
    }

    /// "Redis executes no call after its deadline. Processes know Redis' clock to within the fastest
    /// transit time of the last 10 s."
    fn check_deadline(&mut self, way: (usize, usize), place: &Place, cost: u64) {
        let Some(asked) = self.asked.get(&cost) else {
            let violation = format!("the server charged {cost} units, which no request costs");
            return self.fail(place.clone(), violation);
        };
        if self.is_uneven {
            return;
        }
        let now = Instant::now();
        let transits = self.transits.get(&way).into_iter().flatten().rev();
        let recent = transits.take_while(|(at, _)| now - *at < Duration::from_secs(10));
        let Some(fastest) = recent.map(|(_, transit)| *transit).min() else { return };
        if now > asked.deadline + fastest + TICK {
            let late = now - asked.deadline;
            let replica = asked.replica;
            let violation = format!(
                "the request of replica {replica} for {cost} units was charged {late:?} after its \
                 deadline, and the fastest transit took {fastest:?}"
            );
            self.fail(place.clone(), violation);
        }
    }

    /// A replica's request has ended.
    pub(crate) fn told(&mut self, place: Place, cost: u64, told: Told) {
        let is_ledger = place.0 == LEDGER;
        let charges = self.charges.entry((place.clone(), cost)).or_default();
        // Unlike other costs, this cost belongs to a single request.
        if is_ledger && told == Told::NotCharged && charges.executed > charges.refunded {
            return self.fail(place, format!("{cost} units are charged, and no refund is known"));
        }
        match told {
            Told::Admitted => charges.admitted += 1,
            Told::MaybeCharged => charges.maybe += 1,
            Told::Denied | Told::NotCharged => {}
        }
        let account = self.account_mut(None, &place);
        match told {
            Told::Admitted => account.known += cost,
            Told::MaybeCharged => account.maybe += cost,
            Told::Denied | Told::NotCharged => {}
        }
    }

    /// Returns what a key's charges have taken, in a replica's local store or on servers.
    pub(crate) fn account(&self, local: Option<usize>, place: &Place) -> Account {
        self.accounts.get(&(local, place.clone())).copied().unwrap_or_default()
    }

    pub(crate) fn account_mut(&mut self, local: Option<usize>, place: &Place) -> &mut Account {
        self.accounts.entry((local, place.clone())).or_default()
    }

    /// Returns the unspent units of a key's blocks that were not reported.
    pub(crate) fn lost_units(&self, place: &Place) -> u64 {
        let blocks = self.blocks.iter().filter(|((other, _), _)| other == place);
        let lost = blocks.filter(|(_, block)| block.returned.is_none());
        lost.map(|(_, block)| block.units - block.spent).sum()
    }

    /// Returns the blocks whose server had all its data and the right time since.
    pub(crate) fn whole_blocks(&self) -> impl Iterator<Item = (&Place, &Block)> {
        let is_whole = |place: &Place, block: &Block| block.breaks == self.breaks(place).count();
        let blocks = self.blocks.iter().map(|((place, _), block)| (place, block));
        blocks.filter(move |(place, block)| is_whole(place, block))
    }

    /// Returns the charges that servers executed, in the time that passed for servers.
    pub(crate) fn charged(&self, policy: &str, label: &str) -> Vec<(Instant, u64)> {
        self.charged.get(&(policy.to_owned(), label.to_owned())).cloned().unwrap_or_default()
    }

    /// A server charged units at this time by its clock, or a replica spent leased units.
    pub(crate) fn admit(&mut self, place: Place, at: Timestamp, units: u64) {
        self.admitted.entry(place).or_default().push((at, units));
    }

    /// A replica's local fallback admitted a charge.
    pub(crate) fn admit_locally(
        &mut self,
        replica: usize,
        place: Place,
        at: Timestamp,
        units: u64,
    ) {
        self.account_mut(Some(replica), &place).known += units;
        self.local.entry(place).or_default().push((at, units));
    }

    /// A local fallback settled a charge. Its key may have admitted more than the limit.
    pub(crate) fn settle_locally(&mut self, replica: usize, place: &Place, settled: Settlement) {
        self.account_mut(Some(replica), place).settle(settled);
        self.settled_locally.insert(place.clone());
    }

    /// Returns the server that granted a block at this time.
    pub(crate) fn granter(&self, place: &Place, granted_at: Timestamp) -> Option<usize> {
        let block = self.blocks.get(&(place.clone(), granted_at.as_micros()))?;
        Some(block.server)
    }

    /// A replica spent units of the block that was granted at `granted_at`. "Units count at the
    /// latest instant at which they may be spent", also while clocks are slewed.
    pub(crate) fn spent(
        &mut self,
        place: Place,
        granted_at: Timestamp,
        units: u64,
        server: Timestamp,
    ) {
        let breaks = self.breaks(&place).count();
        let block = self.blocks.get_mut(&(place.clone(), granted_at.as_micros()));
        let Some(block) = block else {
            return self.fail(place, format!("{units} units were spent, and no block has them"));
        };
        block.spent += units;
        let (is_over, until) = (server >= block.until && block.breaks == breaks, block.until);
        let (spent, all) = (block.spent, block.units);
        self.account_mut(None, &place).known += units;
        if is_over {
            let violation =
                format!("{units} leased units were spent at {server:?}, after {until:?}");
            self.fail(place, violation);
        } else if spent > all {
            self.fail(place, format!("{spent} units were spent of a block of {all}"));
        }
    }

    /// A replica starts to settle, renew or reset.
    pub(crate) fn correct(&mut self, replica: usize, place: &Place) {
        self.correcting.entry((replica, place.clone())).or_default().in_flight += 1;
    }

    pub(crate) fn corrected(&mut self, replica: usize, place: &Place) {
        let correcting = self.correcting.entry((replica, place.clone())).or_default();
        correcting.in_flight -= 1;
        correcting.ended = Some(Instant::now());
    }

    /// Whether the server may differ from what this replica remembers of a key: "until the process
    /// sees another process's reset, refund or raised quota, plus up to 0.2 s while NTP slews". A
    /// replica forgets before its own corrections, and again when it has the answer.
    pub(crate) fn may_be_old(&self, place: &Place, replica: usize, timeout: Duration) -> bool {
        let now = Instant::now();
        let since = |at: Instant, bound: Duration| now - at <= bound + TICK;
        let own = self.correcting.get(&(replica, place.clone()));
        let is_own_seen = |at: Instant| {
            own.is_some_and(|own| own.in_flight == 0 && own.ended >= Some(at))
                || !since(at, timeout)
        };
        let freed = self.freed.get(place).into_iter().flatten();
        self.changed.contains(&place.0)
            || self.is_slewed()
            || self.disturbed.is_some_and(|at| since(at, self.remembered * 6 / 5))
            || freed.into_iter().any(|(by, at)| match by {
                Some(by) if *by == replica => !is_own_seen(*at),
                _ => since(*at, self.remembered),
            })
    }

    /// Compares both sides after the run, and the admitted units with the limits.
    pub(crate) fn check(&mut self, logs: &[Log]) {
        let mut violations = Vec::new();
        // "The call is never repeated. `Not charged` means that Redis refused the call or never
        // received it."
        for ((place, cost), charges) in &self.charges {
            let Charges { admitted, maybe, executed, refunded } = *charges;
            if executed < admitted || executed > admitted + maybe + refunded {
                let violation = format!(
                    "servers charged {executed} requests for {cost} and refunded {refunded}, and \
                     replicas know of {admitted}, and of {maybe} that may be charged"
                );
                violations.push((place.clone(), violation));
            }
        }
        for ((place, _), block) in &self.blocks {
            if block.breaks == self.breaks(place).count()
                && block.returned.is_some_and(|used| used < block.spent)
            {
                violations.push((place.clone(), format!("too few units were reported: {block:?}")));
            }
        }
        for Log { name, limit, local, window } in logs {
            let is_changed = self.changed.contains(name);
            let is_one = |place: &Place| place.0 == *name && !is_changed;
            let places = self.admitted.keys().filter(|place| is_one(place));
            for place in places.filter(|place| !self.corrected.contains(*place)) {
                let breaks: Vec<_> = self.breaks(place).collect();
                let found = if breaks.is_empty() {
                    excess(&mut self.admitted[place].clone(), *limit, *window)
                } else {
                    let charged = self.charged.get(place).map_or(&[][..], Vec::as_slice);
                    excess_beside(charged, &breaks, *limit, *window)
                };
                violations.extend(found.map(|found| (place.clone(), found)));
            }
            // "All processes together allow at most a quota, or one unit each."
            let settled = &self.settled_locally;
            let beside = self.local.iter_mut().filter(|(place, _)| is_one(place));
            for (place, admitted) in beside.filter(|(place, _)| !settled.contains(*place)) {
                let found = excess(admitted, *local, *window);
                violations.extend(found.map(|found| (place.clone(), format!("local: {found}"))));
            }
        }
        if let Some((place, violation)) = violations.into_iter().next() {
            self.fail(place, violation);
        }
    }
}

/// Describes a window in which servers charged more than the limit, and another limit for each break
/// in it. A failover, data loss, a clock step, and a slot's move to a server with another clock each
/// allow "**more**, by a quota", and a failover another one while replicas reach the old master. A
/// step back by less than a second allows none: "time stops for live keys, which outlive their
/// charges by a second".
fn excess_beside(
    charged: &[(Instant, u64)],
    breaks: &[&Break],
    limit: u64,
    window: u64,
) -> Option<String> {
    // A clock that is slewed runs up to a twelfth faster.
    let window = Duration::from_micros(window * 12 / 13);
    for (index, (end, _)) in charged.iter().enumerate() {
        let since = |at: Instant| *end - at < window && at <= *end;
        let units: u64 =
            charged[..=index].iter().rev().take_while(|(at, _)| since(*at)).map(|(_, it)| it).sum();
        let concerns = |it: &&&Break| it.since <= *end && *end - it.until < window;
        let more: u64 = breaks.iter().filter(concerns).map(|it| it.quotas).sum();
        if units > (1 + more) * limit {
            return Some(format!("{units} units of {limit}, and {more} more quotas"));
        }
    }
    None
}

/// Describes a window in which more than `limit` units were admitted.
fn excess(admitted: &mut [(Timestamp, u64)], limit: u64, window: u64) -> Option<String> {
    admitted.sort_unstable();
    let (mut first, mut units) = (0, 0);
    for (at, cost) in &*admitted {
        units += cost;
        while admitted[first].0.as_micros() + window <= at.as_micros() {
            units -= admitted[first].1;
            first += 1;
        }
        if units > limit {
            return Some(format!("{units} units of {limit} in the window up to {at:?}"));
        }
    }
    None
}
