//! Quotas from data, for example from a database: one per client, cached.

mod cache;
mod client_quota;
mod entry;
mod epochs;
mod limit_quotas;
mod quotas;
mod source;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::Key;

use self::cache::Cache;
pub use self::client_quota::ClientQuota;
#[cfg(feature = "metrics")]
pub(crate) use self::client_quota::QuotaOrTier;
use self::entry::Entry;
pub(crate) use self::entry::{Answer, Look, PendingAnswer};
use self::epochs::Epochs;
pub(crate) use self::limit_quotas::LimitQuotas;
pub(crate) use self::quotas::{OwnQuotas, Refusal, Terms};
pub use self::source::{Client, OnLookupFailure, OnUnknownClient};
use self::source::{LookUpFuture, Source};
use crate::key::Subject;
use crate::key::format::hex;
use crate::quiet::QuietLog;

/// Looks up clients' quotas, for example in a database, a file or another service.
///
/// [`Limit::quota_from`](crate::Limit::quota_from) and
/// [`LimiterBuilder::policy_from`](crate::limiter::LimiterBuilder::policy_from) use it. **Clones
/// share the cache**, so two limits with the same key look up a client once.
///
/// ```
/// use tollgate::key::Header;
/// use tollgate::tier::QuotaLookup;
/// use tollgate::{Limit, Policy, Quota};
///
/// // In a program, from a database.
/// async fn requests_per_minute(tenant: &str) -> Result<Option<u64>, std::io::Error> {
///     Ok((tenant == "acme").then_some(5_000))
/// }
///
/// let quotas = QuotaLookup::new(|client| async move {
///     Ok::<_, std::io::Error>(requests_per_minute(&client.name).await?.map(Quota::per_minute))
/// });
/// let tenant = Header::trust_unverified("x-tenant".parse()?);
/// // A tenant without its own quota gets 60 requests per minute.
/// let policy = Policy::token_bucket("tenant", Quota::per_minute(60))?;
/// let limit = Limit::new(policy, tenant).quota_from(&quotas);
/// // When acme changes its plan:
/// quotas.forget("acme");
/// # let _ = limit;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When a result applies
/// * A client's first request waits for its look-up. Concurrent requests share the look-up.
/// * Later requests use the cached result without waiting. In the second half of the time to live,
///   a request starts a look-up in the background.
/// * No result is used for longer than the [time to live](QuotaLookupBuilder::ttl), so a change
///   applies within this time. [`forget`](Self::forget) applies it immediately.
/// * Units that a client used under its former quota remain used.
///
/// # Failures
/// A look-up fails if its future fails, panics, or takes longer than the
/// [timeout](QuotaLookupBuilder::timeout), or if its quota does not fit the policy's algorithm. A
/// `tollgate` event reports it, at most once a minute. [`OnLookupFailure`] sets which quota then
/// applies. It is never larger than the client's last known quota.
///
/// # Attackers
/// Each new client costs a look-up, so the key should be verified. The look-ups in progress and the
/// cached clients are bounded. If the cache is full, clients without a second request are dropped
/// first.
///
/// Look-ups need a tokio runtime.
#[derive(Clone)]
pub struct QuotaLookup {
    source: Arc<Source>,
    clients: Arc<Cache<Arc<Entry>>>,
}

/// Collects the options of a [`QuotaLookup`].
#[must_use]
pub struct QuotaLookupBuilder {
    source: Source,
    capacity: usize,
}

impl QuotaLookup {
    /// Looks up quotas with `look_up`, which returns `None` for an unknown client. Its results are a
    /// [`Quota`](crate::Quota), a [`Tier`](super::Tier) of the limit, or a [`ClientQuota`].
    pub fn new<L, A, Q, E>(look_up: L) -> Self
    where
        L: Fn(Client) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Q>, E>> + Send + 'static,
        Q: Into<ClientQuota>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self::builder(look_up).build()
    }

    /// Creates a builder, to set the time to live and what happens if a look-up fails.
    pub fn builder<L, A, Q, E>(look_up: L) -> QuotaLookupBuilder
    where
        L: Fn(Client) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Q>, E>> + Send + 'static,
        Q: Into<ClientQuota>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let look_up = move |client| -> LookUpFuture {
            let answer = look_up(client);
            Box::pin(async move { answer.await.map(|it| it.map(Into::into)).map_err(Into::into) })
        };
        let source = Source {
            look_up: Box::new(look_up),
            ttl: Duration::from_secs(60),
            timeout: Duration::from_secs(2),
            on_failure: OnLookupFailure::default(),
            on_unknown: OnUnknownClient::default(),
            in_progress: Semaphore::new(64),
            epochs: Epochs::default(),
            limits: AtomicUsize::new(0),
            failures: QuietLog::default(),
            unfit: QuietLog::default(),
        };
        QuotaLookupBuilder { source, capacity: 10_000 }
    }

    /// Forgets the results for the clients with this [name](Client::name). Requests that arrive
    /// afterwards start a new look-up, even if another look-up has already started. If theirs
    /// fails, the forgotten result still is the last known result.
    pub fn forget(&self, name: &str) {
        self.source.epochs.end(name);
    }

    /// Forgets the results for all clients.
    pub fn forget_all(&self) {
        self.source.epochs.end_all();
    }

    /// Returns the client's quota if it is cached. Otherwise starts a look-up, unless one has
    /// started.
    pub(crate) fn look(&self, subject: &Subject, name: impl Fn() -> Option<String>) -> Look {
        let Subject { kind, key } = subject;
        let name = || name().unwrap_or_else(|| hex(&key.as_bytes()));
        let entry = self.clients.get_or_insert(key, || {
            let counter = self.source.epochs.counter(&name());
            Arc::new(Entry::new(counter))
        });
        entry.look(&self.source, || Client { kind: *kind, name: name(), key: key.clone() })
    }

    /// Returns the last result for this key, without a look-up.
    pub(crate) fn last(&self, key: &Key) -> Option<Answer> {
        self.clients.get(key)?.last()
    }
}

impl QuotaLookupBuilder {
    /// Sets how long a result is used: a minute by default, a year at most. A change applies within this time, and
    /// an active client is looked up about twice in it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        // So that no instant overflows.
        self.source.ttl = ttl.min(Duration::from_secs(365 * 86_400));
        self
    }

    /// Sets how long a look-up may take, including the wait for its turn: two seconds by default. A
    /// client's first request waits for no longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.source.timeout = timeout;
        self
    }

    /// Sets how many clients are cached: 10 000 by default, about 300 bytes each.
    pub fn capacity(mut self, clients: usize) -> Self {
        self.capacity = clients;
        self
    }

    /// Sets how many look-ups run at the same time: 64 by default. Further look-ups wait.
    pub fn max_in_progress(mut self, look_ups: usize) -> Self {
        self.source.in_progress = Semaphore::new(look_ups.clamp(1, Semaphore::MAX_PERMITS));
        self
    }

    /// Sets which quota applies if a look-up fails: the last known by default.
    pub fn on_failure(mut self, on_failure: OnLookupFailure) -> Self {
        self.source.on_failure = on_failure;
        self
    }

    /// Sets which quota applies to a client that the look-up does not know: the limit's own by
    /// default.
    pub fn on_unknown(mut self, on_unknown: OnUnknownClient) -> Self {
        self.source.on_unknown = on_unknown;
        self
    }

    /// Builds the look-up.
    pub fn build(self) -> QuotaLookup {
        QuotaLookup { clients: Arc::new(Cache::new(self.capacity)), source: Arc::new(self.source) }
    }
}

debug_fields!(QuotaLookup, source);

debug_fields!(QuotaLookupBuilder, source);
