//! GET requests to other services: key sets and tenants' numbers.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;
use tollgate_proxy::Clients;

/// Sends a GET request for JSON, and reads the complete response within `limit`.
pub(crate) async fn get(
    clients: &Clients,
    uri: &Uri,
    authorization: Option<&HeaderValue>,
    limit: Duration,
) -> Result<Response<Bytes>, FetchError> {
    let mut request = Request::new(());
    *request.uri_mut() = uri.clone();
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
    if let Some(authorization) = authorization {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    let answer = async {
        // Each step may take longer than the entire fetch, so the fetch always times out first.
        let sent = clients.get(request, 2 * limit).await;
        let (answer, _connection) = sent.map_err(FetchError::Failed)?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, MOST_BYTES).collect().await;
        let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
            Ok(_) => FetchError::TooLarge,
            Err(error) => FetchError::Failed(error),
        })?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    };
    timeout(limit, answer).await.map_err(|_| FetchError::Slow(limit))?
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("no complete answer within {0:?}")]
    Slow(Duration),
    #[error("the answer is larger than {} KiB", MOST_BYTES >> 10)]
    TooLarge,
    #[error("no answer")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The place to which a response redirects, for a message.
pub(crate) fn redirect<B>(answer: &Response<B>) -> Option<String> {
    if !answer.status().is_redirection() {
        return None;
    }
    let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let location = location.map(|location| location.chars().take(200).collect::<String>());
    Some(location.map_or_else(String::new, |url| format!(" to {url:?}")))
}

/// An error with its causes, because connection errors are unclear without them.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Limits any server's answer. A key set has a few keys of at most two kilobytes each, and a
/// tenant's numbers are shorter.
const MOST_BYTES: usize = 1 << 20;
const NAME: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
