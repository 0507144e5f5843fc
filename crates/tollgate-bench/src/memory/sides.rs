//! The limiters: Tollgate and governor, through the APIs that their users call.

use std::hash::Hash;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultDirectRateLimiter, RateLimiter};
use tollgate::key::Key;
use tollgate::policy::{Algorithm, Cost, Lease};
use tollgate::store::{Charge, Clock, Micros, SystemClock, ThreadLeases, Verdict};
use tollgate::{MemoryStore, Policy, Quota, Store};

use super::side::{Side, Text};
use crate::Failure;
use crate::clock::Ticking;

/// A policy over a store. Each decision builds the key from its text.
pub(crate) struct Tollgate<C = SystemClock> {
    store: MemoryStore<C>,
    policy: Policy,
}

impl Tollgate {
    /// With room for `keys` even if the shards fill unevenly.
    pub(crate) fn new(algorithm: Algorithm, quota: Quota, keys: usize) -> Result<Self, Failure> {
        let store = MemoryStore::builder().max_keys(2 * keys).build();
        Ok(Self { store, policy: Policy::new("bench", quota, algorithm)? })
    }
}

impl Tollgate<Ticking> {
    pub(crate) fn ticking(algorithm: Algorithm, quota: Quota) -> Result<Self, Failure> {
        let store = MemoryStore::builder().clock(Ticking::by(Micros::new(1))).build();
        Ok(Self { store, policy: Policy::new("bench", quota, algorithm)? })
    }
}

impl<C: Clock> Side for Tollgate<C> {
    type Buffer = ();

    #[inline]
    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        let key = Key::new(text);
        used(self.store.decide(&[Charge::new(&self.policy, &key, Cost::ONE)]).into_inner())
    }
}

/// A policy whose quota depends on the key.
pub(crate) struct Tenants {
    store: MemoryStore,
    quotas: Vec<Policy>,
}

impl Tenants {
    pub(crate) fn new(quota: Quota, quotas: u64, keys: usize) -> Result<Self, Failure> {
        let base = Policy::token_bucket("bench", quota)?;
        let policy = |number| base.with_quota(quota.burst(quota.limit() - number));
        let store = MemoryStore::builder().max_keys(2 * keys).build();
        Ok(Self { store, quotas: (0..quotas).map(policy).collect::<Result<_, _>>()? })
    }

    /// The quota of a key, found in as few instructions as possible.
    #[inline]
    fn policy(&self, text: &Text) -> &Policy {
        let end = text.as_bytes().last_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        let random = end.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.quotas[(random as usize * self.quotas.len()) >> 32]
    }
}

impl Side for Tenants {
    type Buffer = ();

    #[inline]
    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        let key = Key::new(text);
        let charge = Charge::new(self.policy(text), &key, Cost::ONE);
        used(self.store.decide(&[charge]).into_inner())
    }
}

/// A policy without a key.
pub(crate) struct Global(Tollgate);

impl Global {
    pub(crate) fn new(algorithm: Algorithm, quota: Quota) -> Result<Self, Failure> {
        Ok(Self(Tollgate::new(algorithm, quota, 1)?))
    }
}

impl Side for Global {
    type Buffer = ();

    #[inline]
    fn decide(&self, _: &Text, (): &mut ()) -> bool {
        let charge = Charge::new(&self.0.policy, &Key::GLOBAL, Cost::ONE);
        used(self.0.store.decide(&[charge]).into_inner())
    }
}

/// A policy whose units each thread takes in blocks.
pub(crate) struct Leased {
    store: ThreadLeases,
    policy: Policy,
}

impl Leased {
    pub(crate) fn new(quota: Quota, lease: Lease) -> Result<Self, Failure> {
        let policy = Policy::token_bucket("bench", quota)?.with_lease(lease)?;
        Ok(Self { store: MemoryStore::new().with_thread_leases(), policy })
    }
}

impl Side for Leased {
    type Buffer = ();

    #[inline]
    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        let key = Key::new(text);
        used(self.store.decide(&[Charge::new(&self.policy, &key, Cost::ONE)]).into_inner())
    }
}

/// A global policy and a policy per key, decided together.
pub(crate) struct Two {
    store: MemoryStore,
    global: Policy,
    each: Policy,
}

impl Two {
    pub(crate) fn new(global: Quota, each: Quota, keys: usize) -> Result<Self, Failure> {
        Ok(Self {
            store: MemoryStore::builder().max_keys(2 * keys).build(),
            global: Policy::token_bucket("global", global)?,
            each: Policy::token_bucket("each", each)?,
        })
    }
}

impl Side for Two {
    type Buffer = ();

    #[inline]
    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        let key = Key::new(text);
        used(
            self.store
                .decide(&[
                    Charge::new(&self.global, &Key::GLOBAL, Cost::ONE),
                    Charge::new(&self.each, &key, Cost::ONE),
                ])
                .into_inner(),
        )
    }
}

/// Writes the verdict to memory, because a caller needs it there to build a response.
#[inline]
fn used<E>(verdict: Result<Verdict, E>) -> bool {
    verdict.is_ok_and(|verdict| black_box(&verdict).is_admitted())
}

/// governor over its default keyed store.
pub(crate) struct Governor<K: Hash + Eq + Clone>(
    RateLimiter<K, DashMapStateStore<K>, DefaultClock>,
);

impl<K: Hash + Eq + Clone> Governor<K> {
    pub(crate) fn new(quota: governor::Quota) -> Self {
        Self(RateLimiter::dashmap(quota))
    }
}

/// The key is copied into an existing buffer, which is the minimum for a service.
impl Side for Governor<String> {
    type Buffer = String;

    #[inline]
    fn decide(&self, text: &Text, key: &mut String) -> bool {
        key.clear();
        key.push_str(text);
        black_box(self.0.check_key(key)).is_ok()
    }
}

/// The shortest possible key.
impl Side for Governor<[u8; 13]> {
    type Buffer = ();

    #[inline]
    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        let key = text.as_bytes().first_chunk();
        key.is_some_and(|key| black_box(self.0.check_key(key)).is_ok())
    }
}

/// governor without a key.
pub(crate) struct Direct(DefaultDirectRateLimiter);

impl Direct {
    pub(crate) fn new(quota: governor::Quota) -> Self {
        Self(RateLimiter::direct(quota))
    }
}

impl Side for Direct {
    type Buffer = ();

    #[inline]
    fn decide(&self, _: &Text, (): &mut ()) -> bool {
        black_box(self.0.check()).is_ok()
    }
}

/// governor with keys that the service already has as strings.
pub(crate) struct Ready(Governor<String>);

impl Ready {
    pub(crate) fn new(quota: governor::Quota) -> Self {
        Self(Governor::new(quota))
    }
}

impl Side for Ready {
    type Buffer = ();

    #[inline]
    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        black_box(self.0.0.check_key(text)).is_ok()
    }
}

/// Two governor limiters in sequence. If the second denies, the first has still charged the
/// request.
pub(crate) struct TwoGovernors {
    global: Direct,
    each: Governor<String>,
}

impl TwoGovernors {
    pub(crate) fn new(global: governor::Quota, each: governor::Quota) -> Self {
        Self { global: Direct::new(global), each: Governor::new(each) }
    }
}

impl Side for TwoGovernors {
    type Buffer = String;

    #[inline]
    fn decide(&self, text: &Text, key: &mut String) -> bool {
        self.global.decide(text, &mut ()) && self.each.decide(text, key)
    }
}

/// A quota for both limiters: a burst of `burst` units, and one unit refilled per `period`.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    burst: u32,
    window: Duration,
}

impl Bucket {
    /// Never used up, even by a single key: 10^9 per second.
    pub(crate) const ENDLESS: Self = Self { burst: 1_000_000_000, window: Duration::from_secs(1) };
    /// Always used up: 1 per hour.
    pub(crate) const SPENT: Self = Self { burst: 1, window: Duration::from_secs(3_600) };
    /// Never used up by many keys, and refilled so slowly that no key expires during the
    /// measurement: 10^6 per 400 days, a unit per half minute.
    pub(crate) const LASTING: Self =
        Self { burst: 1_000_000, window: Duration::from_secs(400 * 86_400) };

    pub(crate) const fn ours(self) -> Quota {
        Quota::new(self.burst as u64, self.window)
    }

    pub(crate) fn theirs(self) -> Result<governor::Quota, Failure> {
        let burst = NonZeroU32::new(self.burst).ok_or("a burst of zero")?;
        let quota = governor::Quota::with_period(self.window / self.burst).ok_or("no period")?;
        Ok(quota.allow_burst(burst))
    }
}
