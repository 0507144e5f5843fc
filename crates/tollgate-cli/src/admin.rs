//! Requests to the admin API.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::uri::Authority;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than the admin API waits for Redis.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ten thousand overrides need less.
const MOST_BYTES: usize = 16 << 20;

pub(crate) struct Admin {
    authority: Authority,
    bearer: Option<HeaderValue>,
}

impl Admin {
    /// Without a token, the admin API only tells the gateway's health.
    pub(crate) fn new(url: &Uri, token: Option<&str>) -> Result<Self, String> {
        let is_http = url.scheme_str() == Some("http") && matches!(url.path(), "" | "/");
        let authority = url.authority().filter(|_| is_http && url.query().is_none());
        let wrong = || {
            format!(
                "`--admin {url}` is not an admin address: write a URL such as http://127.0.0.1:8081 [TG0708]"
            )
        };
        let authority = authority.ok_or_else(wrong)?.clone();
        let bearer = token.map(bearer).transpose()?;
        Ok(Self { authority, bearer })
    }

    /// Sends a request, and returns the answer's JSON.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.authority.as_str())
            .header(CONTENT_TYPE, "application/json");
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        let request = request
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .map_err(|error| error.to_string())?;
        let at = &self.authority;
        let (status, body) = runtime.block_on(async {
            match timeout(PATIENCE, exchange(at, request)).await {
                Ok(answer) => answer.map_err(|error| format!("http://{at}: {error} [TG0708]")),
                Err(_) => Err(format!("http://{at} does not answer within {PATIENCE:?} [TG0708]")),
            }
        })?;
        let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(json);
        }
        let detail = match json["detail"].as_str() {
            Some(detail) if status == StatusCode::UNAUTHORIZED => format!("{detail} [TG0708]"),
            Some(detail) => detail.to_owned(),
            None => "this is not Tollgate's admin address [TG0708]".to_owned(),
        };
        Err(format!("http://{at}: {}: {detail}", status.as_u16()))
    }
}

fn bearer(token: &str) -> Result<HeaderValue, String> {
    if token.is_empty() {
        return Err("there is no token: set TOLLGATE_ADMIN_TOKEN to the gateway's token [TG0708]"
            .to_owned());
    }
    let mut bearer = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "the token has characters that a header cannot contain [TG0708]")?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

async fn exchange(
    authority: &Authority,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST_BYTES).collect().await?.to_bytes();
    connection.abort();
    Ok((status, body))
}
