use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate_core::Cost;

use super::settlement::Reservation;
use crate::body::is_last;

/// Counts the cost of a request and settles its [`Reservation`] when it is dropped: at the end of a
/// streamed response, or when the client leaves.
///
/// If the client leaves before anything was counted, the estimate stands, because the service has
/// already worked on the request. A client could otherwise send any number of expensive requests and
/// abort each of them. With [`at_least`](Self::at_least) the request costs this minimum instead,
/// also if the client leaves later.
///
/// Move it into the stream, or let it count a body:
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use tollgate::layer::Reservation;
///
/// fn answer(reservation: Reservation) -> impl http_body::Body<Data = Bytes> {
///     // A unit for each token, as many as words here.
///     let body = Full::new(Bytes::from("forty two"));
///     // The prompt has cost 40 units, even if the client does not wait for the answer.
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
}

impl Reservation {
    /// Counts the cost from zero and settles at the end.
    pub fn tally(self) -> Tally {
        Tally {
            reservation: self,
            units: AtomicU64::new(0),
            has_counted: AtomicBool::new(false),
            least: None,
        }
    }
}

impl Tally {
    /// Sets the minimum cost of the request, for example the cost of its prompt.
    #[must_use]
    pub fn at_least(mut self, units: impl Into<Cost>) -> Self {
        self.least = Some(units.into());
        self
    }

    /// Adds units to the cost of the request. `add(0)` states that the request costs nothing more.
    pub fn add(&self, units: u64) {
        let add = |sum: u64| Some(sum.saturating_add(units));
        let _ = self.units.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.has_counted.store(true, Ordering::Relaxed);
    }

    /// Counts each piece of a streamed `body` when it is sent.
    pub fn body<B, F>(self, body: B, units: F) -> TalliedBody<B, F>
    where
        B: Body<Data = Bytes>,
        F: FnMut(&Bytes) -> u64,
    {
        let tally = if body.is_end_stream() {
            // A server does not poll an empty body.
            self.add(0);
            None
        } else {
            Some(self)
        };
        TalliedBody { body, units, tally }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let counted = self.has_counted.get_mut().then_some(Cost::new(*self.units.get_mut()));
        if let Some(cost) = counted.max(self.least) {
            self.reservation.settle(cost);
        }
    }
}

pin_project! {
    /// A body that counts what it costs. Made by [`Tally::body`].
    pub struct TalliedBody<B, F> {
        #[pin]
        body: B,
        units: F,
        // Dropped before the last frame is returned.
        tally: Option<Tally>,
    }
}

impl<B, F> Body for TalliedBody<B, F>
where
    B: Body<Data = Bytes>,
    F: FnMut(&Bytes) -> u64,
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
            match &frame {
                Some(Ok(frame)) => {
                    // Trailers cost nothing, and a server may poll no further.
                    tally.add(frame.data_ref().map_or(0, |data| (this.units)(data)));
                }
                // An empty body has ended as well, so its cost is known.
                None => tally.add(0),
                Some(Err(_)) => {}
            }
            if is_last(&*this.body, frame.as_ref()) {
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
