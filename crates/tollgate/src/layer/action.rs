//! The actions of the layer, and the data that it keeps of a request until then.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Extensions, Response};
use smallvec::SmallVec;
use tokio::time::Sleep;
use tollgate_core::{Charge, Micros, OwnedCharge, Store, StoreError, Timestamp, Verdict};

use super::cancel::CancelGuard;
use super::limits::{AppliedLimits, CompiledLimit, ResolvedLimits, TierIndex};
use super::settlement::{OpenCharges, Reservation};
use super::telemetry::{DecisionTimer, WaitTimer};
use super::verdicts::Verdicts;
use crate::body::InFlight;

pub(super) enum Action<St: Store> {
    Forward(ResponseWork),
    Wait(Box<Waiting<St>>),
    Respond(OwnResponse),
}

/// A response of the layer. Boxed, because most requests have none.
pub(super) type OwnResponse = Box<Response<Bytes>>;

pub(super) enum Waiting<St: Store> {
    /// The answer of the store, or of the wait queue in front of it.
    Decision { answer: DecisionFuture, context: RequestContext },
    /// Its turn in a leaky bucket. Until then the guard returns its charges if it is dropped.
    Turn { turn: Pin<Box<Sleep>>, guard: Option<(CancelGuard<St>, WaitTimer)>, work: ResponseWork },
}

impl<St: Store> Waiting<St> {
    /// Whether the wait is so short that the request keeps its place in the service.
    pub(super) const fn is_short(&self) -> bool {
        matches!(self, Self::Decision { context, .. } if !context.timer.has_waited)
    }
}

pub(super) type Answer = Result<Verdict, StoreError>;

pub(super) type DecisionFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

#[derive(Default)]
pub(super) struct RequestContext {
    pub(super) resolved: ResolvedLimits,
    pub(super) tier: TierIndex,
    pub(super) timer: DecisionTimer,
    /// The number of the request in the order of arrival, if a limit lets requests wait.
    pub(super) arrival: u64,
}

impl RequestContext {
    pub(super) fn applied(&self) -> AppliedLimits {
        let bits = self.resolved.iter().fold(0, |bits, resolved| bits | 1 << resolved.limit);
        AppliedLimits { bits, tier: self.tier }
    }

    #[inline]
    pub(super) fn charges<'a>(&'a self, limits: &'a [CompiledLimit]) -> SmallVec<[Charge<'a>; 4]> {
        let charges = self.resolved.iter();
        charges.map(|it| limits[it.limit].charge(&it.subject.key, it.cost, self.tier)).collect()
    }

    pub(super) fn owned_charges(&self, limits: &[CompiledLimit]) -> Arc<[OwnedCharge]> {
        self.charges(limits).iter().map(OwnedCharge::from).collect()
    }
}

#[derive(Default)]
pub(super) enum ResponseWork {
    #[default]
    None,
    Fields(Allowances),
    Full(Box<Admission>),
}

/// The numbers of a verdict that the header fields show: less to move than the verdict.
pub(super) struct Allowances {
    pub(super) decided_at: Timestamp,
    pub(super) applied: AppliedLimits,
    pub(super) numbers: SmallVec<[Allowance; 2]>,
}

pub(super) struct Allowance {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) reset_after: Micros,
}

pub(super) struct Admission {
    pub(super) verdict: Verdict,
    pub(super) applied: AppliedLimits,
    pub(super) open: Option<Arc<OpenCharges>>,
    pub(super) in_flight: InFlight,
}

impl ResponseWork {
    #[inline]
    pub(super) fn prepare(&self, extensions: &mut Extensions, expose_verdicts: bool) {
        if let Self::Full(admission) = self {
            if expose_verdicts {
                Verdicts::push(extensions, admission.verdict.clone());
            }
            admission.in_flight.hand_over(extensions);
            if let Some(open) = &admission.open {
                Reservation::hand_over(open, extensions);
            }
        }
    }
}
