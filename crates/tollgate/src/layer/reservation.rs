//! Charges that are open until the response is known.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Extensions;
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::{Cost, Decision, Micros, Receipt, Store, Verdict};

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
        let open = verdict.receipts(&charges, || next_id(verdict)).filter_map(|receipt| {
            let mut limits = limits.clone().enumerate();
            let (place, limit) =
                limits.find(|(_, limit)| limit.policy.name() == receipt.policy.name())?;
            let reserve = limit.settling.reserve.clone();
            limit.settling.settles().then_some(OpenCharge { place, receipt, reserve })
        });
        let open: Vec<_> = open.collect();
        if open.is_empty() {
            return None;
        }
        let (store, made) = (store.clone(), Instant::now());
        let pages = Pages { open, settled: Vec::new() };
        Some(Self(Arc::new(Book { store, made, pages: Mutex::new(pages) })))
    }

    /// The verdict with what has been settled of it so far, if anything: what the client
    /// has left is what it would have if the right cost had been charged at once.
    pub(super) fn corrected(&self, verdict: &Verdict) -> Option<Verdict> {
        let settled = self.0.settled();
        if settled.is_empty() {
            return None;
        }
        let mut decisions = verdict.decisions().to_vec();
        for Settled { place, estimate, actual } in settled {
            if let Some(decision) = decisions.get_mut(place) {
                *decision = correct(*decision, estimate, actual);
            }
        }
        let (admitted, at) = (verdict.is_admitted(), verdict.decided_at());
        Some(Verdict::new(admitted, at, decisions).with_source(verdict.source()))
    }

    /// Lets the handler settle what is reserved.
    pub(super) fn hand_to(&self, extensions: &mut Extensions) {
        if self.0.has_reserved() {
            let outer = extensions.remove::<Reservation>().map(Box::new);
            extensions.insert(Reservation { open: self.clone(), outer });
        }
    }

    /// Settles what the response decides.
    pub(super) fn settle_by<'a>(
        &self,
        head: &ResponseHead<'_>,
        limits: impl Iterator<Item = &'a Limit>,
    ) {
        for limit in limits {
            let of_limit = |charge: &OpenCharge| charge.is_of(limit.policy.name());
            let settling = &limit.settling;
            if let Some(counts) = &settling.counts {
                match (limit.policy.penalises(), counts(head)) {
                    (true, true) => self.0.strike(&of_limit),
                    (false, false) => self.0.settle(Cost::ZERO, &of_limit),
                    _ => {}
                }
            }
            if let Some(reserve) = &settling.reserve
                && let Some(actual) = reserve.stated(head.headers)
            {
                self.0.settle(actual, &of_limit);
            }
        }
    }
}

fn correct(decision: Decision, estimate: Cost, actual: Cost) -> Decision {
    let (estimate, actual) = (estimate.get(), actual.get());
    let returned = decision.remaining.saturating_add(estimate.saturating_sub(actual));
    let remaining = returned.saturating_sub(actual.saturating_sub(estimate)).min(decision.limit);
    // Nobody else has used any of it: then it is whole already.
    let reset_after = if remaining == decision.limit { Micros::ZERO } else { decision.reset_after };
    Decision { remaining, reset_after, ..decision }
}

/// A charge that is still to be settled.
struct OpenCharge {
    /// Of its decision in the verdict.
    place: usize,
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

/// A charge that was.
#[derive(Clone, Copy)]
struct Settled {
    place: usize,
    estimate: Cost,
    actual: Cost,
}

struct Book<St> {
    store: St,
    made: Instant,
    pages: Mutex<Pages>,
}

struct Pages {
    open: Vec<OpenCharge>,
    settled: Vec<Settled>,
}

trait Open: Send + Sync {
    /// Settles the charges that `picked` is true for; the others stay open.
    fn settle(&self, actual: Cost, picked: &dyn Fn(&OpenCharge) -> bool);
    /// Settles them to one more than was charged: of a penalty that is a strike.
    fn strike(&self, picked: &dyn Fn(&OpenCharge) -> bool);
    fn settled(&self) -> Vec<Settled>;
    fn receipts(&self) -> Vec<Receipt>;
    fn has_reserved(&self) -> bool;
}

impl<St: Store> Open for Book<St> {
    fn settle(&self, actual: Cost, picked: &dyn Fn(&OpenCharge) -> bool) {
        let age = self.made.elapsed();
        // Taken out under the lock, so that each is settled once whoever asks at once.
        let charges: Vec<_> = {
            let mut pages = self.pages.lock();
            let charges = pages.open.extract_if(.., |charge| picked(charge));
            let charges: Vec<_> = charges.filter(|charge| !charge.has_lapsed(age)).collect();
            pages.settled.extend(charges.iter().map(|charge| {
                let estimate = charge.receipt.charged.cost;
                Settled { place: charge.place, estimate, actual }
            }));
            charges
        };
        for charge in charges {
            settle(&self.store, &charge.receipt, actual);
        }
    }

    fn strike(&self, picked: &dyn Fn(&OpenCharge) -> bool) {
        // The lock is released before the store is called.
        let charges: Vec<_> = {
            let mut pages = self.pages.lock();
            pages.open.extract_if(.., |charge| picked(charge)).collect()
        };
        for OpenCharge { receipt, .. } in charges {
            settle(&self.store, &receipt, receipt.charged.cost.plus(Cost::ONE));
        }
    }

    fn settled(&self) -> Vec<Settled> {
        self.pages.lock().settled.clone()
    }

    fn receipts(&self) -> Vec<Receipt> {
        let pages = self.pages.lock();
        let reserved = pages.open.iter().filter(|charge| charge.is_reserved());
        reserved.map(|charge| charge.receipt.clone()).collect()
    }

    fn has_reserved(&self) -> bool {
        self.pages.lock().open.iter().any(OpenCharge::is_reserved)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").finish_non_exhaustive()
    }
}
