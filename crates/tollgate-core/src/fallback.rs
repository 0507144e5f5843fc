//! A wrapper that falls back to a local store when the primary store fails.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;

use crate::policy::check_share;
use crate::{
    BoxFuture, Charge, Cost, Decision, Key, Micros, OnStoreError, Overrides, OwnedCharge,
    PenaltyBlock, Policy, PolicyError, Receipt, Reply, Settlement, Source, Store, StoreError,
    Verdict,
};

/// A primary store, and a local store that decides while the primary store cannot. Created with
/// [`StoreExt::or_local`](crate::StoreExt::or_local).
///
/// The local store decides for policies that are [`OnStoreError::Local`], which is the default over
/// this store. When the primary store fails:
///
/// * If any enforced policy is `Closed`, the error is returned to the caller and no charge is made.
/// * Otherwise, the local store decides the `Local` policies together, all or none, each with its
///   share of the quota. `Open` policies allow the request.
///
/// If the primary store was overloaded, [`Policy::shed`] applies instead. A request that exceeds its
/// share of a quota, but not the quota, fails too: the primary store can allow it after the outage, so
/// it must be neither denied forever nor a strike for a penalty.
///
/// # How much may be admitted
///
/// If the primary store counts the processes that share it ([`Store::replicas`]), each of `n`
/// processes grants 1/`n` of each quota, but at least 1 unit. In each window, all processes together
/// admit the quota, in addition to the primary store's charges. A process that never reached the
/// primary store does not know `n`, and grants half.
///
/// With a fixed share `s` ([`with_share`](Self::with_share)), or with half if the primary store does
/// not count, `n` processes admit up to `n·s` quotas.
///
/// Clones share both stores.
#[derive(Clone, Debug)]
pub struct Fallback<S, L> {
    store: S,
    local: L,
    shares: Arc<Shares>,
}

/// A numerator and a denominator.
type Share = (u32, u32);

/// The share that a local store grants, and the policies reduced to it.
#[derive(Debug, Default)]
struct Shares {
    /// `None` if it depends on the number of processes.
    fixed: Option<Share>,
    /// Policies and their reduced copies by [`Policy::identity`], which makes the local store get
    /// the same handles each time. Not by name, because tiers have policies with equal names.
    cut: RwLock<BTreeMap<usize, Cut>>,
}

#[derive(Debug)]
struct Cut {
    share: Share,
    reduced: Policy,
    /// While it exists, no other policy has its identity.
    _whole: Policy,
}

/// The share if the number of processes is unknown.
const HALF: Share = (1, 2);

/// The maximum number of stored shares, because a caller may build a policy for every request and
/// must not use unbounded memory that way.
const MAX_SHARES: usize = 1024;

impl<S: Store, L: Store> Fallback<S, L> {
    pub(crate) fn new(store: S, local: L) -> Self {
        // The store starts to count processes, before the first outage.
        let _ = store.replicas();
        Self { store, local, shares: Arc::default() }
    }

    /// Sets a fixed share of each quota that the local store grants: `numerator / denominator`.
    ///
    /// # Errors
    /// `denominator` is zero.
    pub fn with_share(self, numerator: u32, denominator: u32) -> Result<Self, PolicyError> {
        check_share("local fallback", numerator, denominator)?;
        let shares = Shares { fixed: Some((numerator, denominator)), cut: RwLock::default() };
        Ok(Self { shares: Arc::new(shares), ..self })
    }

    /// Returns the primary store.
    pub const fn get_ref(&self) -> &S {
        &self.store
    }

    /// Returns the local store, which decides when the primary store cannot.
    pub const fn local(&self) -> &L {
        &self.local
    }

    /// Returns a receipt with the policy that the local store charged: the share of the last
    /// decision, because the number of processes may have changed since.
    fn local_receipt(&self, receipt: &Receipt) -> Receipt {
        let policy = self.shares.last(&receipt.policy);
        let policy = policy.unwrap_or_else(|| self.shares.of(&receipt.policy, self.share()));
        Receipt { policy, ..receipt.clone() }
    }

    fn share(&self) -> Share {
        let counted = || Some((1, self.store.replicas()?.get()));
        self.shares.fixed.or_else(counted).unwrap_or(HALF)
    }
}

impl Shares {
    /// Returns the policy as it was last reduced.
    fn last(&self, policy: &Policy) -> Option<Policy> {
        let cut = self.cut.read().unwrap_or_else(PoisonError::into_inner);
        cut.get(&policy.identity()).map(|known| known.reduced.clone())
    }

    /// Returns the policy reduced to `share`.
    fn of(&self, policy: &Policy, share: Share) -> Policy {
        let identity = policy.identity();
        let is_current = |cut: &&Cut| cut.share == share;
        let cut = self.cut.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cut.get(&identity).filter(is_current) {
            return known.reduced.clone();
        }
        drop(cut);
        let mut cut = self.cut.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have inserted the share in the meantime.
        if let Some(known) = cut.get(&identity).filter(is_current) {
            return known.reduced.clone();
        }
        if cut.len() >= MAX_SHARES {
            cut.clear();
        }
        // A denominator of zero is the only error, and `with_share` has ruled it out.
        let reduced = policy.share(share.0, share.1).unwrap_or_else(|_| policy.clone());
        cut.insert(identity, Cut { share, reduced: reduced.clone(), _whole: policy.clone() });
        reduced
    }
}

impl<S: Store, L: Store> Store for Fallback<S, L> {
    type Future = FallbackFuture<S, L>;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        // Without a local policy, the error is returned to the caller.
        let may_fall_back = charges.iter().any(|charge| charge.policy.may_fall_back());
        match self.store.decide(charges).now() {
            Ok(Err(error)) if may_fall_back => self.request(charges).decide(error),
            Ok(decided) => Reply::ready(decided),
            Err(reply) => {
                let request = may_fall_back.then(|| self.request(charges));
                Reply::pending(FallbackFuture(Stage::Primary { reply, request }))
            }
        }
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        match receipt.source {
            Source::Store | Source::Cache | Source::Lease => self.store.settle(receipt, actual),
            Source::Local => self.local.settle(&self.local_receipt(receipt), actual),
        }
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        match receipt.source {
            Source::Store | Source::Cache | Source::Lease => self.store.renew(receipt),
            Source::Local => {
                // The local store knows only its share of the policy.
                let whole = receipt.policy.clone();
                let renewed =
                    move |it: Option<Receipt>| it.map(|it| Receipt { policy: whole.clone(), ..it });
                match self.local.renew(&self.local_receipt(receipt)).now() {
                    Ok(reply) => Reply::ready(reply.map(renewed)),
                    Err(mut reply) => Reply::pending(Box::pin(poll_fn(move |cx| {
                        reply.as_mut().poll(cx).map_ok(&renewed)
                    }))),
                }
            }
        }
    }

    /// Resets the key in the local store too, because an outage may be why the key was charged
    /// there. The result is the primary store's.
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        let local = policy.may_fall_back().then(|| self.local.reset(policy, key));
        after(local, self.store.reset(policy, key))
    }

    /// Blocks the key in the local store too, so an outage does not end the block. The result is the
    /// primary store's.
    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        let local = policy.may_fall_back().then(|| self.local.block(policy, key, block));
        after(local, self.store.block(policy, key, block))
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn has_local_fallback(&self) -> bool {
        true
    }

    fn replicas(&self) -> Option<NonZeroU32> {
        self.store.replicas()
    }

    fn overrides(&self) -> Option<Overrides> {
        self.store.overrides()
    }
}

impl<S: Store, L: Store> Fallback<S, L> {
    fn request(&self, charges: &[Charge<'_>]) -> Request<L> {
        Request {
            charges: charges.iter().map(Owned::of).collect(),
            local: self.local.clone(),
            shares: Arc::clone(&self.shares),
            share: self.share(),
        }
    }
}

/// The primary store's reply, after the local store has replied.
fn after<T: Send + 'static>(
    local: Option<Reply<BoxFuture<T>>>,
    mut primary: Reply<BoxFuture<T>>,
) -> Reply<BoxFuture<T>> {
    let Some(Err(mut pending)) = local.map(Reply::now) else { return primary };
    let mut is_pending = true;
    Reply::pending(Box::pin(poll_fn(move |cx| {
        if is_pending {
            // Its failure matters only in an outage, in which it decides.
            let _ = ready!(pending.as_mut().poll(cx));
            is_pending = false;
        }
        Pin::new(&mut primary).poll(cx)
    })))
}

/// This wrapper's name in errors.
const NAME: &str = "fallback store";

/// A request that the local store may have to decide.
struct Request<L> {
    charges: SmallVec<[Owned; 4]>,
    local: L,
    shares: Arc<Shares>,
    share: Share,
}

/// A charge, and whether the local store decides it, which depends on the error.
#[derive(Debug)]
struct Owned {
    charge: OwnedCharge,
    is_local: bool,
}

impl Owned {
    fn of(charge: &Charge<'_>) -> Self {
        Self { charge: charge.into(), is_local: false }
    }
}

impl<L: Store> Request<L> {
    /// Lets the local store decide after the primary store failed with `error`.
    fn decide<S: Store>(mut self, error: StoreError) -> Reply<FallbackFuture<S, L>> {
        match self.call_local(error).map(Reply::now) {
            Err(error) => Reply::ready(Err(error)),
            Ok(Ok(verdict)) => Reply::ready(verdict.map(|it| self.complete(&it))),
            Ok(Err(reply)) => Reply::pending(FallbackFuture(Stage::Local { reply, request: self })),
        }
    }

    /// Calls the local store, unless a policy rejects the request or no policy is local.
    fn call_local(&mut self, error: StoreError) -> Result<Reply<L::Future>, StoreError> {
        let mut is_closed = !error.is_outage();
        for Owned { charge, is_local } in &mut self.charges {
            let on_error = charge.policy.on_error(&error).unwrap_or(OnStoreError::Local);
            *is_local = on_error == OnStoreError::Local;
            is_closed |= charge.enforce && on_error == OnStoreError::Closed;
        }
        let local = || self.charges.iter().filter(|it| it.is_local).map(|it| &it.charge);
        if is_closed || local().next().is_none() {
            return Err(error);
        }
        let policies: SmallVec<[Policy; 4]> =
            local().map(|charge| self.shares.of(&charge.policy, self.share)).collect();
        let charges: SmallVec<[Charge<'_>; 4]> =
            local().zip(&policies).map(|(charge, policy)| share_of(charge, policy)).collect();
        if charges.iter().zip(local()).any(|(charge, whole)| exceeds_share(charge, whole, &charges))
        {
            let reason = "the request costs more than the local share of the quota";
            return Err(if error.may_have_charged() {
                StoreError::maybe_charged(NAME, reason)
            } else {
                StoreError::not_charged(NAME, reason)
            });
        }
        Ok(self.local.decide(&charges))
    }

    /// Completes the local store's verdict: policies that it did not decide fail open.
    fn complete(&self, verdict: &Verdict) -> Verdict {
        let mut decided = verdict.decisions().iter().copied();
        let decisions = self.charges.iter().map(|charge| {
            let undecided = Decision::undecided(charge.charge.policy.capacity());
            if charge.is_local { decided.next().unwrap_or(undecided) } else { undecided }
        });
        let verdict = Verdict::new(verdict.is_admitted(), verdict.decided_at(), decisions);
        verdict.with_source(Source::Local)
    }
}

/// The charge to the local share of its policy, of which it leaves as large a part.
fn share_of<'a>(whole: &'a OwnedCharge, policy: &'a Policy) -> Charge<'a> {
    let headroom = u128::from(whole.headroom.get()) * u128::from(policy.capacity());
    let headroom = headroom / u128::from(whole.policy.capacity());
    let headroom = Cost::new(u64::try_from(headroom).unwrap_or(u64::MAX));
    Charge { policy, headroom, ..whole.as_charge() }
}

/// Whether a request exceeds the share of a quota, but not the `whole` quota.
///
/// The primary store can allow such a request after the outage. It therefore fails instead of being
/// denied forever, and the local store must not count it as a strike.
fn exceeds_share(charge: &Charge<'_>, whole: &OwnedCharge, charges: &[Charge<'_>]) -> bool {
    let same = |other: &&Charge<'_>| other.enforce && other.shares_quota_with(charge);
    let total = charges.iter().filter(same).fold(Cost::ZERO, |sum, it| sum.plus(it.cost));
    let total = total.plus(charge.headroom).get();
    charge.enforce && total > charge.policy.capacity() && total <= whole.policy.capacity()
}

/// A decision by a [`Fallback`]'s primary or local store.
pub struct FallbackFuture<S: Store, L: Store>(Stage<S, L>);

enum Stage<S: Store, L: Store> {
    /// The primary store decides. If it fails, the local store gets the request, if there is one.
    Primary {
        reply: S::Future,
        request: Option<Request<L>>,
    },
    Local {
        reply: L::Future,
        request: Request<L>,
    },
}

/// The inner futures are `Unpin`, and no other field is ever pinned.
impl<S: Store, L: Store> Unpin for FallbackFuture<S, L> {}

impl<S: Store, L: Store> Future for FallbackFuture<S, L> {
    type Output = Result<Verdict, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            self.0 = match &mut self.0 {
                Stage::Primary { reply, request } => {
                    match (ready!(Pin::new(reply).poll(cx)), request.take()) {
                        (Err(error), Some(request)) => match request.decide(error).now() {
                            Ok(decided) => return Poll::Ready(decided),
                            Err(Self(local)) => local,
                        },
                        (decided, _) => return Poll::Ready(decided),
                    }
                }
                Stage::Local { reply, request } => {
                    return Pin::new(reply).poll(cx).map_ok(|verdict| request.complete(&verdict));
                }
            };
        }
    }
}

crate::debug_fields!([S: Store, L: Store] FallbackFuture<S, L>);

#[cfg(test)]
mod tests;
