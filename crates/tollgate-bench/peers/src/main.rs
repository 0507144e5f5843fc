//! `tollgate-peers NAME URL KEYS` runs limitador in its own process: `limitador` calls Redis for
//! each request, and `limitador-cached` answers from memory and writes to Redis once per second. It
//! reads `round TASKS` and `worst` from stdin, and answers each line with numbers.

#[path = "."]
mod redis {
    #[path = "../../src/redis/load.rs"]
    pub(crate) mod load;
}

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io::{Write, stdin, stdout};
use std::sync::Arc;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::AsyncCounterStorage;
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorage};
use tokio::runtime;

use crate::redis::load::{Ask, LIMIT, Round, WINDOW, address, round, worst};

/// An error that stops a measurement.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<_> = env::args().skip(1).collect();
    let [name, url, keys] = &args[..] else {
        return Err("usage: tollgate-peers NAME URL KEYS".into());
    };
    let keys = keys.parse()?;
    let limiter = async |namespace: &str, quota, keys| {
        let limiter = Limitador::new(name, url, namespace, quota, keys).await?;
        Ok::<_, Failure>(Arc::new(limiter))
    };
    runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        // A quota that is never used up.
        let endless = limiter("rounds", (1 << 40, 3_600), keys).await?;
        for line in stdin().lines() {
            if let Some(("round", tasks)) = line?.split_once(' ') {
                let Round { decisions, admitted, rate, median, p99 } =
                    round(&endless, tasks.parse()?).await?;
                println!("{decisions} {admitted} {rate} {median} {p99}");
            } else {
                let quota = (LIMIT, WINDOW.as_secs());
                let replicas = [limiter(name, quota, 1).await?, limiter(name, quota, 1).await?];
                println!("{}", worst(replicas).await?);
            }
            stdout().flush()?;
        }
        Ok(())
    })
}

/// limitador with a limit per user.
struct Limitador {
    limiter: AsyncRateLimiter,
    namespace: Namespace,
    keys: u64,
}

impl Limitador {
    /// `quota` is the units per window and the window in seconds.
    async fn new(
        name: &str,
        url: &str,
        namespace: &str,
        quota: (u64, u64),
        keys: u64,
    ) -> Result<Self, Failure> {
        let storage: Box<dyn AsyncCounterStorage> = match name {
            "limitador" => Box::new(AsyncRedisStorage::new(url).await?),
            "limitador-cached" => Box::new(CachedRedisStorage::new(url).await?),
            other => return Err(format!("there is no peer `{other}`").into()),
        };
        let limiter = AsyncRateLimiter::new_with_storage(storage);
        let user = "user".try_into().map_err(|error| format!("a variable: {error:?}"))?;
        limiter.add_limit(Limit::new(namespace, quota.0, quota.1, vec![], vec![user]));
        Ok(Self { limiter, namespace: namespace.into(), keys })
    }
}

impl Ask for Limitador {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let user = address(number % self.keys);
        let context = Context::from(HashMap::from([("user".to_owned(), user)]));
        let check = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        // Its error type is not `Send`.
        Ok(!check.await.map_err(|error| error.to_string())?.limited)
    }
}
