//! A replica and its requests.
//!
//! One file, because requests, settlements and resets record their answers in the same form.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Fallback, Key, Outcome, Policy, Quota, Receipt, ReceiptId,
    Settlement, Source, Store, StoreError, StoreExt, Timestamp, Verdict,
};
use tollgate_memory::{Clock, MemoryStore};
use tollgate_redis::RedisStore;

use crate::history::{LEDGER, Log, Place, Told};
use crate::network::Access;
use crate::server::cluster;
use crate::traffic::{Caller, Kind, Traffic};
use crate::world::World;

/// A policy with its versions and group.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) group: Group,
    /// The versions; replicas change to the next version at different times.
    pub(crate) versions: Vec<Policy>,
    /// Whether charges are settled, and whether keys are reset.
    pub(crate) is_settled: bool,
    pub(crate) is_reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Plain,
    Leased,
    /// With a local fallback.
    Local,
}

#[derive(Clone)]
pub(crate) struct Replica(Arc<Inner>);

struct Inner {
    number: usize,
    world: World,
    limits: Arc<Vec<Limit>>,
    traffic: Traffic,
    ledger: Policy,
    store: RedisStore,
    with_local: Fallback<RedisStore, MemoryStore<LocalClock>>,
    /// The index of this replica's current policy versions.
    version: AtomicUsize,
}

/// A local store's clock.
#[derive(Clone, Debug)]
pub(crate) struct LocalClock(pub(crate) Instant);

impl Clock for LocalClock {
    fn now(&self) -> Timestamp {
        let micros = u64::try_from(self.0.elapsed().as_micros()).expect("a short run");
        Timestamp::from_micros(1_000_000 + micros)
    }
}

/// The stores' timeout.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(50);
/// Timers are up to a millisecond late, and an answer takes a few of them.
const TOLERANCE: Duration = Duration::from_millis(5);
const KEYS: [&str; 3] = ["ann", "bob", "eve"];

impl Replica {
    pub(crate) fn start(
        world: &World,
        number: usize,
        (limits, traffic): (Arc<Vec<Limit>>, Traffic),
        asleep: Arc<AtomicU64>,
        mut rng: Rng,
    ) -> Self {
        let access = Arc::new(Access { world: world.clone(), replica: number });
        let url = match world.lock().view.masters.len() {
            1 => "redis://simulated".to_owned(),
            shards => cluster::url(shards),
        };
        let store = RedisStore::builder(&url).expect("a URL").timeout(TIMEOUT);
        let store = store.simulated(access, asleep).seed(rng.u64(..));
        let store = store.connect().expect("a runtime");
        let local = MemoryStore::builder().clock(LocalClock(Instant::now())).build();
        let with_local = store.clone().or_local(local);
        let ledger = Policy::token_bucket(LEDGER, Quota::per_hour(1_000_000_000)).expect("builds");
        let replica = Inner {
            number,
            world: world.clone(),
            limits,
            traffic,
            ledger,
            store,
            with_local,
            version: AtomicUsize::new(0),
        };
        for key in KEYS {
            let name = replica.store.name_of(&replica.ledger, &Key::new(key));
            world.lock().history.label(&name, key);
        }
        Self(Arc::new(replica))
    }

    pub(crate) fn number(&self) -> usize {
        self.0.number
    }

    pub(crate) async fn connected(&self) {
        self.0.store.connected().await;
    }

    /// Waits until the store has counted all replicas.
    pub(crate) async fn counts(&self, replicas: usize) {
        let counted = || self.0.with_local.replicas().map(|it| it.get() as usize);
        while counted() != Some(replicas) {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the store decides.
    pub(crate) async fn recovers(&self) {
        for key in KEYS {
            while self.0.store.peek(&self.0.ledger, &Key::new(key)).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Sends requests until `end`.
    pub(crate) async fn requests(self, mut rng: Rng, end: Instant) {
        while Instant::now() < end {
            let (pause, starts) = self.0.traffic.burst(&mut rng);
            sleep(pause).await;
            if rng.u8(..100) == 0 {
                self.change_version();
            }
            let requests: JoinSet<()> = starts
                .into_iter()
                .map(|start| self.clone().any_request(start, rng.fork()))
                .collect();
            requests.join_all().await;
        }
    }

    async fn any_request(self, start: Duration, mut rng: Rng) {
        sleep(start).await;
        match self.0.traffic.kind(&mut rng) {
            Kind::Reset => self.reset(&mut rng).await,
            Kind::Ledger => self.ledger(&mut rng).await,
            Kind::Other => self.request(&mut rng).await,
        }
    }

    fn change_version(&self) {
        self.0.version.store(1, Ordering::Relaxed);
        let mut state = self.0.world.lock();
        for limit in self.0.limits.iter().filter(|limit| limit.versions.len() > 1) {
            state.history.changed.insert(limit.versions[0].name().to_owned());
        }
        state.note(format_args!("replica {} has the next version", self.0.number));
    }

    fn key(&self, rng: &mut Rng) -> Key {
        Key::new(KEYS[self.0.traffic.key(rng)])
    }

    fn policy(&self, limit: &Limit) -> Policy {
        let version = self.0.version.load(Ordering::Relaxed);
        limit.versions[version.min(limit.versions.len() - 1)].clone()
    }

    /// Sends a request with a unique cost.
    async fn ledger(&self, rng: &mut Rng) {
        let cost = {
            let mut state = self.0.world.lock();
            let cost = state.next_number();
            state.history.asked(cost, self.0.number, Instant::now() + TIMEOUT);
            cost
        };
        let (ledger, key) = (self.0.ledger.clone(), self.key(rng));
        let mut charges = vec![Charge::new(&ledger, &key, Cost::new(cost))];
        let other = self.key(rng);
        if other != key && rng.bool() {
            charges.push(Charge::new(&ledger, &other, Cost::new(cost)));
        }
        self.decide(&charges, Group::Plain, rng).await;
    }

    async fn request(&self, rng: &mut Rng) {
        let limits = &self.0.limits;
        let first = &limits[rng.usize(..limits.len())];
        let key = self.key(rng);
        let mut limits = vec![first];
        let second = &self.0.limits[rng.usize(..self.0.limits.len())];
        if rng.u8(..4) == 0 && second.group == first.group && !std::ptr::eq(first, second) {
            limits.push(second);
        }
        let other = if limits.len() > 1 && rng.u8(..3) == 0 { self.key(rng) } else { key.clone() };
        let policies: Vec<_> = limits.iter().map(|limit| self.policy(limit)).collect();
        let mut charges = Vec::new();
        for ((limit, policy), key) in limits.iter().zip(&policies).zip([&key, &other]) {
            let charge = Charge::new(policy, key, Cost::new(cost(limit, rng)));
            let is_shadow = limit.group == Group::Plain && self.0.traffic.is_shadow(rng);
            charges.push(if is_shadow { charge.shadow() } else { charge });
        }
        self.decide(&charges, first.group, rng).await;
    }

    async fn decide(&self, charges: &[Charge<'_>], group: Group, rng: &mut Rng) {
        let inner = &*self.0;
        let start = Instant::now();
        let caller = inner.traffic.caller(rng);
        let answer = match group {
            Group::Local => caller.poll(inner.with_local.decide(charges)).await,
            Group::Plain | Group::Leased => caller.poll(inner.store.decide(charges)).await,
        };
        let took = start.elapsed();
        if took > caller.patience(TIMEOUT) + TOLERANCE {
            let violation = format!("replica {} waited {took:?}", inner.number);
            inner.world.lock().history.fail(place(&charges[0]), violation);
        }
        self.record(charges, answer.as_ref(), caller);
        let Some(Ok(verdict)) = answer else { return };
        if !verdict.is_admitted() {
            return;
        }
        let at = verdict.decided_at();
        let ids = || ReceiptId(rng.u128(..));
        let receipts: Vec<_> = verdict.receipts(charges, ids).collect();
        for receipt in receipts {
            inner.world.lock().history.issued(receipt.id);
            let mut limits = inner.limits.iter();
            let limit = limits.find(|limit| limit.versions[0].name() == receipt.policy.name());
            let is_permit = receipt.policy.is_concurrency();
            if is_permit
                || limit.is_some_and(|limit| limit.is_settled) && inner.traffic.settles(rng)
            {
                self.correct(receipt, at, rng).await;
            }
        }
    }

    /// Records the answer, and checks it against the server if the client decided.
    fn record(
        &self,
        charges: &[Charge<'_>],
        answer: Option<&Result<Verdict, StoreError>>,
        caller: Caller,
    ) {
        let (number, is_split) = (self.0.number, self.is_split(charges));
        let mut state = self.0.world.lock();
        let told = match answer {
            None => Told::MaybeCharged,
            // "A later denial refunds earlier charges", unless the refund is lost.
            Some(Ok(verdict)) if !verdict.is_admitted() && is_split && state.has_faults => {
                Told::MaybeCharged
            }
            // The store itself failed before, and may have charged.
            Some(Ok(verdict)) if verdict.source() == Source::Local => Told::MaybeCharged,
            Some(Ok(verdict)) if verdict.is_admitted() => Told::Admitted,
            Some(Ok(_)) => Told::Denied,
            Some(Err(error)) if error.may_have_charged() => Told::MaybeCharged,
            Some(Err(_)) => Told::NotCharged,
        };
        let text = charges.iter().map(|charge| Shown(charge).to_string());
        let text = text.collect::<Vec<_>>().join(" ");
        let outcome = match answer {
            None => "left".to_owned(),
            Some(Ok(verdict)) => {
                let word = if verdict.is_admitted() { "admitted" } else { "denied" };
                format!("{word} by {:?}", verdict.source())
            }
            Some(Err(error)) => error.to_string(),
        };
        state.note(format_args!("replica {number} {text}: {outcome}"));
        // Keys that are split over two servers have to wait for each other.
        let may_wait = state.has_moves && charges.len() > 1;
        if caller == Caller::Waits && !matches!(answer, Some(Ok(_))) && !may_wait {
            state.failed += 1;
        }
        match answer {
            Some(Ok(verdict)) => {
                let index = match verdict.source() {
                    Source::Store => 0,
                    Source::Cache => 1,
                    Source::Lease => 2,
                    Source::Local => 3,
                };
                state.history.counts.decided[index] += 1;
            }
            // The caller's own fault.
            _ if caller != Caller::Waits => {}
            _ if told == Told::NotCharged => state.history.counts.not_charged += 1,
            _ => state.history.counts.maybe_charged += 1,
        }
        let Some(Ok(verdict)) = answer else {
            for charge in charges {
                state.history.told(place(charge), charge.cost.get(), told);
            }
            return;
        };
        let is_enforced =
            |(charge, decision): (&Charge<'_>, &Decision)| charge.enforce && decision.denies();
        let is_denied = charges.iter().zip(verdict.decisions()).any(is_enforced);
        if is_denied == verdict.is_admitted() {
            let violation = format!("the verdict does not follow from the decisions: {verdict:?}");
            state.history.fail(place(&charges[0]), violation);
        }
        for (charge, decision) in charges.iter().zip(verdict.decisions()) {
            let (place, units) = (place(charge), charge.cost.get());
            let redis_key = self.0.store.name_of(charge.policy, charge.key);
            let now = state.owner(&redis_key).clock.now();
            let told = match (told, decision.outcome) {
                (Told::Admitted, Outcome::Allow { .. }) => Told::Admitted,
                // The call for a shadow policy in another slot failed.
                (Told::Admitted, Outcome::Undecided) => Told::MaybeCharged,
                // A shadow policy that denies does not deny the request.
                (Told::Admitted, _) => Told::Denied,
                (told, _) => told,
            };
            match (verdict.source(), decision.outcome) {
                (Source::Store, _) => {
                    state.history.told(place, units, told);
                }
                (Source::Local, _) => {
                    state.history.told(place.clone(), units, told);
                    if verdict.is_admitted() {
                        let at = verdict.decided_at();
                        state.history.admit_locally(place, at, units);
                    }
                }
                (Source::Lease, Outcome::Allow { charged_at, .. }) => {
                    let granter = state.history.granter(&place, charged_at);
                    let server = granter.map_or(now, |server| state.servers[server].clock.now());
                    state.history.spent(place.clone(), charged_at, units, server);
                    state.history.admit(place, now, units);
                }
                (Source::Cache, Outcome::Deny { retry_after })
                    if !state.history.may_be_old(&place, number, TIMEOUT) =>
                {
                    let end = redis_key.iter().position(|byte| *byte == b'}').expect("a subject");
                    let key = Key::new(&redis_key[..=end]);
                    let real = state.owner(&redis_key).ask(charge.policy, &key, charge.cost);
                    let passes = verdict.decided_at() + retry_after;
                    let differs = real.retry_after().map(|wait| now + wait) != Some(passes);
                    // "Numbers for leased policies can be old."
                    if !real.denies() || differs && charge.policy.lease().is_none() {
                        let violation = format!(
                            "replica {number} remembers that {} passes at {passes:?}; at {now:?} \
                             the server decides {real:?}",
                            Shown(charge)
                        );
                        state.history.fail(place, violation);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether the keys are in several Cluster slots.
    fn is_split(&self, charges: &[Charge<'_>]) -> bool {
        charges.iter().any(|charge| charge.key != charges[0].key)
            && self.0.world.lock().view.masters.len() > 1
    }

    /// Settles a receipt, and often renews a permit before. "A receipt settles once."
    async fn correct(&self, mut receipt: Receipt, admitted: Timestamp, rng: &mut Rng) {
        if receipt.source == Source::Local {
            return;
        }
        let store = &self.0.store;
        sleep(Duration::from_millis(rng.u64(..100))).await;
        if receipt.policy.is_concurrency() && rng.bool() {
            if let Ok(Some(renewed)) = store.renew(&receipt).await {
                receipt = renewed;
            }
            sleep(Duration::from_millis(rng.u64(..100))).await;
        }
        let cost = receipt.charged.cost.get();
        let actual = match rng.u8(..3) {
            _ if receipt.policy.is_concurrency() => 0,
            0 => cost + 1,
            _ => rng.u64(..=cost),
        };
        let (number, place) =
            (self.0.number, (receipt.policy.name().to_owned(), text(&receipt.key)));
        let (mut may_be_settled, mut is_settled) = (false, false);
        for _ in 0..rng.u8(1..=2) {
            self.0.world.lock().history.correct(number, &place);
            let settled = store.settle(&receipt, Cost::new(actual)).await;
            let mut state = self.0.world.lock();
            state.history.corrected(number, &place);
            state.history.counts.corrections += 1;
            let name = receipt.policy.name();
            state.note(format_args!(
                "replica {number} {name}/{} {cost}: settled at {actual}: {settled:?}",
                place.1
            ));
            let is_repeated = matches!(settled, Ok(Settlement::Repeated));
            if is_repeated && !may_be_settled {
                let violation = format!(
                    "a charge of {name} at {admitted:?} was already settled, by another receipt"
                );
                state.history.fail(place.clone(), violation);
            }
            // Charges expire, which reduces refunds, and a debt is at most one capacity.
            let fits = match settled {
                Ok(Settlement::Returned { units }) => actual + units <= cost,
                Ok(Settlement::Charged { units }) => cost + units <= actual,
                _ => true,
            };
            let is_unknown =
                settled.as_ref().is_ok_and(|it| !state.history.has_settled(receipt.id, *it));
            if !fits || is_unknown {
                let violation = format!("{cost} units were settled at {actual}: {settled:?}");
                state.history.fail(place.clone(), violation);
            }
            let counts =
                matches!(settled, Ok(Settlement::Returned { .. } | Settlement::Charged { .. }));
            if counts && is_settled && state.history.is_whole() {
                let violation = format!("a charge of {name} was settled twice");
                state.history.fail(place.clone(), violation);
            }
            is_settled |= settled.is_ok();
            may_be_settled |= settled.map_or_else(|error| error.may_have_charged(), |_| true);
        }
    }

    async fn reset(&self, rng: &mut Rng) {
        let limits = &self.0.limits;
        let limit = &limits[rng.usize(..limits.len())];
        if !limit.is_reset {
            return;
        }
        let (number, policy, key) = (self.0.number, self.policy(limit), self.key(rng));
        let place = (policy.name().to_owned(), text(&key));
        self.0.world.lock().history.correct(number, &place);
        let result = self.0.store.reset(&policy, &key).await;
        let mut state = self.0.world.lock();
        state.history.corrected(number, &place);
        state.history.counts.corrections += 1;
        state.note(format_args!("replica {number} {}/{}: reset: {result:?}", place.0, place.1));
    }
}

impl Limit {
    /// Returns the limit and the sum of the local shares, for a sliding window log.
    pub(crate) fn as_log(&self, replicas: usize) -> Option<Log> {
        let policy = &self.versions[0];
        let is_log = matches!(policy.algorithm(), Some(Algorithm::SlidingWindowLog { .. }));
        is_log.then(|| Log {
            name: policy.name().to_owned(),
            limit: policy.capacity(),
            local: policy.share(1, replicas as u32).expect("a share").capacity() * replicas as u64,
            window: policy.window().get(),
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, policy) in self.versions.iter().enumerate() {
            let next = if index > 0 { ", then " } else { "" };
            let (units, window) = (policy.capacity(), policy.window().get() / 1_000);
            let algorithm = policy.algorithm();
            write!(f, "{next}{}: {units} in {window} ms, {algorithm:?}", policy.name())?;
            if let Some(lease) = policy.lease() {
                write!(f, ", {lease:?}")?;
            }
        }
        Ok(())
    }
}

fn cost(limit: &Limit, rng: &mut Rng) -> u64 {
    match limit.group {
        Group::Leased => rng.u64(1..=3),
        Group::Plain | Group::Local => [1, 1, 1, 2, 5][rng.usize(..5)],
    }
}

fn place(charge: &Charge<'_>) -> Place {
    (charge.policy.name().to_owned(), text(charge.key))
}

fn text(key: &Key) -> String {
    String::from_utf8_lossy(&key.as_bytes()).into_owned()
}

/// A charge in a trace.
struct Shown<'a>(&'a Charge<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, key, cost) = (self.0.policy.name(), text(self.0.key), self.0.cost.get());
        let shadow = if self.0.enforce { "" } else { " in shadow mode" };
        write!(f, "{name}/{key} {cost}{shadow}")
    }
}
