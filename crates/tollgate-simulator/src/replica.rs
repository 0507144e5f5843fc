//! A replica and its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate_core::{
    Charge, Cost, Fallback, Key, Policy, Quota, ReceiptId, Store, StoreExt, Timestamp,
};
use tollgate_memory::{Clock, MemoryStore};
use tollgate_redis::RedisStore;

use crate::history::{LEDGER, PolicyKey};
use crate::limit::{Config, Group, Limit, once_in};
use crate::network::Access;
use crate::reached::LEASES;
use crate::server::cluster;
use crate::traffic::RequestKind;
use crate::world::World;

#[derive(Clone)]
pub(crate) struct Replica(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) number: usize,
    pub(crate) world: World,
    pub(crate) config: Arc<Config>,
    ledger: Policy,
    pub(crate) store: RedisStore,
    pub(crate) with_local: Fallback<RedisStore, MemoryStore<LocalClock>>,
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
pub(crate) const TOLERANCE: Duration = Duration::from_millis(5);
pub(crate) const KEYS: [&str; 3] = ["ann", "bob", "eve"];

impl Replica {
    pub(crate) fn start(
        world: &World,
        number: usize,
        config: Arc<Config>,
        asleep: Arc<AtomicU64>,
        mut rng: Rng,
    ) -> Self {
        let access = Arc::new(Access { world: world.clone(), replica: number });
        let url = match world.lock().view.masters.len() {
            1 => "redis://simulated".to_owned(),
            shards => cluster::url(shards),
        };
        let store = RedisStore::builder(&url).expect("a URL").timeout(TIMEOUT);
        let settings = config.settings;
        let store = store.max_calls(settings.calls).max_batch(settings.batch);
        let store = store.deny_cache(settings.deny_cache).breaker(settings.has_breaker);
        let store = store.simulated(access, asleep).seed(rng.u64(..));
        let store = store.connect().expect("a runtime");
        let local = MemoryStore::builder().max_keys(settings.local_keys);
        let local = local.clock(LocalClock(Instant::now())).build();
        let with_local = store.clone().or_local(local);
        let with_local = match settings.share {
            Some((numerator, denominator)) => with_local.with_share(numerator, denominator),
            None => Ok(with_local),
        };
        let with_local = with_local.expect("a share");
        let ledger = Policy::token_bucket(LEDGER, Quota::per_hour(1_000_000_000)).expect("builds");
        let replica = Inner {
            number,
            world: world.clone(),
            config,
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
            let (pause, starts) = self.0.config.traffic.burst(&mut rng);
            sleep(pause).await;
            if once_in(&mut rng, 100) {
                self.change_version();
            }
            if once_in(&mut rng, self.0.config.traffic.returned) {
                self.return_leases().await;
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
        match self.0.config.traffic.kind(&mut rng) {
            RequestKind::Reset => self.reset(&mut rng).await,
            RequestKind::Ledger => self.ledger(&mut rng).await,
            RequestKind::Other => self.request(&mut rng).await,
        }
    }

    fn change_version(&self) {
        self.0.version.store(1, Ordering::Relaxed);
        let mut state = self.0.world.lock();
        for limit in self.0.config.limits.iter().filter(|limit| limit.versions.len() > 1) {
            state.history.changed.insert(limit.versions[0].name().to_owned());
        }
        state.note(format_args!("replica {} has the next version", self.0.number));
    }

    fn key(&self, rng: &mut Rng) -> Key {
        Key::new(KEYS[self.0.config.traffic.key(rng)])
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
        let Config { limits, traffic, .. } = &*self.0.config;
        // Penalties are charged beside a limit.
        let first = limits.iter().find(|_| once_in(rng, 2)).filter(|limit| !limit.is_penalty());
        let first = first.unwrap_or(&limits[0]);
        let key = self.key(rng);
        let mut keyed = vec![(first, key.clone())];
        if once_in(rng, 4) {
            let other = if once_in(rng, 3) { self.key(rng) } else { key.clone() };
            keyed.push((&limits[rng.usize(..limits.len())], other));
        }
        let penalties = limits.iter().filter(|limit| limit.is_penalty());
        keyed.extend(penalties.filter(|_| rng.u8(..4) > 0).map(|limit| (limit, key.clone())));
        let policies: Vec<_> = keyed.iter().map(|(limit, _)| self.policy(limit)).collect();
        let mut charges = Vec::new();
        for ((limit, key), policy) in keyed.iter().zip(&policies) {
            let charge = Charge::new(policy, key, Cost::new(limit.cost(rng)));
            charges.push(if once_in(rng, 60) {
                charge.dry()
            } else if !limit.is_enforced || traffic.is_shadow(rng) {
                charge.shadow()
            } else {
                charge
            });
        }
        let group = keyed.iter().map(|(limit, _)| limit.group).find(|it| *it == Group::Local);
        self.decide(&charges, group.unwrap_or(first.group), rng).await;
    }

    async fn decide(&self, charges: &[Charge<'_>], group: Group, rng: &mut Rng) {
        let inner = &*self.0;
        let start = Instant::now();
        let caller = inner.config.traffic.caller(rng);
        let blocked = self.may_strike(charges);
        let answer = if group == Group::Local {
            caller.poll(inner.with_local.decide(charges)).await
        } else {
            caller.poll(inner.store.decide(charges)).await
        };
        let took = start.elapsed();
        if took > caller.patience(TIMEOUT) + TOLERANCE {
            let violation = format!("replica {} waited {took:?}", inner.number);
            inner.world.lock().history.fail(policy_key(&charges[0]), violation);
        }
        self.check_penalties(charges, answer.as_ref(), &blocked);
        if let (Group::Local, Some(answer)) = (group, &answer) {
            self.check_fallback(charges, answer);
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
            let mut limits = inner.config.limits.iter();
            let Some(limit) = limits.find(|limit| limit.name() == receipt.policy.name()) else {
                continue;
            };
            let is_permit = receipt.policy.is_concurrency();
            if is_permit || limit.is_settled && inner.config.traffic.settles(rng) {
                self.correct(limit, receipt, at, rng).await;
            }
        }
    }

    /// Returns leased units, like a replica that is about to stop.
    pub(crate) async fn return_leases(&self) {
        self.0.world.lock().history.reached.enter(LEASES, "returns units on request");
        self.0.store.return_leases().await;
    }

    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    pub(crate) fn local(&self) -> &MemoryStore<LocalClock> {
        self.0.with_local.local()
    }

    /// Whether keys in the local store share an entry, because it was full.
    pub(crate) fn shares_overflow(&self) -> bool {
        self.local().stats().overflowed > 0
    }

    /// Returns the policy that the local store grants.
    pub(crate) fn local_share(&self, policy: &Policy) -> Policy {
        let counted = || Some((1, self.0.with_local.replicas()?.get()));
        let share = self.0.config.settings.share.or_else(counted).unwrap_or((1, 2));
        policy.share(share.0, share.1).expect("a share")
    }

    /// Returns the name of a state, and the key under which servers store it.
    pub(crate) fn stored_key(&self, policy: &Policy, key: &Key) -> (Vec<u8>, Key) {
        let name = self.0.store.name_of(policy, key);
        let end = name.iter().position(|byte| *byte == b'}').expect("a subject");
        let key = Key::new(&name[..=end]);
        (name, key)
    }

    async fn reset(&self, rng: &mut Rng) {
        let limits = &self.0.config.limits;
        let limit = &limits[rng.usize(..limits.len())];
        if !limit.is_reset {
            return;
        }
        let (number, policy, key) = (self.0.number, self.policy(limit), self.key(rng));
        let policy_key = (policy.name().to_owned(), text(&key));
        self.0.world.lock().history.correct(number, &policy_key);
        let result = self.0.store.reset(&policy, &key).await;
        let mut state = self.0.world.lock();
        state.history.corrected(number, &policy_key);
        state.history.counts.corrections += 1;
        state.note(format_args!(
            "replica {number} {}/{}: reset: {result:?}",
            policy_key.0, policy_key.1
        ));
    }
}

pub(crate) fn policy_key(charge: &Charge<'_>) -> PolicyKey {
    (charge.policy.name().to_owned(), text(charge.key))
}

pub(crate) fn text(key: &Key) -> String {
    String::from_utf8_lossy(&key.as_bytes()).into_owned()
}
