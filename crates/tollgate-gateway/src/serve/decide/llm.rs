//! Requests to language models. The gateway reads their bodies before it decides, because the cost
//! is in them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use tokio::sync::Semaphore;
use tollgate::denial::{Denial, DenialResponse};
use tollgate::key::Key;
use tollgate_config::plan::LlmPlan;
use tollgate_llm::{Call, OutputHistory, error_response};

use super::denials::Denials;
use crate::serve::body::Body;
use tollgate_proxy::{Admitted, Fault, ReadAhead, ReadBody};

/// The state that requests to language models share, also across reloads.
#[derive(Clone)]
pub(crate) struct Llm {
    pub(crate) ahead: ReadAhead,
    history: OutputHistory,
}

impl Llm {
    pub(crate) fn new(idle: Duration) -> Self {
        let ahead = ReadAhead { room: Arc::new(Semaphore::new(MAX_READ)), idle };
        Self { ahead, history: OutputHistory::new(MAX_PAIRS) }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// The response to a request that the gateway cannot read.
    pub(crate) async fn read<B: ReadBody>(
        &self,
        request: &mut Request<Admitted<B>>,
        plan: &LlmPlan,
        client: Option<Key>,
    ) -> Result<Call, Box<Response<Body>>> {
        let path = request.uri().path().to_owned();
        Call::check_coding(&path, request.headers()).map_err(|refused| answered(*refused))?;
        let admitted = request.body_mut();
        let body = admitted.body.read(plan.max_read, &self.ahead).await;
        let body = body.map_err(|cause| {
            let fault = Fault::from(&cause);
            let what = format!("{fault}.");
            answered(error_response(&path, fault.status(), None, &what))
        })?;
        let Some(body) = body else {
            let headers = request.headers_mut();
            // A compressed response does not show its usage.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            let length = headers.get(CONTENT_LENGTH);
            let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
            return Ok(Call::of_size(length.unwrap_or(plan.max_read as u64), &plan.models));
        };
        if let Some(received) = &admitted.received {
            received.complete();
        }
        let (call, body) = Call::read(&path, request.headers_mut(), body, &plan.models)
            .map_err(|refused| answered(*refused))?;
        request.body_mut().body.replace(body);
        Ok(call.learning(&self.history, client))
    }
}

fn answered(response: Response<Bytes>) -> Box<Response<Body>> {
    Box::new(response.map(Body::from))
}

/// The maximum total size of request bodies that were read and not sent yet.
const MAX_READ: usize = 256 << 20;

/// The maximum number of client and model pairs with a known usual output.
const MAX_PAIRS: usize = 100_000;

/// Denials with the error body that clients of the API expect.
pub(crate) struct LlmDenials(pub(crate) Denials);

impl DenialResponse for LlmDenials {
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        let mut response = self.0.respond(denial);
        let path = denial.request().map_or("", |head| head.uri.path());
        let policy = denial.policies().first().copied();
        let error = error_response(path, response.status(), policy, &denial.detail());
        let (head, body) = error.into_parts();
        response.headers_mut().insert(CONTENT_TYPE, head.headers[CONTENT_TYPE].clone());
        *response.body_mut() = body;
        response
    }
}
