//! Tenants' numbers from another service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{HeaderValue, LOCATION};
use http::{Response, StatusCode, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tollgate::tier::{Client, ClientQuota, QuotaLookup, QuotaLookupBuilder};
use tollgate_config::plan::{Secret, TenantRules};
use tollgate_proxy::Clients;

use super::numbers::read_one;
use crate::serve::decide::fetch::{self, FetchError, in_full};
use crate::serve::error::BuildError;

struct Service {
    /// Contains `{tenant}`.
    url: String,
    authorization: Option<HeaderValue>,
    clients: Clients,
    timeout: Duration,
    rules: Arc<ArcSwap<TenantRules>>,
}

pub(super) fn lookup(
    url: &str,
    token: Option<&Secret>,
    timeout: Duration,
    rules: &Arc<ArcSwap<TenantRules>>,
) -> Result<QuotaLookupBuilder, BuildError> {
    let wrong = |error: &dyn fmt::Display| BuildError(format!("tenants: {error}"));
    let clients = Clients::new(url.starts_with("https:"), MOST_CONNECTIONS, 1);
    let authorization = token.map(|token| {
        let value = HeaderValue::try_from(format!("Bearer {}", token.reveal()));
        value.map(|mut value| {
            value.set_sensitive(true);
            value
        })
    });
    let service = Service {
        url: url.to_owned(),
        authorization: authorization.transpose().map_err(|error| wrong(&error))?,
        clients: clients.map_err(|error| wrong(&error))?,
        timeout,
        rules: Arc::clone(rules),
    };
    let service = Arc::new(service);
    let builder = QuotaLookup::builder(move |client| {
        let service = Arc::clone(&service);
        async move { service.look_up(&client).await }
    });
    Ok(builder.max_in_progress(MOST_CONNECTIONS))
}

impl Service {
    async fn look_up(&self, client: &Client) -> Result<Option<ClientQuota>, LookUpError> {
        let name = client.name.as_str();
        // Servers resolve these segments, so the URL would name something else.
        if matches!(name, "." | "..") {
            return Ok(None);
        }
        let name_in_url = utf8_percent_encode(name, ENCODED).to_string();
        let uri: Uri = self.url.replace("{tenant}", &name_in_url).parse()?;
        let authorization = self.authorization.as_ref();
        let answer = fetch::get(&self.clients, &uri, authorization, self.timeout).await?;
        match answer.status() {
            StatusCode::OK => {
                read_one(client, answer.body(), &self.rules).map_err(LookUpError::Numbers)
            }
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_redirection() => Err(LookUpError::Redirect(host(&answer))),
            status => Err(LookUpError::Status(status)),
        }
    }
}

/// The host to which a response redirects. The path may contain the tenant's name.
fn host<B>(answer: &Response<B>) -> String {
    let location = answer.headers().get(LOCATION).and_then(|it| Uri::try_from(it.as_bytes()).ok());
    let host = location.as_ref().and_then(Uri::host).map(|host| format!(" to the host `{host}`"));
    host.unwrap_or_default()
}

#[derive(Debug, thiserror::Error)]
enum LookUpError {
    #[error("the URL with the tenant's name is not valid: {0}")]
    Url(#[from] http::uri::InvalidUri),
    #[error("{}", in_full(.0))]
    Fetch(#[from] FetchError),
    #[error(
        "the answer is a redirect{0}, which is not followed; name the last URL as \
         `tenants.http.url`"
    )]
    Redirect(String),
    #[error("the answer is {0}; expected 200 with the tenant's numbers, or 404")]
    Status(StatusCode),
    #[error("{0}")]
    Numbers(String),
}

/// How many look-ups run at the same time.
const MOST_CONNECTIONS: usize = 64;

/// All characters that have a meaning in a URL.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
