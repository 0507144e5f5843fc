//! Key sets at URLs: fetched, stored and refreshed.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use http::{StatusCode, Uri};
use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tollgate::key::{JwtKeyError, JwtKeys, JwtVerifier};
use tollgate_config::plan::JwksPlan;

use super::fetch::{self, FetchError, in_full};
use crate::serve::error::BuildError;
use tollgate_proxy::Clients;

#[derive(Clone, Default)]
pub(crate) struct KeySets(Arc<Mutex<Vec<Weak<KeySet>>>>);

impl KeySets {
    pub(crate) fn get(&self, plan: &JwksPlan) -> Result<Arc<KeySet>, BuildError> {
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

pub(crate) struct KeySet {
    plan: JwksPlan,
    verifier: JwtVerifier,
    state: watch::Receiver<State>,
    _keeper: AbortOnDropHandle<()>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    tried_at: Option<Instant>,
    pub(crate) fetched: Option<(SystemTime, Vec<String>)>,
    pub(crate) error: Option<(SystemTime, String)>,
}

impl KeySet {
    /// Starts fetching. Takes over the keys from `before`, a set with the same URL but other
    /// intervals.
    fn new(plan: &JwksPlan, before: Option<&Self>) -> Result<Self, BuildError> {
        let wrong = |error: &dyn fmt::Display| BuildError(format!("jwt: {}: {error}", plan.url));
        let uri: Uri = plan.url.parse().map_err(|error| wrong(&error))?;
        let clients =
            Clients::new(uri.scheme_str() == Some("https"), 1, 1).map_err(|error| wrong(&error))?;
        let wanted = Arc::new(Notify::new());
        let asked = Arc::clone(&wanted);
        let (verifier, state) = match before {
            Some(set) => (set.verifier.clone(), set.state()),
            None => (JwtVerifier::without_keys(), State::default()),
        };
        // `Notify` stores one call until the keeper waits, even after many calls.
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

    pub(crate) fn verifier(&self) -> JwtVerifier {
        self.verifier.clone()
    }

    pub(crate) fn url(&self) -> &str {
        self.plan.shown_url()
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(crate) fn was_tried(&self) -> bool {
        self.state.borrow().tried_at.is_some()
    }

    pub(crate) async fn tried(&self) {
        let mut state = self.state.clone();
        // The keeper runs as long as the set exists, so this error cannot happen.
        let _ = state.wait_for(|state| state.tried_at.is_some()).await;
    }
}

struct Keeper {
    plan: JwksPlan,
    uri: Uri,
    clients: Clients,
    verifier: JwtVerifier,
    /// Notified when a token names a key that is not in the set.
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

    /// Waits until the set is too old or a key is missing, but at least for the shortest interval,
    /// so forged tokens cause at most one fetch per interval.
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

    async fn fetch(&self) -> Result<JwtKeys, KeySetError> {
        let answer = fetch::get(&self.clients, &self.uri, None, self.plan.fetch_timeout).await?;
        if answer.status() != StatusCode::OK {
            return Err(match fetch::redirect(&answer) {
                Some(location) => KeySetError::Redirect(location),
                None => KeySetError::Status(answer.status()),
            });
        }
        let json = answer.into_body();
        // Parsing a large set takes time and must not block requests.
        let read = tokio::task::spawn_blocking(move || {
            let json = std::str::from_utf8(&json).map_err(|_| KeySetError::NoText)?;
            JwtKeys::from_jwks(json).map_err(KeySetError::Keys)
        });
        read.await.map_err(|error| FetchError::Failed(error.into()))?
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

    fn stay(&self, error: &KeySetError) {
        let error = in_full(error);
        counter!(FETCHES, "outcome" => OUTCOMES[1]).increment(1);
        self.said.send_modify(|state| {
            let url = self.plan.shown_url();
            if state.fetched.is_some() {
                tracing::warn!(
                    url,
                    error,
                    "the key set was not fetched; its earlier keys stay valid [TG0218]"
                );
            } else {
                tracing::warn!(
                    url,
                    error,
                    "the key set was not fetched; tokens identify no client [TG0218]"
                );
            }
            state.tried_at = Some(Instant::now());
            state.error = Some((SystemTime::now(), error));
        });
    }
}

#[derive(Debug, thiserror::Error)]
enum KeySetError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the answer is a redirect{0}, which is not followed; name the last URL as `jwksUrl`")]
    Redirect(String),
    #[error("the answer is {0}; expected 200 and a key set")]
    Status(StatusCode),
    #[error("the answer is not UTF-8")]
    NoText,
    #[error(transparent)]
    Keys(JwtKeyError),
}

const FETCHES: &str = "tollgate_jwks_fetches_total";
const OUTCOMES: [&str; 2] = ["fetched", "failed"];
