//! A response that settles its request's reservation.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tollgate::layer::Reservation;

use super::Budget;
use crate::Meter;

/// Settles when it is dropped.
pub(super) struct Bill {
    /// `None` if the response does not show its usage.
    pub(super) meter: Option<Meter>,
    pub(super) reservation: Reservation,
    pub(super) shared: Arc<Budget>,
}

impl Drop for Bill {
    fn drop(&mut self) {
        let Some(meter) = &self.meter else { return };
        if let Some(tokens) = &self.shared.tokens {
            self.reservation.settle_policy(tokens, meter.usage().total());
        }
        if let Some(money) = &self.shared.money {
            self.reservation.settle_policy(money, meter.price());
        }
    }
}

pub(super) struct MeteredBody {
    body: Body,
    /// Dropped before the last frame is returned, because the client may then send its next request.
    bill: Option<Bill>,
    /// The end, or the last frame, after the bytes that the meter has retained.
    last: Option<Option<Result<Frame<Bytes>, axum::Error>>>,
}

impl MeteredBody {
    pub(super) const fn new(body: Body, bill: Bill) -> Self {
        Self { body, bill: Some(bill), last: None }
    }
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Some(last) = this.last.take() {
            return Poll::Ready(last);
        }
        loop {
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            let is_last = match &frame {
                Some(Ok(frame)) => frame.is_trailers() || this.body.is_end_stream(),
                None | Some(Err(_)) => true,
            };
            let meter = this.bill.as_mut().and_then(|bill| bill.meter.as_mut());
            let Some(meter) = meter else { return Poll::Ready(frame) };
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            let is_data = data.is_some();
            let mut passed = data.map_or_else(Vec::new, |data| meter.read(data).into_owned());
            if is_last {
                let is_complete = !matches!(frame, Some(Err(_)));
                passed.extend(if is_complete { meter.finish() } else { meter.break_off() });
                this.bill = None;
            }
            if passed.is_empty() && !is_last {
                continue;
            }
            if passed.is_empty() && !is_data {
                return Poll::Ready(frame);
            }
            this.last = (!is_data).then_some(frame);
            return Poll::Ready(Some(Ok(Frame::data(passed.into()))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bill.is_none() && self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let meter = self.bill.as_ref().and_then(|bill| bill.meter.as_ref());
        match meter {
            Some(meter) if meter.shortens() => SizeHint::default(),
            _ => self.body.size_hint(),
        }
    }
}
