//! Settings of a store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::address::{Address, Servers};
use crate::check::About;
use crate::clock::Clock;
use crate::combiner::Combiner;
use crate::connection::Network;
use crate::deniers::Deniers;
use crate::deny_cache::DenyCache;
use crate::encode::Batch;
use crate::guard::Guard;
use crate::ids::Ids;
use crate::lease::Leases;
use crate::names::Names;
use crate::node::Node;
use crate::pace::Bounds;
use crate::random::Random;
use crate::stats::Counters;
use crate::topology::{Connect, Place, Topology};
use crate::{Inner, RedisStore, TlsError, UrlError, tls};

/// The settings of a [`RedisStore`]. All replicas that share limits must have the same
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
    address: Address,
    namespace: String,
    secret: Vec<u8>,
    authorities: Option<Vec<u8>>,
    bounds: Bounds,
    deny_cache: Duration,
    has_breaker: bool,
    time: Option<Arc<AtomicU64>>,
    clock: Clock,
    seed: Option<u64>,
    network: Option<Network>,
}

/// The error of a [`RedisStore`] that cannot be made. A Redis that is down is not an error: the
/// store connects when Redis is up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL makes no sense.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The certificates make no sense.
    #[error("TLS to Redis: {0}")]
    Tls(#[from] TlsError),
    /// The namespace would not be one.
    #[error("the namespace {0:?} has a brace in it, which says the slot of a key; take it out")]
    Namespace(String),
    /// There is no tokio runtime to connect in.
    #[error("a RedisStore is made within a tokio runtime, as in #[tokio::main]")]
    NoRuntime,
    /// The client refused its settings.
    #[error("the Redis client refused its settings: {0}")]
    Client(String),
}

tollgate_core::debug_as_display!(ConnectError);

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
            deny_cache: Duration::from_secs(1),
            has_breaker: true,
            time: None,
            clock: Clock::default(),
            seed: None,
            network: None,
        })
    }

    /// Sets the longest time from a request to its answer; after it the request fails. No request
    /// is charged later, except in calls that Redis has already received. At most an hour. Default:
    /// 50 ms.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.bounds.timeout = timeout.min(LONGEST);
        self
    }

    /// Sets the start of the names of all keys, up to a colon. Default: `tollgate`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the secret under which subjects are hashed in the names of keys.
    ///
    /// Without a secret, an attacker can compute the name for any guessed subject. Long API keys
    /// cannot be guessed, but IPv4 addresses can: a reader of Redis, its logs or its backups could
    /// find the clients.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secret = secret.as_ref().to_vec();
        self
    }

    /// Sets the authorities to trust instead of those of the system, as PEM. Only TLS uses them.
    pub fn certificate_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// Sets how many calls may be under way at a time, at least one. Default: 64. Near Redis the
    /// store needs one or two; a slower network needs more. In a Cluster each node has its own
    /// number.
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.bounds.calls = calls.max(1);
        self
    }

    /// Sets how many requests a call may have, from one to 65 535. Default: 512. Redis executes
    /// such a call in about a millisecond, and other users of the server wait that long.
    pub fn max_batch(mut self, requests: usize) -> Self {
        self.bounds.batch = requests.clamp(1, Batch::MAX);
        self
    }

    /// Sets how many requests may wait for a call; further requests fail at once. Default: 16 384.
    /// In a Cluster each node has its own number, so a silent node does not affect other nodes.
    pub const fn max_queue(mut self, requests: usize) -> Self {
        self.bounds.queue = requests;
        self
    }

    /// Sets how long the store remembers a denial, at most; with zero it calls Redis each time.
    /// Default: a second.
    ///
    /// While a key has no unit left, no replica can charge it, so requests for it are denied
    /// without asking. Such a verdict has [`Source::Cache`](tollgate_core::Source::Cache) and the
    /// numbers that Redis would return. The store asks once about each cost. It does not ask other
    /// policies of the request, which have units left: their outcome is
    /// [`Undecided`](tollgate_core::Outcome::Undecided), and clients see no numbers of them.
    ///
    /// Within this time a store does not notice that another process gave units back, reset the
    /// key or raised the quota, that Redis lost data or its clock stepped, or that another policy
    /// of the request ran out of units, which may mean a longer wait. A shorter time lets it
    /// notice sooner.
    pub const fn deny_cache(mut self, bound: Duration) -> Self {
        self.deny_cache = bound;
        self
    }

    /// Sets whether requests fail at once while a server does not answer, instead of each waiting
    /// for the timeout. Default: yes. Each server has a [`Breaker`](crate::Breaker) of its
    /// own, so a node of a Cluster that is down delays no request for other nodes.
    pub const fn breaker(mut self, breaker: bool) -> Self {
        self.has_breaker = breaker;
        self
    }

    /// Decides at this time, in microseconds of the epoch, instead of at Redis': for tests. The
    /// store itself goes by it too. Denials are not remembered, unless that is set afterwards.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn time(mut self, time: Arc<AtomicU64>) -> Self {
        self.clock = Clock::by_hand(Arc::clone(&time), true);
        self.time = Some(time);
        self.deny_cache(Duration::ZERO)
    }

    /// The store goes by this clock, in microseconds, while Redis has its own: for tests of a
    /// machine that was suspended, whose timers stood still.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn clock(mut self, clock: Arc<AtomicU64>) -> Self {
        self.clock = Clock::by_hand(clock, false);
        self
    }

    /// The random bits of the process, for tests of processes that have the same: copies of a
    /// machine.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets a simulated network, and makes tokio's clock plus `asleep` microseconds the store's
    /// clock.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn simulated(
        mut self,
        network: Arc<dyn crate::simulation::Network>,
        asleep: Arc<AtomicU64>,
    ) -> Self {
        self.network = Some(Network::Simulated(network));
        self.clock = Clock::of_timers(asleep);
        self
    }

    /// Returns the address of Redis without credentials, for people to read.
    pub fn address(&self) -> impl fmt::Display {
        self.address.clone()
    }

    /// Makes the store and begins to connect. Requests before the first connection fail after the
    /// timeout.
    pub fn connect(self) -> Result<RedisStore, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        if self.namespace.contains(['{', '}']) {
            return Err(ConnectError::Namespace(self.namespace));
        }
        let (address, bounds, has_breaker) = (self.address, self.bounds, self.has_breaker);
        let network = match self.network {
            Some(network) => network,
            None => {
                let tls = address.uses_tls.then(|| tls::config(self.authorities.as_deref()));
                Network::Fred { address: address.clone(), tls: tls.transpose()? }
            }
        };
        let counters = Arc::<Counters>::default();
        let random = Arc::new(self.seed.map_or_else(Random::default, Random::new));
        let ids = Ids::new(random.next());
        let names = Names::new(&self.namespace, &self.secret);
        let is_member = matches!(address.servers, Servers::Cluster(_));
        let about =
            About { names: names.clone(), is_member, counters: Arc::clone(&counters), random };
        let topology = if let Servers::Cluster(nodes) = &address.servers {
            let seeds = nodes.iter().cloned().map(|(host, port)| Place { host, port }).collect();
            Topology::cluster(seeds, Connect { network, bounds, has_breaker, about })
        } else {
            let guard = Guard::new(bounds.timeout, has_breaker);
            let connection = network.connect(None, bounds.timeout).map_err(ConnectError::Client)?;
            let node = Node::new(connection, bounds.timeout, guard, about);
            let place = Place { host: address.to_string(), port: 0 };
            Topology::single(place, node, bounds)
        };
        let leases = Leases::new(self.clock.clone());
        let combiner = Arc::new(Combiner {
            topology,
            bounds,
            runtime,
            deny_cache: DenyCache::new(self.deny_cache, self.clock.clone()),
            deniers: Deniers::default(),
            clock: self.clock,
            counters,
            ids,
            time: self.time,
        });
        Ok(RedisStore(Arc::new(Inner { address, names, combiner, leases })))
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("address", &self.address)
            .field("namespace", &self.namespace)
            .field("bounds", &self.bounds)
            .field("deny_cache", &self.deny_cache)
            .finish_non_exhaustive()
    }
}

/// Who waits longer than this is no longer there; instants that much later can be told.
const LONGEST: Duration = Duration::from_secs(3600);
