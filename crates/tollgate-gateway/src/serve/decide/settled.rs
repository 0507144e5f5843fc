//! Reads a request's actual cost from the response.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, TE};
use http::{Request, Response, StatusCode};
use tollgate::headers;
use tollgate::layer::{Reservation, Verdicts};
use tollgate::policy::Cost;
use tollgate_config::plan::{LimitPlan, SettleBy};
use tollgate_llm::{Call, Meter, Watch};
use tower_service::Service;

use super::facts::{Facts, head};
use super::proxies::TrustedProxies;
use crate::serve::answers::{AnsweredBy, answer_to};
use crate::serve::body::Body;
use tollgate_proxy::{Admitted, Forward};

/// Forwards a request, and settles its charges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled<'a> {
    pub(crate) forward: &'a Forward,
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) prices: Option<&'a Prices>,
}

#[derive(Clone, Debug)]
pub(crate) struct Prices(Arc<[(String, SettleBy)]>);

impl Prices {
    pub(crate) fn of<'a>(limits: impl IntoIterator<Item = &'a LimitPlan>) -> Self {
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
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send + 'a>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Admitted>) -> Self::Future {
        let mut bill = self.bill(&mut request);
        let head = head(&request);
        let client = self.proxies.client(&head, request.body().connection.peer.ip());
        let verdicts = request.extensions().get::<Verdicts>();
        let exceeded = verdicts.and_then(Verdicts::exceeded_header);
        let admitted = request.body_mut();
        admitted.client = client;
        admitted.own_header = exceeded.map(|exceeded| (headers::X_RATELIMIT_EXCEEDED, exceeded));
        let forward = self.forward;
        // Sent in here, because a future that is moved into the box would be copied with all its
        // unused space.
        Box::pin(async move {
            let sent = forward.send(request).await;
            let mut response = sent.map_or_else(answer_to, |it| it.map(Body::from));
            // A tunnel has no body, so the estimate remains charged.
            let bill = bill.take_if(|_| response.status() != StatusCode::SWITCHING_PROTOCOLS);
            if let Some(mut bill) = bill {
                bill.begin(&mut response);
                response = response.map(|body| body.watched_by(bill));
            }
            Ok(response)
        })
    }
}

impl Settled<'_> {
    /// The bill, if the response shows the cost. Boxed, because most requests have none.
    fn bill(&self, request: &mut Request<Admitted>) -> Option<Box<Bill>> {
        let prices = self.prices.filter(|prices| !prices.0.is_empty())?;
        let call = request.extensions_mut().remove::<Facts>().and_then(|facts| facts.call);
        let reservation = request.extensions_mut().remove::<Reservation>();
        if reservation.is_none() && call.is_none() {
            return None;
        }
        if prices.0.iter().any(|(_, settle)| *settle == SettleBy::Trailer) {
            // Over HTTP/1, upstreams send trailers only if the request has this header.
            request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        }
        // Without a charge, the usage that the gateway asked for is hidden nevertheless.
        let reservation = reservation.unwrap_or_default();
        // A client that leaves before the response pays for its input.
        let usage = call.map(|call| Usage { meter: call.meter(""), call });
        Some(Box::new(Bill { reservation, prices: prices.clone(), bytes: None, usage }))
    }
}

struct Bill {
    reservation: Reservation,
    prices: Prices,
    /// `None` before the response.
    bytes: Option<u64>,
    usage: Option<Usage>,
}

/// The usage of a language model.
struct Usage {
    call: Call,
    meter: Meter,
}

impl Bill {
    /// Reads the usage from the response. An error of the model's server refunds tokens and money,
    /// unless the model may have worked on the request.
    fn begin(&mut self, response: &mut Response<Body>) {
        self.bytes = Some(0);
        let Some(usage) = &mut self.usage else { return };
        if response.status().is_success() {
            match usage.call.meter_response(response) {
                Some(meter) => usage.meter = meter,
                // The estimate remains charged.
                None => self.usage = None,
            }
        } else if !AnsweredBy::of(response.extensions()).is_some_and(AnsweredBy::hides_an_outcome) {
            self.usage = None;
            self.settle(|by| by.is_usage().then_some(Cost::ZERO));
        }
    }

    fn settle(&self, cost: impl Fn(SettleBy) -> Option<Cost>) {
        for (policy, by) in &*self.prices.0 {
            if let Some(cost) = cost(*by) {
                self.reservation.settle_policy(policy, cost);
            }
        }
    }
}

impl Watch for Bill {
    fn data(&mut self, data: Bytes) -> Bytes {
        self.bytes = self.bytes.map(|bytes| bytes.saturating_add(data.len() as u64));
        match &mut self.usage {
            Some(usage) => usage.meter.data(data),
            None => data,
        }
    }

    fn rest(&mut self, is_complete: bool) -> Bytes {
        let usage = self.usage.as_mut();
        usage.map_or_else(Bytes::new, |usage| usage.meter.rest(is_complete))
    }

    fn shortens(&self) -> bool {
        self.usage.as_ref().is_some_and(|usage| usage.meter.shortens())
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        let Some(value) = trailers.get(headers::COST) else { return };
        let Some(actual) = value.to_str().ok().and_then(|text| text.trim().parse().ok()) else {
            tracing::warn!(
                "the cost that a trailer states is not an integer, so the estimate remains charged"
            );
            return;
        };
        self.settle(|by| (by == SettleBy::Trailer).then_some(Cost::new(actual)));
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        self.settle(|by| match by {
            SettleBy::Bytes(unit) => Some(Cost::new(self.bytes?.div_ceil(unit))),
            by => {
                let Usage { call, meter } = self.usage.as_ref()?;
                by.cost_of(call.model(), &meter.usage())
            }
        });
    }
}
