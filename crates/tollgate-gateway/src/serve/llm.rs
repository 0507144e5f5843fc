//! Requests to language models. The gateway reads their bodies before it decides, because the cost
//! is in them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue,
    RETRY_AFTER, TRANSFER_ENCODING,
};
use http::{Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate_llm::{
    Model, OutputHistory, Request as ModelRequest, Usage, UsageEventFilter, UsageReader,
};

use super::denials::Denied;
use crate::plan::{LlmPlan, SettleBy};
use crate::proxy::{Admitted, Body, Fault, ReadAhead, ReadBody};

/// What requests to language models share, across reloads too.
#[derive(Clone)]
pub(super) struct Llm {
    ahead: ReadAhead,
    history: Arc<OutputHistory>,
}

/// A request to a model, as an extension of the request. The limits read its estimate.
#[derive(Clone)]
pub(super) struct ModelCall(Arc<Call>);

struct Call {
    request: ModelRequest,
    model: Model,
    client: Option<Key>,
    history: Arc<OutputHistory>,
    /// The gateway added the usage to the stream, so it removes the usage for the client.
    hides_usage: bool,
}

/// The body that clients of an API expect for errors.
#[derive(Clone, Copy)]
enum Api {
    OpenAi,
    Anthropic,
}

impl Api {
    fn of_path(path: &str) -> Self {
        if path.trim_end_matches('/').ends_with("/messages") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

impl Llm {
    pub(super) fn new(idle: Duration) -> Self {
        let ahead = ReadAhead { room: Arc::new(Semaphore::new(MAX_READ)), idle };
        Self { ahead, history: Arc::new(OutputHistory::new(MAX_PAIRS)) }
    }

    /// Reads the body and adds a [`ModelCall`] to the extensions.
    ///
    /// # Errors
    /// The response to a request that the gateway cannot read.
    pub(super) async fn read<B: ReadBody>(
        &self,
        request: &mut Request<Admitted<B>>,
        plan: &LlmPlan,
        client: Option<Key>,
    ) -> Result<(), Box<Response<Body>>> {
        let api = Api::of_path(request.uri().path());
        let coding = request.headers().get(CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != "identity") {
            let what = "Send the request without a content coding.";
            return Err(api.error(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let admitted = request.body_mut();
        let body = admitted.body.read(plan.max_read, &self.ahead).await;
        let body = body.map_err(|error| {
            let fault = Fault::of_body(&error);
            api.error(fault.status(), &format!("{fault}."))
        })?;
        let call = match body {
            Some(body) => {
                if let Some(received) = &admitted.received {
                    received.complete();
                }
                self.call(request, plan, client, &body)
                    .map_err(|what| api.error(StatusCode::BAD_REQUEST, &what))?
            }
            None => {
                let length = request.headers().get(CONTENT_LENGTH).and_then(number);
                let mut model_request = ModelRequest::default();
                model_request.text_bytes = length.unwrap_or(plan.max_read as u64);
                let model = *plan.models.get("");
                let history = Arc::clone(&self.history);
                Call { request: model_request, model, client, history, hides_usage: false }
            }
        };
        // A compressed response does not show its usage.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        request.extensions_mut().insert(ModelCall(Arc::new(call)));
        Ok(())
    }

    fn call<B: ReadBody>(
        &self,
        request: &mut Request<Admitted<B>>,
        plan: &LlmPlan,
        client: Option<Key>,
        body: &Bytes,
    ) -> Result<Call, String> {
        let mut model_request = ModelRequest::parse(body)
            .map_err(|error| format!("The request is not valid: {error}."))?;
        let name = &model_request.model;
        let model = *plan.models.get(name);
        let history = Arc::clone(&self.history);
        if model_request.max_output.is_none() {
            model_request.max_output = history.percentile_95(&client, name);
        }
        let is_chat = request.uri().path().trim_end_matches('/').ends_with("/completions");
        let asking = if is_chat { model_request.ask_for_usage(body) } else { None };
        let hides_usage = asking.is_some();
        let length = asking.as_ref().map_or(body.len(), Vec::len);
        if let Some(asking) = asking {
            request.body_mut().body.replace(asking.into());
        }
        let headers = request.headers_mut();
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        Ok(Call { request: model_request, model, client, history, hides_usage })
    }
}

/// The most bytes of all request bodies that have been read and not been sent yet.
const MAX_READ: usize = 256 << 20;

/// The pairs of client and model whose usual output is known.
const MAX_PAIRS: usize = 100_000;

impl ModelCall {
    /// The estimated cost, in tokens or in money.
    pub(super) fn estimate(&self, by: SettleBy) -> Option<Cost> {
        self.cost(by, &self.0.request.estimate(&self.0.model))
    }

    fn cost(&self, by: SettleBy, usage: &Usage) -> Option<Cost> {
        match by {
            SettleBy::Tokens => Some(Cost::new(usage.total())),
            SettleBy::Money => Some(Cost::new(self.0.model.price().of(usage))),
            SettleBy::Header | SettleBy::Trailer | SettleBy::Bytes(_) => None,
        }
    }

    /// Reads the usage from a response. Changes the headers if the client must not see the usage.
    pub(super) fn answered(self, response: &mut HeaderMap) -> UsageMeter {
        let content_type = response.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default();
        let is_stream = content_type.starts_with("text/event-stream");
        let filter = (self.0.hides_usage && is_stream).then(UsageEventFilter::default);
        let reader = UsageReader::for_content_type(content_type);
        if filter.is_some() {
            response.remove(CONTENT_LENGTH);
        }
        UsageMeter { call: self, reader, filter }
    }

    /// The meter of a response that has not begun.
    pub(super) fn unanswered(&self) -> UsageMeter {
        UsageMeter { call: self.clone(), reader: UsageReader::json(), filter: None }
    }
}

/// Reads the usage from a response while it passes.
pub(super) struct UsageMeter {
    call: ModelCall,
    reader: UsageReader,
    filter: Option<UsageEventFilter>,
}

impl UsageMeter {
    /// Returns the bytes for the client.
    pub(super) fn data(&mut self, data: Bytes) -> Bytes {
        self.reader.read(&data);
        match &mut self.filter {
            Some(filter) => filter.filter(&data).into(),
            None => data,
        }
    }

    pub(super) const fn shortens(&self) -> bool {
        self.filter.is_some()
    }

    /// The cost of the response up to here.
    pub(super) fn cost(&self, by: SettleBy) -> Option<Cost> {
        let Call { request, model, .. } = &*self.call.0;
        self.call.cost(by, &self.reader.usage(request, model))
    }
}

impl Drop for UsageMeter {
    fn drop(&mut self) {
        // Only whole responses show the usual length.
        if let Some(usage) = self.reader.reported() {
            let Call { request, client, history, .. } = &*self.call.0;
            history.record(client, &request.model, usage.output);
        }
    }
}

/// Gives a denial the body that clients of model APIs expect.
pub(super) fn denial(path: &str, response: &mut Response<Body>) {
    let Some(Denied { code, policies }) = response.extensions().get::<Denied>() else { return };
    let status = response.status();
    let wait = response.headers().get(RETRY_AFTER).and_then(number);
    let wait = wait.map_or_else(String::new, |wait| format!(" Try again in {wait} s."));
    let (policy, names) = (policies.first().map(String::as_str), policies.join(", "));
    let message = match (status, policy) {
        (StatusCode::TOO_MANY_REQUESTS, _) => format!("Rate limit reached for {names}.{wait}"),
        (_, None) => "The API key is missing or not valid.".to_owned(),
        (StatusCode::FORBIDDEN, _) => format!("The request is larger than the limit for {names}."),
        _ => format!("The limit for {names} cannot be checked ({code}).{wait}"),
    };
    let body = Api::of_path(path).body(status, policy, &message);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.remove(CONTENT_LENGTH);
    *response.body_mut() = body.into();
}

impl Api {
    /// The body of an error. `policy` is the policy that denied the request.
    fn body(self, status: StatusCode, policy: Option<&str>, message: &str) -> Bytes {
        let is_quota = status == StatusCode::TOO_MANY_REQUESTS;
        let body = match self {
            Self::OpenAi => {
                let (kind, code) = match policy {
                    Some("budget") if is_quota => {
                        ("insufficient_quota", Some("insufficient_quota"))
                    }
                    Some(policy) if is_quota => (policy, Some("rate_limit_exceeded")),
                    _ if status.is_server_error() => ("server_error", None),
                    None if matches!(status.as_u16(), 401 | 403) => {
                        ("invalid_request_error", Some("invalid_api_key"))
                    }
                    _ => ("invalid_request_error", None),
                };
                json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
            Self::Anthropic => {
                let kind = match status.as_u16() {
                    401 => "authentication_error",
                    403 => "permission_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    500.. => "api_error",
                    _ => "invalid_request_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
        };
        Bytes::from(body.to_string())
    }

    /// The response to a request that the gateway cannot read.
    fn error(self, status: StatusCode, message: &str) -> Box<Response<Body>> {
        let mut response = Response::new(Body::from(self.body(status, None, message)));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        Box::new(response)
    }
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}
