//! `tollgate-peers NAME URL KEYS` runs a limiter from another project. It reads `round TASKS` and
//! `worst` from stdin, and answers each line with numbers.

#[path = "."]
mod redis {
    #[path = "../../src/redis/load.rs"]
    pub(crate) mod load;
    #[path = "../../src/redis/worst.rs"]
    pub(crate) mod worst;
}
mod limiters;

use std::env;
use std::error::Error;
use std::io::{Write, stdin, stdout};
use std::sync::Arc;

use tokio::runtime;

use crate::limiters::{Crab, Storage, Limitador};
use crate::redis::load::{Ask, Round, round};
use crate::redis::worst::{LIMIT, WINDOW, worst};

/// An error that stops a measurement.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<_> = env::args().skip(1).collect();
    let [name, url, keys] = &args[..] else {
        return Err("usage: tollgate-peers NAME URL KEYS".into());
    };
    let keys = keys.parse()?;
    runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let storage = match name.as_str() {
            "throttlecrab" => return answer(Crab::new(url, keys).await?, None).await,
            "limitador" => Storage::Redis,
            "limitador-cached" => Storage::Cached,
            other => return Err(format!("there is no peer `{other}`").into()),
        };
        // A quota that is never used up.
        let limiter = Limitador::new(storage, url, "rounds", (1 << 40, 3_600), keys).await?;
        answer(limiter, Some((storage, url))).await
    })
}

/// Answers lines until stdin closes.
async fn answer<A: Ask>(limiter: A, replicas: Option<(Storage, &str)>) -> Result<(), Failure> {
    let limiter = Arc::new(limiter);
    for line in stdin().lines() {
        match (line?.split_once(' '), replicas) {
            (Some(("round", tasks)), _) => {
                let Round { decisions, admitted, rate, median, p99 } =
                    round(&limiter, tasks.parse()?).await?;
                println!("{decisions} {admitted} {rate} {median} {p99}");
            }
            (None, Some((storage, url))) => {
                let quota = (LIMIT, WINDOW.as_secs());
                let replica = || Limitador::new(storage, url, storage.name(), quota, 1);
                let replicas = [Arc::new(replica().await?), Arc::new(replica().await?)];
                println!("{}", worst(replicas).await?);
            }
            _ => return Err("expected `round TASKS`, or `worst` for limitador".into()),
        }
        stdout().flush()?;
    }
    Ok(())
}
