//! The limiters: Tollgate and governor, through the APIs that their users call.

use std::array;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use governor::state::keyed::DefaultKeyedStateStore;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::key::Key;
use tollgate::policy::{Algorithm, Cost, Refill};
use tollgate::store::{Charge, NeverPending, Verdict};
use tollgate::{MemoryStore, Policy, Quota, Store};

use crate::Failure;

/// A key as a request contains it: 13 bytes that look like an IPv4 address.
pub(crate) type Text = String;

/// A limiter under measurement. It builds the key that its API requires, if necessary in a buffer
/// that a thread reuses, and returns whether the request is allowed.
pub(crate) trait Limiter: Fn(&Text, &mut String) -> bool + Sync {}

impl<F: Fn(&Text, &mut String) -> bool + Sync> Limiter for F {}

pub(crate) const BUCKET: Algorithm = Algorithm::TokenBucket { refill: Refill::Greedy };

/// A store with room for `keys` even if the shards fill unevenly.
pub(crate) fn store(keys: u32) -> MemoryStore {
    MemoryStore::builder().max_keys(2 * keys as usize).build()
}

/// A policy per key over a store.
pub(crate) fn tollgate(store: impl Store<Future = NeverPending>, policy: Policy) -> impl Limiter {
    move |text: &Text, _: &mut String| {
        let key = Key::new(text);
        used(store.decide(&[Charge::new(&policy, &key, Cost::ONE)]).into_inner())
    }
}

/// A bucket without a key.
pub(crate) fn global(quota: Quota) -> Result<impl Limiter, Failure> {
    let (store, policy) = (store(1), Policy::token_bucket("bench", quota)?);
    Ok(move |_: &Text, _: &mut String| {
        used(store.decide(&[Charge::new(&policy, &Key::GLOBAL, Cost::ONE)]).into_inner())
    })
}

/// A bucket whose quota depends on the key.
pub(crate) fn tenants(keys: u32, quota: Quota, quotas: u64) -> Result<impl Limiter, Failure> {
    let (store, base) = (store(keys), Policy::token_bucket("bench", quota)?);
    let policy = |number| base.with_quota(quota.burst(quota.limit() - number));
    let quotas = (0..quotas).map(policy).collect::<Result<Vec<_>, _>>()?;
    Ok(move |text: &Text, _: &mut String| {
        // Finds the key's quota in as few instructions as possible.
        let end = text.as_bytes().last_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        let random = end.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let policy = &quotas[(random as usize * quotas.len()) >> 32];
        used(store.decide(&[Charge::new(policy, &Key::new(text), Cost::ONE)]).into_inner())
    })
}

/// A global bucket and `N - 1` buckets per key, decided together.
pub(crate) fn several<const N: usize>(
    keys: u32,
    global: Quota,
    each: Quota,
) -> Result<impl Limiter, Failure> {
    let store = store(keys * N as u32);
    let name = |place: usize| ["global", "second", "third", "fourth"][place];
    let bucket = |place| Policy::token_bucket(name(place), if place == 0 { global } else { each });
    let policies = (0..N).map(bucket).collect::<Result<Vec<_>, _>>()?;
    let policies: [Policy; N] = policies.try_into().map_err(|_| "not as many policies")?;
    Ok(move |text: &Text, _: &mut String| {
        let key = Key::new(text);
        let key = |place| if place == 0 { &Key::GLOBAL } else { &key };
        let charge = |place| Charge::new(&policies[place], key(place), Cost::ONE);
        used(store.decide(&array::from_fn::<_, N, _>(charge)).into_inner())
    })
}

/// A limiter that waits in order, when nothing has to wait.
pub(crate) fn acquire(policy: Policy) -> Result<impl Limiter, Failure> {
    let limiter = tollgate::Limiter::builder(store(1)).policy(policy).build()?;
    Ok(move |text: &Text, _: &mut String| {
        let key = Key::new(text);
        poll_once(limiter.acquire(&key, Cost::ONE)).is_some_and(|permit| black_box(permit).is_ok())
    })
}

/// The same with governor.
pub(crate) fn governor_until_ready(quota: governor::Quota) -> impl Limiter {
    let limiter = RateLimiter::keyed(quota);
    move |text: &Text, key: &mut String| {
        key.clear();
        key.push_str(text);
        poll_once(limiter.until_key_ready(key)).is_some()
    }
}

/// The future's output, if it does not have to wait. So a task that awaits it needs the same time.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Writes the verdict to memory, because a caller needs it there to build a response.
#[inline]
fn used<E>(verdict: Result<Verdict, E>) -> bool {
    verdict.is_ok_and(|verdict| black_box(&verdict).is_admitted())
}

/// governor over its default map. The key is copied into an existing buffer, which is the minimum
/// for a service.
pub(crate) fn governor(quota: governor::Quota) -> impl Limiter {
    let limiter = RateLimiter::keyed(quota);
    move |text: &Text, key: &mut String| check(&limiter, text, key)
}

#[inline]
fn check(limiter: &DefaultKeyedRateLimiter<String>, text: &Text, key: &mut String) -> bool {
    key.clear();
    key.push_str(text);
    black_box(limiter.check_key(key)).is_ok()
}

/// governor with the shortest possible key.
pub(crate) fn governor_inline(quota: governor::Quota) -> impl Limiter {
    let limiter = RateLimiter::<[u8; 13], DefaultKeyedStateStore<_>, _>::keyed(quota);
    move |text: &Text, _: &mut String| {
        let key = text.as_bytes().first_chunk();
        key.is_some_and(|key| black_box(limiter.check_key(key)).is_ok())
    }
}

/// governor without a key.
pub(crate) fn governor_direct(quota: governor::Quota) -> impl Limiter {
    let limiter = RateLimiter::direct(quota);
    move |_: &Text, _: &mut String| black_box(limiter.check()).is_ok()
}

/// `count` governor limiters in sequence, the first without a key. If one denies, those before it
/// have still charged the request.
pub(crate) fn governors(
    count: usize,
    global: governor::Quota,
    each: governor::Quota,
) -> impl Limiter {
    let first = RateLimiter::direct(global);
    let others: Vec<_> = (1..count).map(|_| RateLimiter::keyed(each)).collect();
    move |text: &Text, key: &mut String| {
        black_box(first.check()).is_ok() && others.iter().all(|other| check(other, text, key))
    }
}

/// A quota for both limiters: a burst of `burst` units, which are refilled in `window`.
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
