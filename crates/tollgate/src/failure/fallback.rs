//! A second store for when the first cannot decide.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Decision, Key, OnStoreError, Outcome, Policy, Receipt, Settlement, Source, Store,
    StoreError, Verdict,
};

/// Lets `local` decide what `store` cannot, as far as the policies say
/// [`OnStoreError::Local`].
///
/// When `store` fails, and
///
/// * any enforced policy of the request says `Closed`, the error goes on to the layer,
///   which refuses, and nothing is charged;
/// * else the `Local` ones are decided together by the local store, all or none, with
///   their share of the quota; the `Open` ones pass.
///
/// # How much may pass
///
/// With `n` replicas and a share of `s`, up to `n·s` times the quota while the store is
/// away, and what had been charged there does not count. With the default of one half
/// two replicas keep the quota, and more exceed it: choose 1/n where that matters.
///
/// Clones share both stores.
#[derive(Clone, Debug)]
pub struct Fallback<S, L> {
    store: S,
    local: L,
    shares: Arc<Shares>,
}

/// The share that a local store grants, and policies cut down to it.
#[derive(Debug)]
struct Shares {
    numerator: u32,
    denominator: u32,
    /// Each policy with its share, so that the local store meets the same ones again.
    cut: Mutex<Vec<(Policy, Policy)>>,
}

impl<S: Store, L: Store> Fallback<S, L> {
    /// With one half of each quota in the local store.
    pub fn new(store: S, local: L) -> Self {
        Self::with_share(store, local, 1, 2)
    }

    /// With `numerator / denominator` of each quota in the local store.
    ///
    /// # Panics
    /// If `denominator` is zero.
    pub fn with_share(store: S, local: L, numerator: u32, denominator: u32) -> Self {
        assert!(denominator > 0, "a share of n/0 has no meaning");
        let shares = Shares { numerator, denominator, cut: Mutex::new(Vec::new()) };
        Self { store, local, shares: Arc::new(shares) }
    }

    /// The store that is asked first.
    pub const fn get_ref(&self) -> &S {
        &self.store
    }

    /// The store that is asked when the first cannot decide.
    pub const fn local(&self) -> &L {
        &self.local
    }
}

impl Shares {
    fn of(&self, policy: &Policy) -> Policy {
        let mut cut = self.cut.lock();
        if let Some((_, share)) = cut.iter().find(|(whole, _)| whole.is_same(policy)) {
            return share.clone();
        }
        // A policy of the same name that has changed takes the place of the old one.
        cut.retain(|(whole, _)| whole.name() != policy.name());
        // It has no other error than a denominator of zero.
        let share = policy.share(self.numerator, self.denominator);
        let share = share.unwrap_or_else(|_| policy.clone());
        cut.push((policy.clone(), share.clone()));
        share
    }
}

impl<S: Store, L: Store> Store for Fallback<S, L> {
    type Future<T: Send + 'static> = FallbackFuture<S, L, T>;

    fn decide(&self, charges: &[Charge<'_>]) -> Self::Future<Verdict> {
        let answer = self.store.decide(charges);
        // Where no policy is local, the layer can do without this store.
        let local = |charge: &Charge<'_>| charge.policy.on_store_error() == OnStoreError::Local;
        if !charges.iter().any(local) {
            return FallbackFuture(Answer::First(answer));
        }
        let request = Request {
            charges: charges.iter().map(Owned::of).collect(),
            local: self.local.clone(),
            shares: Arc::clone(&self.shares),
        };
        let convert = std::convert::identity;
        FallbackFuture(Answer::Deciding { answer, request, convert })
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Self::Future<Settlement> {
        match receipt.source {
            Source::Store | Source::Cache | Source::Lease => {
                FallbackFuture(Answer::First(self.store.settle(receipt, actual)))
            }
            Source::Local => {
                let policy = self.shares.of(&receipt.policy);
                let receipt = Receipt { policy, ..receipt.clone() };
                FallbackFuture(Answer::Second(self.local.settle(&receipt, actual)))
            }
        }
    }

    fn renew(&self, receipt: &Receipt) -> Self::Future<Option<Receipt>> {
        match receipt.source {
            Source::Store | Source::Cache | Source::Lease => {
                FallbackFuture(Answer::First(self.store.renew(receipt)))
            }
            Source::Local => {
                let whole = receipt.policy.clone();
                let receipt = Receipt { policy: self.shares.of(&whole), ..receipt.clone() };
                let answer = self.local.renew(&receipt);
                let convert = std::convert::identity;
                FallbackFuture(Answer::Renewing { answer, whole, convert })
            }
        }
    }

    /// Resets in the first store; what the local one holds is gone with the outage.
    fn reset(&self, policy: &Policy, key: &Key) -> Self::Future<()> {
        FallbackFuture(Answer::First(self.store.reset(policy, key)))
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn has_local_fallback(&self) -> bool {
        true
    }
}

/// What the errors of this wrapper are called.
const NAME: &str = "fallback store";

/// A request that the local store may have to decide.
struct Request<L> {
    charges: SmallVec<[Owned; 4]>,
    local: L,
    shares: Arc<Shares>,
}

/// A charge that outlives its caller.
#[derive(Debug)]
struct Owned {
    policy: Policy,
    key: Key,
    cost: Cost,
    enforce: bool,
    dry: bool,
}

impl Owned {
    fn of(charge: &Charge<'_>) -> Self {
        let Charge { policy, key, cost, enforce, dry } = *charge;
        Self { policy: policy.clone(), key: key.clone(), cost, enforce, dry }
    }

    fn is_local(&self) -> bool {
        self.policy.on_store_error() == OnStoreError::Local
    }
}

impl<L: Store> Request<L> {
    /// Asks the local store, unless the request is to be refused.
    fn ask(&self, error: StoreError) -> Result<L::Future<Verdict>, StoreError> {
        let closed = |charge: &Owned| {
            charge.enforce && charge.policy.on_store_error() == OnStoreError::Closed
        };
        if !error.is_outage() || self.charges.iter().any(closed) {
            return Err(error);
        }
        let local = || self.charges.iter().filter(|charge| charge.is_local());
        let policies: SmallVec<[Policy; 4]> =
            local().map(|charge| self.shares.of(&charge.policy)).collect();
        let charges: SmallVec<[Charge<'_>; 4]> = local()
            .zip(&policies)
            .map(|(Owned { key, cost, enforce, dry, .. }, policy)| Charge {
                policy,
                key,
                cost: *cost,
                enforce: *enforce,
                dry: *dry,
            })
            .collect();
        Ok(self.local.decide(&charges))
    }

    /// The verdict on the whole request: policies that were not asked fail open.
    fn complete(&self, verdict: &Verdict) -> Result<Verdict, StoreError> {
        // What exceeds the share alone can pass again when the store is back.
        let local = self.charges.iter().filter(|charge| charge.is_local());
        let too_dear = |(charge, decision): (&Owned, &Decision)| {
            charge.enforce
                && decision.outcome == Outcome::Exceed
                && charge.cost.get() <= charge.policy.capacity()
        };
        if local.zip(verdict.decisions()).any(too_dear) {
            let reason = "the request costs more than the local share of the quota";
            return Err(StoreError::not_charged(NAME, reason));
        }
        let mut decided = verdict.decisions().iter().copied();
        let decisions = self.charges.iter().map(|charge| {
            let skipped = Decision::skipped(charge.policy.capacity());
            if charge.is_local() { decided.next().unwrap_or(skipped) } else { skipped }
        });
        let verdict = Verdict::new(verdict.is_admitted(), verdict.decided_at(), decisions);
        Ok(verdict.with_source(Source::Local))
    }
}

/// The answer of the first store, or of the local one.
pub struct FallbackFuture<S: Store, L: Store, T: Send + 'static>(Answer<S, L, T>);

enum Answer<S: Store, L: Store, T: Send + 'static> {
    /// Whatever the first store says.
    First(S::Future<T>),
    /// Whatever the local store says.
    Second(L::Future<T>),
    /// What the first store says, unless it fails.
    Deciding {
        /// Its answer.
        answer: S::Future<T>,
        /// What to ask the local store then.
        request: Request<L>,
        /// Makes the output of a verdict, which it is.
        convert: fn(Verdict) -> T,
    },
    /// The local store renews a lease.
    Renewing {
        /// Its answer, under its share of the policy.
        answer: L::Future<Option<Receipt>>,
        /// The whole policy.
        whole: Policy,
        /// Makes the output of a receipt, which it is.
        convert: fn(Option<Receipt>) -> T,
    },
    /// What the local store says for the first.
    Local {
        /// Its answer.
        answer: L::Future<Verdict>,
        /// What it was asked.
        request: Request<L>,
        /// Makes the output of a verdict, which it is.
        convert: fn(Verdict) -> T,
    },
}

/// Both futures can be moved after they were polled, and nothing else is ever pinned.
impl<S: Store, L: Store, T: Send + 'static> Unpin for FallbackFuture<S, L, T> {}

impl<S: Store, L: Store, T: Send + 'static> Future for FallbackFuture<S, L, T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Answer::First(answer) => return Pin::new(answer).poll(cx),
                Answer::Second(answer) => return Pin::new(answer).poll(cx),
                Answer::Renewing { answer, whole, convert } => {
                    let renewed = ready!(Pin::new(answer).poll(cx))?;
                    let renewed = renewed.map(|it| Receipt { policy: whole.clone(), ..it });
                    return Poll::Ready(Ok(convert(renewed)));
                }
                Answer::Local { answer, request, convert } => {
                    let verdict = ready!(Pin::new(answer).poll(cx))?;
                    return Poll::Ready(request.complete(&verdict).map(*convert));
                }
                Answer::Deciding { answer, request, convert } => {
                    let error = match ready!(Pin::new(answer).poll(cx)) {
                        Ok(verdict) => return Poll::Ready(Ok(verdict)),
                        Err(error) => error,
                    };
                    let answer = request.ask(error)?;
                    let request = request.take();
                    let convert = *convert;
                    self.0 = Answer::Local { answer, request, convert };
                }
            }
        }
    }
}

impl<L: Store> Request<L> {
    /// Moves the request out; what stays behind asks nothing.
    fn take(&mut self) -> Self {
        Self {
            charges: std::mem::take(&mut self.charges),
            local: self.local.clone(),
            shares: Arc::clone(&self.shares),
        }
    }
}

impl<S: Store, L: Store, T: Send + 'static> fmt::Debug for FallbackFuture<S, L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackFuture").finish_non_exhaustive()
    }
}
