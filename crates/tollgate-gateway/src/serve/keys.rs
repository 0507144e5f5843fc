//! Key sets at URLs: fetched, kept, and fetched again.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ACCEPT, HeaderValue, LOCATION, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tollgate::key::{JwtKeyError, JwtKeys, JwtVerifier};

use super::error::BuildError;
use crate::plan::JwksPlan;
use crate::proxy::{Clients, Timeouts};

/// The key sets in use, over all versions of the configuration: a reload fetches none anew
/// that is there. Clones share them.
#[derive(Clone, Default)]
pub(super) struct KeySets(Arc<Mutex<Vec<Weak<KeySet>>>>);

impl KeySets {
    /// The set of this plan: one that is in use, or a new one that begins to be fetched. Must
    /// be called within a runtime.
    pub(super) fn get(&self, plan: &JwksPlan) -> Result<Arc<KeySet>, BuildError> {
        let mut sets = self.0.lock();
        sets.retain(|set| set.strong_count() > 0);
        let of_url: Vec<_> =
            sets.iter().filter_map(Weak::upgrade).filter(|set| set.plan.url == plan.url).collect();
        if let Some(set) = of_url.iter().find(|set| set.plan == *plan) {
            return Ok(Arc::clone(set));
        }
        let set = Arc::new(KeySet::new(plan, of_url.last().map(|set| &**set))?);
        sets.push(Arc::downgrade(&set));
        Ok(set)
    }
}

/// A key set at a URL, kept up to date for as long as this is kept.
pub(super) struct KeySet {
    plan: JwksPlan,
    verifier: JwtVerifier,
    state: watch::Receiver<State>,
    _keeper: AbortOnDropHandle<()>,
}

/// What has become of a key set so far.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The end of the last attempt.
    tried_at: Option<Instant>,
    /// When the keys came that are believed, and their names.
    pub(super) fetched: Option<(SystemTime, Vec<String>)>,
    /// Why the last attempt failed, if it did.
    pub(super) error: Option<(SystemTime, String)>,
}

impl KeySet {
    /// Begins to fetch, or takes over what `before` has: with other times, the keys are the
    /// same.
    fn new(plan: &JwksPlan, before: Option<&Self>) -> Result<Self, BuildError> {
        let wrong = |error: &dyn fmt::Display| BuildError(format!("jwt: {}: {error}", plan.url));
        let uri: Uri = plan.url.parse().map_err(|error| wrong(&error))?;
        let clients =
            Clients::new(times(plan.fetch_timeout), uri.scheme_str() == Some("https"), 1, 1);
        let clients = clients.map_err(|error| wrong(&error))?;
        let wanted = Arc::new(Notify::new());
        let asked = Arc::clone(&wanted);
        let (verifier, state) = match before {
            Some(set) => (set.verifier.clone(), set.state()),
            None => (JwtVerifier::without_keys(), State::default()),
        };
        // However often it is called, one call is kept until somebody waits for it.
        let verifier = verifier.on_unknown_kid(move || asked.notify_one());
        for outcome in OUTCOMES {
            counter!(FETCHES, "outcome" => outcome).increment(0);
        }
        let (said, state) = watch::channel(state);
        let keeper =
            Keeper { plan: plan.clone(), uri, clients, verifier: verifier.clone(), wanted, said };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.keep()));
        Ok(Self { plan: plan.clone(), verifier, state, _keeper: keeper })
    }

    /// Believes whom the set vouches for: with the keys that are there now and later.
    pub(super) fn verifier(&self) -> JwtVerifier {
        self.verifier.clone()
    }

    pub(super) fn url(&self) -> &str {
        self.plan.shown_url()
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Whether the first attempt has ended, well or not.
    pub(super) fn was_tried(&self) -> bool {
        self.state.borrow().tried_at.is_some()
    }

    /// Completes when the first attempt has ended, which takes no longer than the time limit
    /// of one.
    pub(super) async fn tried(&self) {
        let mut state = self.state.clone();
        // Who keeps the set ends with it, not before.
        let _ = state.wait_for(|state| state.tried_at.is_some()).await;
    }
}

/// Keeps a set up to date.
struct Keeper {
    plan: JwksPlan,
    uri: Uri,
    clients: Clients,
    verifier: JwtVerifier,
    /// A token asks for a key that is not there.
    wanted: Arc<Notify>,
    said: watch::Sender<State>,
}

impl Keeper {
    async fn keep(self) {
        loop {
            self.until_due().await;
            match self.fetch().await {
                Ok(keys) => self.take_in(keys),
                Err(error) => self.stay(&error),
            }
        }
    }

    /// Until the set is too old, or a key is missing; and whatever happens, not before the
    /// shortest interval is over. So strangers with made-up tokens gain one fetch in each.
    async fn until_due(&self) {
        let (tried_at, failed) = {
            let state = self.said.borrow();
            (state.tried_at, state.error.is_some())
        };
        let Some(tried_at) = tried_at else { return };
        let soonest = tried_at + self.plan.min_refetch;
        let latest = if failed { soonest } else { tried_at + self.plan.max_age };
        tokio::select! {
            () = sleep_until(latest) => {}
            () = self.wanted.notified() => sleep_until(soonest).await,
        }
    }

    async fn fetch(&self) -> Result<JwtKeys, FetchError> {
        let limit = self.plan.fetch_timeout;
        let json = timeout(limit, self.answer()).await.map_err(|_| FetchError::Slow(limit))??;
        // Reading a large set takes a while, in which requests go on.
        let read = tokio::task::spawn_blocking(move || {
            let json = std::str::from_utf8(&json).map_err(|_| FetchError::NoText)?;
            JwtKeys::from_jwks(json).map_err(FetchError::Keys)
        });
        read.await.map_err(|error| FetchError::Failed(error.into()))?
    }

    async fn answer(&self) -> Result<Bytes, FetchError> {
        let mut request = Request::new(());
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
        let (answer, _connection) = self.clients.get(request).await.map_err(FetchError::Failed)?;
        if answer.status() != StatusCode::OK {
            return Err(refused(&answer));
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| {
            match error.downcast::<LengthLimitError>() {
                Ok(_) => FetchError::TooLarge,
                Err(error) => FetchError::Failed(error),
            }
        })
    }

    fn take_in(&self, keys: JwtKeys) {
        let kids: Vec<_> = keys.kids().map(str::to_owned).collect();
        self.verifier.replace_keys(keys);
        counter!(FETCHES, "outcome" => OUTCOMES[0]).increment(1);
        let now = SystemTime::now();
        gauge!("tollgate_jwks_fetched_timestamp_seconds")
            .set(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
        self.said.send_modify(|state| {
            let is_news = match &state.fetched {
                Some((_, before)) => *before != kids || state.error.is_some(),
                None => true,
            };
            if is_news {
                tracing::info!(url = self.plan.shown_url(), ?kids, "the key set was fetched");
            }
            state.tried_at = Some(Instant::now());
            state.fetched = Some((now, kids));
            state.error = None;
        });
    }

    /// What was believed goes on being believed.
    fn stay(&self, error: &FetchError) {
        let error = in_full(error);
        counter!(FETCHES, "outcome" => OUTCOMES[1]).increment(1);
        self.said.send_modify(|state| {
            let url = self.plan.shown_url();
            if state.fetched.is_some() {
                tracing::warn!(url, error, "the key set was not fetched; the one before goes on");
            } else {
                tracing::warn!(url, error, "the key set was not fetched; tokens identify nobody");
            }
            state.tried_at = Some(Instant::now());
            state.error = Some((SystemTime::now(), error));
        });
    }
}

/// Why there are no new keys.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no whole answer within {0:?}")]
    Slow(Duration),
    #[error("the answer is larger than {} KiB, and no key set", MOST_BYTES >> 10)]
    TooLarge,
    #[error("the answer is a redirect{0}, which is not followed; name the last URL as `jwksUrl`")]
    Redirect(String),
    #[error("the answer is {0}; expected 200 and a key set")]
    Status(StatusCode),
    #[error("the answer is no UTF-8")]
    NoText,
    #[error(transparent)]
    Keys(JwtKeyError),
    #[error("no answer")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn refused(answer: &Response<Incoming>) -> FetchError {
    if !answer.status().is_redirection() {
        return FetchError::Status(answer.status());
    }
    let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let location = location.map(|location| location.chars().take(200).collect::<String>());
    FetchError::Redirect(location.map_or_else(String::new, |url| format!(" to {url:?}")))
}

/// An error with its causes, of which those of connections say nothing without.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Each step within the limit of the whole, which ends before that of a response.
fn times(limit: Duration) -> Timeouts {
    Timeouts { connect: limit, response: 2 * limit, body: limit, tunnel: limit, pool: limit }
}

/// A set has a few keys of at most two kilobytes each, whoever answers.
const MOST_BYTES: usize = 1 << 20;

const NAME: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));

const FETCHES: &str = "tollgate_jwks_fetches_total";
const OUTCOMES: [&str; 2] = ["fetched", "failed"];
