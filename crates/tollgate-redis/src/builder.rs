//! A store's settings.

use std::fmt;
use std::panic::catch_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::calls::combiner::Combiner;
use crate::calls::ids::Ids;
use crate::calls::pace::Bounds;
use crate::client::address::{Address, Servers, UrlError};
use crate::client::check::ServerCheck;
use crate::client::connection::Network;
use crate::client::host_port::HostPort;
use crate::client::tls::{self, TlsError};
use crate::client::topology::{Connect, Topology};
use crate::clock::Clock;
use crate::deny_cache::{DEFAULT_BOUND, DenyCache};
use crate::lease::Leases;
use crate::random::Random;
use crate::script::encode::Batch;
use crate::script::names::Names;
use crate::stats::Counters;
use crate::store::{Inner, RedisStore};

/// The settings of a [`RedisStore`]. All replicas that share limits must use the same
/// [`namespace`](Self::namespace) and [`secret`](Self::secret).
///
/// ```no_run
/// use std::time::Duration;
///
/// use tollgate_redis::RedisStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder("rediss://tollgate:password@redis.example:6380")?
///     .timeout(Duration::from_millis(30))
///     .namespace("shop")
///     .secret(std::env::var("TOLLGATE_SECRET")?)
///     .connect()?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    pub(crate) address: Address,
    namespace: String,
    secret: Vec<u8>,
    authorities: Option<Vec<u8>>,
    pub(crate) bounds: Bounds,
    deny_cache: Duration,
    has_breaker: bool,
    time: Option<Arc<AtomicU64>>,
    clock: Clock,
    seed: Option<u64>,
    network: Option<Network>,
}

/// Why a [`RedisStore`] could not be created. A Redis that is down is not an error: the store
/// connects when Redis is up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The certificates are invalid.
    #[error("TLS to Redis: {0}")]
    Tls(#[from] TlsError),
    /// The namespace contains a brace.
    #[doc(alias = "TG0305")]
    #[error(
        "the namespace {0:?} contains a brace, which would change the slot of its keys; remove the brace [TG0305]"
    )]
    Namespace(String),
    /// There is no tokio runtime to connect in.
    #[doc(alias = "TG0306")]
    #[error(
        "a RedisStore must be built inside a tokio runtime, for example under #[tokio::main] [TG0306]"
    )]
    NoRuntime,
    /// The tokio runtime has no timer, so calls could not time out.
    ///
    /// Tokio reports this only by a panic, which the builder catches: the panic hook prints its
    /// message before this error is returned. With `panic = "abort"` the program ends.
    #[doc(alias = "TG0307")]
    #[error(
        "the tokio runtime has no timer, which a RedisStore needs for its timeouts: call \
         `enable_all()` on the runtime's builder [TG0307]"
    )]
    NoTimer,
    /// The client rejected its settings.
    #[doc(alias = "TG0308")]
    #[error("the Redis client rejected its settings: {0} [TG0308]")]
    Client(String),
}

tollgate_core::debug_as_display!(ConnectError);

impl RedisStore {
    /// Creates a store with the default settings, which connects in the background. Call it within
    /// a tokio runtime: the store's calls run there, and all requests fail after it has shut down.
    /// Callers in another runtime, or outside a runtime, also get answers, but each such call
    /// spawns a task.
    ///
    /// It does not wait for Redis: see [`connected`](Self::connected).
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.connect()
    }

    /// Returns a builder for a store at this URL.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, UrlError> {
        RedisStoreBuilder::new(url)
    }
}

impl RedisStoreBuilder {
    pub(crate) fn new(url: &str) -> Result<Self, UrlError> {
        Ok(Self {
            address: Address::parse(url)?,
            namespace: "tollgate".to_owned(),
            secret: Vec::new(),
            authorities: None,
            bounds: Bounds {
                calls: 64,
                batch: 512,
                queue: 16_384,
                timeout: Duration::from_millis(50),
            },
            deny_cache: DEFAULT_BOUND,
            has_breaker: true,
            time: None,
            clock: Clock::default(),
            seed: None,
            network: None,
        })
    }

    /// Sets how long a request may wait for its answer before it fails. It is not charged after
    /// that, except in calls that Redis has already received. At most an hour. Default: 50 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.bounds.timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the prefix of all key names, before a colon. Default: `tollgate`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the secret for hashing clients' keys in Redis key names.
    ///
    /// Without a secret, an attacker can compute the Redis name for any guessed key. Long API keys
    /// cannot be guessed, but IPv4 addresses can, so a reader of Redis, its logs or its backups
    /// could identify the clients.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secret = secret.as_ref().to_vec();
        self
    }

    /// Sets the trusted certificate authorities, as PEM, instead of the system's. Only TLS uses
    /// them.
    pub fn certificate_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// Sets the number of concurrent calls, at least 1. Default: 64. Near Redis the store needs one
    /// or two; a slower network needs more. In a Cluster each node has its own limit.
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.bounds.calls = calls.max(1);
        self
    }

    /// Sets the maximum number of requests per call, from 1 to 65 535. Default: 512. Redis executes
    /// such a call in about a millisecond, and the server's other users wait that long.
    pub fn max_batch(mut self, requests: usize) -> Self {
        self.bounds.batch = requests.clamp(1, Batch::MAX);
        self
    }

    /// Sets how many requests may wait for a call; further requests fail immediately.
    /// Default: 16 384. In a Cluster each node has its own limit, so a silent node does not affect
    /// other nodes.
    pub const fn max_queue(mut self, requests: usize) -> Self {
        self.bounds.queue = requests;
        self
    }

    /// Sets how long the store remembers a denial; with zero it calls Redis each time. Default: one
    /// second.
    ///
    /// While a key has no unit left, no replica can charge it, so the store denies its requests
    /// without calling Redis. Such a verdict has [`Source::Cache`](tollgate_core::Source::Cache)
    /// and the numbers that Redis would return. The store calls Redis once for each cost. It does
    /// not query the request's other policies, which have units left: their outcome is
    /// [`Undecided`](tollgate_core::Outcome::Undecided), and clients do not see their numbers.
    ///
    /// Within this time a store does not notice that another process refunded units, reset the key
    /// or raised the quota, that Redis lost data or its clock stepped, or that another policy in
    /// the request ran out of units, which may mean a longer wait. A shorter time lets it notice
    /// sooner.
    pub const fn deny_cache(mut self, bound: Duration) -> Self {
        self.deny_cache = bound;
        self
    }

    /// Sets whether requests fail immediately while a server does not answer, instead of each
    /// waiting for the timeout. Default: yes. Each server has its own [`Breaker`](crate::Breaker),
    /// so a Cluster node that is down does not delay requests for other nodes.
    pub const fn breaker(mut self, breaker: bool) -> Self {
        self.has_breaker = breaker;
        self
    }

    /// Returns the Redis address without credentials, for people to read.
    pub fn address(&self) -> impl fmt::Display {
        self.address.clone()
    }

    /// Creates the store and starts to connect. Requests before the first connection fail after the
    /// timeout.
    pub fn connect(self) -> Result<RedisStore, ConnectError> {
        let runtime = runtime()?;
        if self.namespace.contains(['{', '}']) {
            return Err(ConnectError::Namespace(self.namespace));
        }
        let network = self.network()?;
        let (address, bounds, has_breaker) = (self.address, self.bounds, self.has_breaker);
        let counters = Arc::<Counters>::default();
        let random = Arc::new(self.seed.map_or_else(Random::default, Random::new));
        let ids = Ids::new(random.next());
        let names = Names::new(&self.namespace, &self.secret);
        let check = ServerCheck {
            names: names.clone(),
            is_cluster_node: matches!(address.servers, Servers::Cluster(_)),
            counters: Arc::clone(&counters),
            random,
        };
        let connect = Connect { network, bounds, has_breaker, check };
        let topology = if let Servers::Cluster(nodes) = &address.servers {
            Topology::cluster(nodes.clone(), connect)
        } else {
            let shown = HostPort { host: address.to_string(), port: 0 };
            Topology::single(connect.start(None, shown).map_err(ConnectError::Client)?)
        };
        let leases = Leases::new(self.clock.clone());
        let combiner = Arc::new(Combiner {
            topology,
            bounds,
            runtime,
            deny_cache: DenyCache::new(self.deny_cache, self.clock.clone()),
            clock: self.clock,
            counters,
            ids,
            time: self.time,
        });
        Ok(RedisStore(Arc::new(Inner {
            address,
            names,
            combiner,
            leases,
            roster: OnceLock::new(),
            overrides: OnceLock::new(),
        })))
    }
}

/// For tests.
#[cfg(feature = "test-util")]
#[doc(hidden)]
impl RedisStoreBuilder {
    /// Sets the time at which Redis and the store decide, in microseconds since the epoch. Turns
    /// the deny cache off, unless it is set afterwards.
    pub fn time(mut self, time: Arc<AtomicU64>) -> Self {
        self.clock = Clock::by_hand(Arc::clone(&time), true);
        self.time = Some(time);
        self.deny_cache(Duration::ZERO)
    }

    /// Sets the store's clock, in microseconds, while Redis uses its own: for tests in which the
    /// machine was suspended and its timers stopped.
    pub fn clock(mut self, clock: Arc<AtomicU64>) -> Self {
        self.clock = Clock::by_hand(clock, false);
        self
    }

    /// Sets the process's random bits, for tests of processes with equal bits, such as copied
    /// virtual machines.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets a simulated network. The store's clock becomes tokio's clock plus `asleep`
    /// microseconds.
    pub fn simulated(
        mut self,
        network: Arc<dyn crate::simulation::Network>,
        asleep: Arc<AtomicU64>,
    ) -> Self {
        self.network = Some(Network::Simulated(network));
        self.clock = Clock::of_timers(asleep);
        self
    }
}

impl RedisStoreBuilder {
    pub(crate) fn network(&self) -> Result<Network, ConnectError> {
        if let Some(network) = &self.network {
            return Ok(network.clone());
        }
        let address = self.address.clone();
        let tls = address.uses_tls.then(|| tls::config(self.authorities.as_deref()));
        Ok(Network::Fred { address, tls: tls.transpose()? })
    }
}

/// Returns the current runtime. Tokio reports a missing timer only by a panic, which would
/// otherwise occur in background tasks. See [`ConnectError::NoTimer`].
pub(crate) fn runtime() -> Result<Handle, ConnectError> {
    let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
    let timer = catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO)));
    timer.map(|()| runtime).map_err(|_| ConnectError::NoTimer)
}

tollgate_core::debug_fields!(RedisStoreBuilder, address, namespace, bounds, deny_cache);

/// No client waits longer, and instants this far ahead can still be represented.
const LONGEST: Duration = Duration::from_secs(3600);
