//! Reads a request's actual cost from the response body.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, TE};
use http::{Request, Response, StatusCode};
use tollgate::headers;
use tollgate::layer::Reservation;
use tollgate::policy::Cost;
use tower_service::Service;

use crate::plan::{LimitPlan, SettleBy};
use crate::proxy::{Admitted, Answering, Body, Forward, Watch};

#[derive(Clone, Copy, Debug)]
pub(super) struct Settled<'a> {
    pub(super) forward: &'a Forward,
    pub(super) prices: Option<&'a Prices>,
}

#[derive(Clone, Debug)]
pub(super) struct Prices(Arc<[(String, SettleBy)]>);

impl Prices {
    pub(super) fn of<'a>(limits: impl IntoIterator<Item = &'a LimitPlan>) -> Self {
        let mut prices = Vec::new();
        for limit in limits {
            let Some(settle) = limit.reserve.map(|it| it.settle) else { continue };
            if settle == SettleBy::Header {
                continue;
            }
            for policy in limit.policies() {
                if !prices.iter().any(|(name, _)| name == policy.name()) {
                    prices.push((policy.name().to_owned(), settle));
                }
            }
        }
        Self(prices.into())
    }
}

impl<'a> Service<Request<Admitted>> for Settled<'a> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering<'a>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Admitted>) -> Self::Future {
        let prices = self.prices.filter(|prices| !prices.0.is_empty());
        let Some(prices) = prices else { return self.forward.send(request) };
        let Some(reservation) = request.extensions_mut().remove::<Reservation>() else {
            return self.forward.send(request);
        };
        if prices.0.iter().any(|(_, settle)| *settle == SettleBy::Trailer) {
            // Over HTTP/1, upstreams send trailers only if the request has this header.
            request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        }
        let answer = self.forward.send(request);
        let prices = prices.clone();
        Box::pin(async move {
            let response = answer.await?;
            // A tunnel has no body, so the estimate remains charged.
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(response);
            }
            let bill = Bill { reservation, prices, bytes: 0 };
            Ok(response.map(|body| body.watched_by(Box::new(bill))))
        })
    }
}

struct Bill {
    reservation: Reservation,
    prices: Prices,
    bytes: u64,
}

impl Watch for Bill {
    fn data(&mut self, data: &Bytes) {
        self.bytes = self.bytes.saturating_add(data.len() as u64);
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        let Some(value) = trailers.get(headers::COST) else { return };
        let Some(actual) = value.to_str().ok().and_then(|text| text.trim().parse().ok()) else {
            tracing::warn!(
                "the cost that a trailer states is not an integer, so the estimate remains charged"
            );
            return;
        };
        for (policy, settle) in &*self.prices.0 {
            if *settle == SettleBy::Trailer {
                self.reservation.settle_policy(policy, Cost::new(actual));
            }
        }
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        for (policy, settle) in &*self.prices.0 {
            if let SettleBy::Bytes(unit) = settle {
                self.reservation.settle_policy(policy, Cost::new(self.bytes.div_ceil(*unit)));
            }
        }
    }
}

impl fmt::Debug for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bill").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
