//! The limiters: limitador and throttlecrab-server.

use std::collections::HashMap;

use ::redis::aio::MultiplexedConnection;
use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::AsyncCounterStorage;
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorage};

use crate::Failure;
use crate::redis::load::Ask;

/// A storage of limitador.
#[derive(Clone, Copy)]
pub(crate) enum Storage {
    /// Calls Redis for each request.
    Redis,
    /// Answers from memory and writes to Redis once per second.
    Cached,
}

impl Storage {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Cached => "cached",
        }
    }
}

/// limitador with a limit per user.
pub(crate) struct Limitador {
    limiter: AsyncRateLimiter,
    namespace: Namespace,
    keys: u64,
}

impl Limitador {
    /// `quota` is the units per window and the window in seconds.
    pub(crate) async fn new(
        storage: Storage,
        url: &str,
        namespace: &str,
        quota: (u64, u64),
        keys: u64,
    ) -> Result<Self, Failure> {
        let storage: Box<dyn AsyncCounterStorage> = match storage {
            Storage::Redis => Box::new(AsyncRedisStorage::new(url).await?),
            Storage::Cached => Box::new(CachedRedisStorage::new(url).await?),
        };
        let limiter = AsyncRateLimiter::new_with_storage(storage);
        let user = "user".try_into().map_err(|error| format!("a variable: {error:?}"))?;
        limiter.add_limit(Limit::new(namespace, quota.0, quota.1, vec![], vec![user]));
        Ok(Self { limiter, namespace: namespace.into(), keys })
    }
}

impl Ask for Limitador {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let user = HashMap::from([("user".to_owned(), address(number % self.keys))]);
        let context = Context::from(user);
        let check = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        // Its error type is not `Send`.
        Ok(!check.await.map_err(|error| error.to_string())?.limited)
    }
}

/// throttlecrab-server, with a shared connection for all tasks.
pub(crate) struct Crab {
    connection: MultiplexedConnection,
    keys: u64,
}

impl Crab {
    pub(crate) async fn new(url: &str, keys: u64) -> Result<Self, Failure> {
        let connection = ::redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(Self { connection, keys })
    }
}

impl Ask for Crab {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let mut command = ::redis::cmd("THROTTLE");
        let key = address(number % self.keys);
        // The same quota as for redis-cell: one unit per second, with a burst of a million.
        let command = command.arg(key).arg(1_000_000).arg(1).arg(1);
        let answer: Vec<i64> = command.query_async(&mut self.connection.clone()).await?;
        Ok(answer.first() == Some(&1))
    }
}

/// The key for a number, the same for all limiters.
fn address(number: u64) -> String {
    format!("10.0.{number:09}")
}
