//! Costs that are counted while a response streams.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tollgate_core::Cost;

use super::reservation::Reservation;
use crate::body::is_last;

/// Counts a request's cost and settles its [`Reservation`] when dropped: when a streamed response
/// is complete, or when the client disconnects.
///
/// If the client disconnects before any units were counted, the estimate becomes final, because the
/// service has already worked on the request. Otherwise a client could send any number of expensive
/// requests and abort each. With [`at_least`](Self::at_least), the request costs this minimum
/// instead, even if the client disconnects later.
///
/// Move it into the stream, or let it count a body:
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use tollgate::layer::Reservation;
///
/// fn answer(reservation: Reservation) -> impl http_body::Body<Data = Bytes> {
///     // One unit per token. In this example, each word is a token.
///     let body = Full::new(Bytes::from("forty two"));
///     // The prompt costs 40 units, even if the client does not wait for the answer.
///     let tally = reservation.tally().at_least(40);
///     tally.body(body, |data| data.split(|byte| *byte == b' ').count() as u64)
/// }
/// # let _ = answer;
/// ```
pub struct Tally {
    reservation: Reservation,
    units: AtomicU64,
    has_counted: AtomicBool,
    least: Option<Cost>,
    by_policy: Mutex<PolicyCosts>,
}

type PolicyCosts = SmallVec<[(Box<str>, Cost); 2]>;

impl Reservation {
    /// Counts the cost from zero and settles it when dropped.
    pub fn tally(self) -> Tally {
        Tally {
            reservation: self,
            units: AtomicU64::new(0),
            has_counted: AtomicBool::new(false),
            least: None,
            by_policy: Mutex::default(),
        }
    }
}

impl Tally {
    /// Sets the request's minimum cost, for example the cost of its prompt.
    #[must_use]
    pub fn at_least(mut self, units: impl Into<Cost>) -> Self {
        self.least = Some(units.into());
        self
    }

    /// Adds units to the request cost. `add(0)` marks the request as counted, without more units.
    pub fn add(&self, units: u64) {
        let add = |sum: u64| Some(sum.saturating_add(units));
        let _ = self.units.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.has_counted.store(true, Ordering::Relaxed);
    }

    /// Sets the cost for a policy, for example if tokens and cents have different policies. It
    /// replaces the policy's earlier cost. [`add`](Self::add) and [`at_least`](Self::at_least) then
    /// apply to the other policies.
    ///
    /// ```
    /// use tollgate::layer::Reservation;
    ///
    /// async fn chat(reservation: Reservation) {
    ///     let tally = reservation.tally();
    ///     // The prompt, even if the client does not wait for the answer.
    ///     tally.set_policy("tokens", 40);
    ///     tally.set_policy("cents", 1);
    ///     // The final usage.
    ///     tally.set_policy("tokens", 260);
    ///     tally.set_policy("cents", 7);
    /// }
    /// # let _ = chat;
    /// ```
    pub fn set_policy(&self, policy: &str, units: impl Into<Cost>) {
        let units = units.into();
        let mut by_policy = self.by_policy.lock();
        match by_policy.iter_mut().find(|(name, _)| **name == *policy) {
            Some((_, cost)) => *cost = units,
            None => by_policy.push((policy.into(), units)),
        }
    }

    /// Counts each chunk when the streamed `body` sends it.
    pub fn body<B, F>(self, body: B, mut units: F) -> TalliedBody<B, impl FnMut(&Self, &Bytes)>
    where
        B: Body<Data = Bytes>,
        F: FnMut(&Bytes) -> u64,
    {
        self.body_with(body, move |tally: &Self, data: &Bytes| match units(data) {
            // If the client leaves now, the estimate remains.
            0 => {}
            units => tally.add(units),
        })
    }

    /// Calls `count` for each chunk when the streamed `body` sends it, for example to
    /// [set the cost](Self::set_policy) for each policy.
    pub fn body_with<B, F>(self, body: B, count: F) -> TalliedBody<B, F>
    where
        B: Body<Data = Bytes>,
        F: FnMut(&Self, &Bytes),
    {
        let tally = if body.is_end_stream() {
            // Servers do not poll an empty body.
            self.add(0);
            None
        } else {
            Some(self)
        };
        TalliedBody { body, count, tally }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        for (policy, cost) in self.by_policy.get_mut().drain(..) {
            self.reservation.settle_policy(&policy, cost);
        }
        // The first settlement counts, so these policies are not settled again.
        let counted = self.has_counted.get_mut().then_some(Cost::new(*self.units.get_mut()));
        if let Some(cost) = counted.max(self.least) {
            self.reservation.settle(cost);
        }
    }
}

pin_project! {
    /// A body that counts its cost. Created by [`Tally::body`] and [`Tally::body_with`].
    pub struct TalliedBody<B, F> {
        #[pin]
        body: B,
        count: F,
        // Dropped before the last frame is returned.
        tally: Option<Tally>,
    }
}

impl<B, F> Body for TalliedBody<B, F>
where
    B: Body<Data = Bytes>,
    F: FnMut(&Tally, &Bytes),
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = std::task::ready!(this.body.as_mut().poll_frame(cx));
        if let Some(tally) = this.tally {
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
            {
                (this.count)(tally, data);
            }
            if is_last(&*this.body, frame.as_ref()) {
                // The body is complete, so its cost is known, even if no unit was counted.
                if !matches!(frame, Some(Err(_))) {
                    tally.add(0);
                }
                *this.tally = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

debug_fields!(Tally, units);
debug_fields!([B, F] TalliedBody<B, F>, tally);
