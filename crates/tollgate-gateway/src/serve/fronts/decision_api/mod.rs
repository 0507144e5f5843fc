//! Decisions over HTTP with JSON, for programs in any language.

mod wire;

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tollgate::denial::problem_response;
use tollgate::key::Key;
use tollgate::layer::WaitQueue;
use tollgate::limiter::AcquireError;
use tollgate::observe::{Inspect, LayerHandle, Observer};
use tollgate::policy::Cost;
use tollgate::store::{Charge, Micros, StoreError};
use tollgate::{Limiter, Policy};
use tollgate_admin::Token;
use tollgate_config::plan::{ApiWaits, DecisionApiPlan};

use self::wire::{Block, Blocked, Decide, Decided, Settle, Settled};
use crate::serve::body::Body;
use crate::serve::error::BuildError;

pub(crate) struct DecisionApi<St: Inspect> {
    limiter: Limiter<St>,
    policies: Vec<Policy>,
    token: Option<Token>,
    longest_wait: Duration,
    longest_block: Option<Duration>,
}

impl<St: Inspect> DecisionApi<St> {
    pub(crate) fn new(
        plan: &DecisionApiPlan,
        store: &St,
        observer: &Observer,
        room: &WaitQueue,
    ) -> Result<Self, BuildError> {
        let builder = Limiter::builder(store.clone()).observer(observer).wait_queue(room);
        let builder = plan.policies.iter().cloned().fold(builder, |it, policy| it.policy(policy));
        let builder = match plan.waits {
            None => builder,
            Some(ApiWaits::InGateway(max)) => builder.wait(max),
            Some(ApiWaits::InStore(max)) => builder.queue(max),
        };
        let builder = match plan.longest_block {
            None => builder,
            Some(longest) => builder.pausable(longest),
        };
        let limiter = builder.build()?;
        let token = plan.token.as_ref().map(|token| Token::new(token.reveal())).transpose()?;
        Ok(Self {
            policies: limiter.policies().cloned().collect(),
            limiter,
            token,
            longest_wait: match plan.waits {
                None => Duration::ZERO,
                Some(ApiWaits::InGateway(max) | ApiWaits::InStore(max)) => max,
            },
            longest_block: plan.longest_block,
        })
    }

    pub(crate) fn handle(&self) -> LayerHandle {
        self.limiter.handle()
    }

    async fn decide(&self, asked: Decide) -> Result<Decided, Problem> {
        let wait = self.wait(&asked)?;
        if asked.dry_run {
            return self.look(&asked).await;
        }
        let mut call = self.limiter.request();
        for charge in &asked.charges {
            call = call.policy(&charge.policy, &charge.key(), charge.cost);
        }
        match call.within(wait).acquire().await {
            Ok(permit) => Ok(Decided::allowed(&permit.verdicts(), &permit.receipts(), &asked)),
            Err(
                AcquireError::Denied(refusal)
                | AcquireError::TooLate(refusal)
                | AcquireError::QueueFull(refusal),
            ) => Ok(Decided::denied(&refusal)),
            Err(AcquireError::Store(error)) => Err(Problem::from(error)),
            Err(error) => Err(Problem::bad(error.to_string())),
        }
    }

    /// How long the request may wait.
    fn wait(&self, asked: &Decide) -> Result<Duration, Problem> {
        if asked.charges.is_empty() {
            return Err(Problem::bad("`charges` must contain at least one charge."));
        }
        for charge in &asked.charges {
            self.policy(&charge.policy)?;
        }
        match asked.wait {
            None => Ok(Duration::ZERO),
            Some(_) if asked.dry_run => {
                Err(Problem::bad("`wait` has no effect on a dry run: remove one of them."))
            }
            Some(seconds) => match Duration::try_from_secs_f64(seconds) {
                Err(_) => Err(Problem::bad("`wait` must be a number of seconds.")),
                Ok(wait) if wait > self.longest_wait => Err(Problem::bad(format!(
                    "`wait` may be at most {} s. `decisionApi.wait` or `decisionApi.queue` in the \
                     gateway's file sets this.",
                    self.longest_wait.as_secs_f64()
                ))),
                Ok(wait) => Ok(wait),
            },
        }
    }

    /// What `decide` would answer, without a charge.
    async fn look(&self, asked: &Decide) -> Result<Decided, Problem> {
        let mut charges = Vec::with_capacity(asked.charges.len());
        for charge in &asked.charges {
            let key = charge.key();
            let (policy, blocked) = self.in_force(self.policy(&charge.policy)?, &key);
            charges.push((policy, key, Cost::new(charge.cost), blocked));
        }
        let dry = charges.iter().map(|(policy, key, cost, _)| {
            let charge = Charge::new(policy, key, *cost).dry();
            Charge { queue: None, ..charge }
        });
        let dry: Vec<_> = dry.collect();
        let reply = self.limiter.store().decide(&dry);
        let verdict = reply.await?;
        let decisions = charges.iter().zip(verdict.decisions());
        let decisions = decisions.map(|((policy, _, _, blocked), decision)| {
            (policy, blocked.map_or(*decision, |left| decision.blocked_for(left)))
        });
        Ok(Decided::dry(decisions))
    }

    /// The policy that applies to a key now, and how long an operator has blocked the key.
    fn in_force(&self, policy: &Policy, key: &Key) -> (Policy, Option<Micros>) {
        match self.limiter.store().overrides() {
            Some(overrides) => overrides.apply(policy, key),
            None => (policy.clone(), None),
        }
    }

    fn policy(&self, name: &str) -> Result<&Policy, Problem> {
        self.policies.iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.policies.iter().map(Policy::name).collect();
            Problem::bad(format!("There is no policy `{name}`. There are: {}.", names.join(", ")))
        })
    }

    async fn settle(&self, asked: Settle) -> Result<Settled, Problem> {
        let policy = self.policy(&asked.receipt.policy)?;
        let (policy, _) = self.in_force(policy, &asked.receipt.key());
        let receipt = asked.receipt.read(&policy).map_err(Problem::bad)?;
        let reply = self.limiter.store().settle(&receipt, Cost::new(asked.actual));
        Ok(Settled::from(reply.await?))
    }

    async fn block(&self, asked: Block) -> Result<Blocked, Problem> {
        let Some(longest) = self.longest_block else {
            let cure = "No key can be blocked: add `longestBlock: 1h` to `decisionApi` in the \
                        gateway's file.";
            return Err(Problem::bad(cure));
        };
        let length = Duration::try_from_secs_f64(asked.seconds).unwrap_or_default();
        if length.is_zero() || length > longest {
            let longest = longest.as_secs_f64();
            return Err(Problem::bad(format!("`seconds` must be above 0 and at most {longest}.")));
        }
        let blocked = self.limiter.pause(&Key::from(&*asked.key), length).await?;
        Ok(Blocked { seconds: blocked.map(|length| length.as_secs_f64()) })
    }
}

pub(crate) async fn answer<St: Inspect>(
    api: Option<&DecisionApi<St>>,
    idle: Duration,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some(api) = api else {
        return Problem::new(StatusCode::NOT_FOUND, "No `decisionApi` is configured.").respond();
    };
    let (head, body) = request.into_parts();
    let answered = async {
        let path = head.uri.path();
        if path == "/v1/openapi.json" {
            allow(&head.method, "GET")?;
            return Ok(json(Bytes::from_static(OPENAPI.as_bytes())));
        }
        if !PATHS.contains(&path) {
            let detail = format!("There are {} and /v1/openapi.json.", PATHS.join(", "));
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        }
        allow(&head.method, "POST")?;
        api.check_token(&head.headers)?;
        let body = timeout(idle, Limited::new(body, MOST_BYTES).collect()).await;
        let body = match body {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return Err(Problem::bad(format!("The body: {error}."))),
            Err(_) => return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "The body is late.")),
        };
        match path {
            "/v1/settle" => said(&api.settle(read(&body)?).await?),
            "/v1/block" => said(&api.block(read(&body)?).await?),
            _ => said(&api.decide(read(&body)?).await?),
        }
    };
    answered.await.unwrap_or_else(Problem::respond)
}

const PATHS: [&str; 3] = ["/v1/decide", "/v1/settle", "/v1/block"];

const OPENAPI: &str = include_str!("openapi.json");

const MOST_BYTES: usize = 64 << 10;

impl<St: Inspect> DecisionApi<St> {
    fn check_token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.token.as_ref().is_none_or(|token| token.is_in(headers)) {
            return Ok(());
        }
        let detail = "Send `decisionApi.token` as `Authorization: Bearer …`.";
        Err(Problem::new(StatusCode::UNAUTHORIZED, detail))
    }
}

fn allow(method: &Method, allowed: &'static str) -> Result<(), Problem> {
    if method.as_str() == allowed {
        return Ok(());
    }
    let detail = format!("Use {allowed}.");
    Err(Problem { allowed: Some(allowed), ..Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail) })
}

/// Messages of the parser name the member.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad(format!("The body: {error}.")))
}

fn said(answer: &impl Serialize) -> Result<Response<Body>, Problem> {
    let text = serde_json::to_vec(answer);
    text.map(|text| json(text.into()))
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn json(text: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Why there is no decision.
struct Problem {
    status: StatusCode,
    detail: String,
    allowed: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allowed: None, retry_after: None }
    }

    fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    fn respond(self) -> Response<Body> {
        let mut response = problem_response(self.status, None, &self.detail);
        let headers = response.headers_mut();
        if let Some(allowed) = self.allowed {
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, wait.as_secs().saturating_add(1).into());
        }
        response.map(Body::from)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if !error.is_outage() {
            return Self::bad(error.to_string());
        }
        let retry_after = error.retry_after().map(Duration::from);
        Self { retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_outage_is_the_stores_fault() {
        let status = |error: StoreError| Problem::from(error).status.as_u16();
        assert_eq!(status(StoreError::invalid("redis", "two keys")), 400);
        assert_eq!(status(StoreError::not_charged("redis", "no connection")), 503);
    }
}
