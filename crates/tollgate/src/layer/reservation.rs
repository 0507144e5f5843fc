//! Charges that are open until the response is known.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderName, Response};
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::{Cost, Receipt, Store, Verdict};

use super::queued::{Charged, next_id, settle};
use crate::settling::Reserve;
use crate::{Limit, ResponseHead};

/// What a request was charged by estimate, for its handler to correct.
///
/// It is in the extensions of a request that a limit with
/// [`reserve`](crate::Limit::reserve) was charged for: of none that is exempt, or passes
/// because the store cannot decide. So ask for an `Option` of it.
///
/// Clones are one reservation, and it is settled once: what comes after the first time
/// changes nothing. Where layers are nested, it stands for the charges of all of them.
///
/// ```
/// use axum::Extension;
/// use tollgate::{Cost, Reservation};
///
/// async fn chat(reservation: Option<Extension<Reservation>>) -> String {
///     let (answer, tokens) = ("42".to_owned(), 7);
///     if let Some(Extension(reservation)) = reservation {
///         reservation.settle(Cost::new(tokens));
///     }
///     answer
/// }
/// # let _ = chat;
/// ```
///
/// # Another process
///
/// Where the cost is known only elsewhere, hand the [`receipts`](Self::receipts) over: any
/// process may give them to [`Store::settle`], and the store takes each once.
#[derive(Clone)]
pub struct Reservation {
    open: OpenCharges,
    outer: Option<Box<Self>>,
}

impl Reservation {
    /// The request has cost `actual` units. See [`Reserve`] for what that changes.
    ///
    /// It does not wait for the store; if that fails, the estimate stands, and an event of
    /// target `tollgate` says so.
    pub fn settle(&self, actual: Cost) {
        self.each(|open| open.settle(actual, &OpenCharge::is_reserved));
    }

    /// As [`settle`](Self::settle), for the charge of one policy alone.
    pub fn settle_policy(&self, policy: &str, actual: Cost) {
        self.each(|open| {
            open.settle(actual, &|charge| charge.is_reserved() && charge.is_of(policy));
        });
    }

    /// The receipts of what is not settled yet. They are still settled from here as well,
    /// if somebody does: whoever comes first counts.
    pub fn receipts(&self) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        self.each(|open| receipts.extend(open.receipts()));
        receipts
    }

    fn each(&self, mut act: impl FnMut(&dyn Open)) {
        let mut next = Some(self);
        while let Some(reservation) = next {
            act(&*reservation.open.0);
            next = reservation.outer.as_deref();
        }
    }
}

/// The charges of a request that are still to be settled, without the type of the store,
/// which handlers do not know.
#[derive(Clone)]
pub(super) struct OpenCharges(Arc<dyn Open>);

impl OpenCharges {
    /// Those of the charges that were made and that `limits` correct later, if any.
    pub(super) fn new<'a, St: Store>(
        store: &St,
        verdict: &Verdict,
        charged: &[Charged],
        limits: &(impl Iterator<Item = &'a Limit> + Clone),
    ) -> Option<Self> {
        let charges: Vec<_> = charged.iter().map(Charged::charge).collect();
        let open = verdict.receipts(&charges, next_id).filter_map(|receipt| {
            let mut limits = limits.clone();
            let limit = limits.find(|limit| limit.policy.name() == receipt.policy.name())?;
            let reserve = limit.settling.reserve.clone();
            limit.settling.settles().then_some(OpenCharge { receipt, reserve })
        });
        let open: Vec<_> = open.collect();
        if open.is_empty() {
            return None;
        }
        let (store, made) = (store.clone(), Instant::now());
        Some(Self(Arc::new(Book { store, made, open: Mutex::new(open) })))
    }

    /// Lets the handler settle what is reserved.
    pub(super) fn hand_to(&self, extensions: &mut Extensions) {
        if self.0.has_reserved() {
            let outer = extensions.remove::<Reservation>().map(Box::new);
            extensions.insert(Reservation { open: self.clone(), outer });
        }
    }

    /// Settles what the response decides.
    pub(super) fn settle_by<'a, B>(
        &self,
        response: &mut Response<B>,
        limits: impl Iterator<Item = &'a Limit>,
    ) {
        let head = ResponseHead::of(response);
        let mut read = Vec::<HeaderName>::new();
        for limit in limits {
            let of_limit = |charge: &OpenCharge| charge.is_of(limit.policy.name());
            let settling = &limit.settling;
            if let Some(counts) = &settling.counts {
                match (limit.policy.penalises(), counts(&head)) {
                    (true, true) => self.0.strike(&of_limit),
                    (false, false) => self.0.settle(Cost::ZERO, &of_limit),
                    _ => {}
                }
            }
            if let Some(reserve) = &settling.reserve {
                if let Some(actual) = reserve.stated(head.headers) {
                    self.0.settle(actual, &of_limit);
                }
                read.extend(reserve.header.clone());
            }
        }
        for name in read {
            response.headers_mut().remove(name);
        }
    }
}

/// A charge that is still to be settled.
struct OpenCharge {
    receipt: Receipt,
    /// Says that handlers and services may settle it, and until when.
    reserve: Option<Reserve>,
}

impl OpenCharge {
    const fn is_reserved(&self) -> bool {
        self.reserve.is_some()
    }

    fn is_of(&self, policy: &str) -> bool {
        self.receipt.policy.name() == policy
    }

    fn has_lapsed(&self, age: Duration) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.has_lapsed(age))
    }
}

struct Book<St> {
    store: St,
    made: Instant,
    open: Mutex<Vec<OpenCharge>>,
}

trait Open: Send + Sync {
    /// Settles the charges that `picked` is true for; the others stay open.
    fn settle(&self, actual: Cost, picked: &dyn Fn(&OpenCharge) -> bool);
    /// The same, to one more than was charged: of a penalty that is a strike.
    fn strike(&self, picked: &dyn Fn(&OpenCharge) -> bool);
    fn receipts(&self) -> Vec<Receipt>;
    fn has_reserved(&self) -> bool;
}

impl<St: Store> Open for Book<St> {
    fn settle(&self, actual: Cost, picked: &dyn Fn(&OpenCharge) -> bool) {
        // Taken out under the lock, so that each is settled once whoever asks at once.
        let settled: Vec<_> = self.open.lock().extract_if(.., |charge| picked(charge)).collect();
        let age = self.made.elapsed();
        for charge in settled.into_iter().filter(|charge| !charge.has_lapsed(age)) {
            settle(&self.store, &charge.receipt, actual);
        }
    }

    fn strike(&self, picked: &dyn Fn(&OpenCharge) -> bool) {
        let struck: Vec<_> = self.open.lock().extract_if(.., |charge| picked(charge)).collect();
        for OpenCharge { receipt, .. } in struck {
            settle(&self.store, &receipt, receipt.charged.cost.plus(Cost::ONE));
        }
    }

    fn receipts(&self) -> Vec<Receipt> {
        let open = self.open.lock();
        let reserved = open.iter().filter(|charge| charge.is_reserved());
        reserved.map(|charge| charge.receipt.clone()).collect()
    }

    fn has_reserved(&self) -> bool {
        self.open.lock().iter().any(OpenCharge::is_reserved)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").finish_non_exhaustive()
    }
}
