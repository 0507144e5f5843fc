//! Requests to language models. The gateway reads their bodies before it decides, because the cost
//! is in them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING,
};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use tokio::sync::Semaphore;
use tollgate::denial::{Denial, DenialResponse};
use tollgate::key::Key;
use tollgate_config::plan::LlmPlan;
use tollgate_llm::{Api, Call, Meter, OutputHistory};

use super::denials::Denials;
use crate::serve::body::Body;
use tollgate_proxy::{Admitted, Fault, ReadAhead, ReadBody};

/// The state that requests to language models share, also across reloads.
#[derive(Clone)]
pub(crate) struct Llm {
    ahead: ReadAhead,
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
        let api = Api::of_path(request.uri().path());
        let coding = request.headers().get(CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != "identity") {
            let what = "Send the request without a content coding.";
            return Err(error(api, StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let admitted = request.body_mut();
        let body = admitted.body.read(plan.max_read, &self.ahead).await;
        let body = body.map_err(|cause| {
            let fault = Fault::from(&cause);
            error(api, fault.status(), &format!("{fault}."))
        })?;
        let call = if let Some(body) = body {
            if let Some(received) = &admitted.received {
                received.complete();
            }
            let (call, changed) = Call::parse(request.uri().path(), &body, &plan.models)
                .map_err(|cause| error(api, StatusCode::BAD_REQUEST, &format!("{cause}.")))?;
            let length = changed.as_ref().map_or(body.len(), Vec::len);
            if let Some(changed) = changed {
                request.body_mut().body.replace(changed.into());
            }
            let headers = request.headers_mut();
            headers.remove(TRANSFER_ENCODING);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            call.learning(&self.history, client)
        } else {
            let length = request.headers().get(CONTENT_LENGTH);
            let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
            Call::of_size(length.unwrap_or(plan.max_read as u64), &plan.models)
        };
        // A compressed response does not show its usage.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok(call)
    }
}

/// The maximum total size of request bodies that were read and not sent yet.
const MAX_READ: usize = 256 << 20;

/// The maximum number of client and model pairs with a known usual output.
const MAX_PAIRS: usize = 100_000;

/// Makes a response's meter, and changes the headers if the client gets fewer bytes. Returns `None`
/// if the response is compressed or only accepts the work, because it does not show the usage.
pub(crate) fn meter(call: &Call, response: &mut Response<Body>) -> Option<Meter> {
    let is_accepted = response.status() == StatusCode::ACCEPTED || response.body().is_end_stream();
    let response = response.headers_mut();
    let coding = response.get(CONTENT_ENCODING);
    if is_accepted || coding.is_some_and(|coding| coding != "identity") {
        return None;
    }
    let content_type = response.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let meter = call.meter(content_type.unwrap_or_default());
    if meter.shortens() {
        response.remove(CONTENT_LENGTH);
    }
    Some(meter)
}

/// Denials with the error body that clients of the API expect.
pub(crate) struct LlmDenials(pub(crate) Denials);

impl DenialResponse for LlmDenials {
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        let mut response = self.0.respond(denial);
        let path = denial.request().map_or("", |head| head.uri.path());
        let policy = denial.policies().first().copied();
        let status = response.status();
        let body = Api::of_path(path).error(status.as_u16(), policy, &denial.detail());
        *response.body_mut() = body.into();
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

fn error(api: Api, status: StatusCode, message: &str) -> Box<Response<Body>> {
    let body = Bytes::from(api.error(status.as_u16(), None, message));
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    Box::new(response)
}
