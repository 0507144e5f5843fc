//! Where quotas are looked up.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time;
use tollgate_core::Key;
use tollgate_engine::SubjectKind;

use super::client_quota::ClientQuota;
use super::epochs::Epochs;
use crate::quiet::QuietLog;

/// A client with the name for its look-up.
#[derive(Clone)]
#[non_exhaustive]
pub struct Client {
    /// The kind of identity. In a chain of key sources, an address must not be taken for a user.
    pub kind: SubjectKind,
    /// The name that the [key source](crate::key::KeySource::name) finds in the request, such as a
    /// user or a header's value. An API key's name is its SHA-256 in hex. A `Limiter`'s keys are
    /// names, too.
    pub name: String,
    /// The key under which the client's requests are counted.
    pub key: Key,
}

/// Which quota applies if a look-up fails.
///
/// Until its time to live is over, the last result applies in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLookupFailure {
    /// The client's last known quota. If none is known, the limit's own quota. The default.
    #[default]
    LastKnown,
    /// The limit's own quota, unless the client's last known quota is smaller.
    LimitQuota,
    /// None: the layer responds with 503.
    Refuse,
}

/// Which quota applies to a client that the look-up does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnUnknownClient {
    /// The limit's own quota. The default.
    #[default]
    LimitQuota,
    /// None: the layer responds with 403, like to a request without a key.
    Refuse,
}

/// A look-up function and its options.
pub(super) struct Source {
    pub(super) look_up: Box<LookUp>,
    pub(super) ttl: Duration,
    pub(super) timeout: Duration,
    pub(super) on_failure: OnLookupFailure,
    pub(super) on_unknown: OnUnknownClient,
    pub(super) in_progress: Semaphore,
    pub(super) epochs: Epochs,
    /// How many limits use it.
    pub(super) limits: AtomicUsize,
    pub(super) failures: QuietLog,
    pub(super) unfit: QuietLog,
}

pub(super) type LookUp = dyn Fn(Client) -> LookUpFuture + Send + Sync;
pub(super) type LookUpFuture = Pin<Box<dyn Future<Output = LookUpResult> + Send>>;
pub(super) type LookUpResult = Result<Option<ClientQuota>, Box<dyn Error + Send + Sync>>;

impl Source {
    pub(super) async fn ask(&self, client: Client) -> LookUpResult {
        let answer = async {
            let _permit = self.in_progress.acquire().await;
            (self.look_up)(client).await
        };
        match time::timeout(self.timeout, answer).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {:?}", self.timeout).into()),
        }
    }

    pub(super) fn report(&self, error: &dyn fmt::Display) {
        let warn = || tracing::warn!(target: "tollgate", %error, "a quota could not be looked up");
        self.failures.report(warn);
    }
}

// Names may identify people.
debug_fields!(Client, kind);

debug_fields!(Source, ttl, timeout, on_failure, on_unknown);
