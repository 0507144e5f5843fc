//! Many replicas that lose their server and meet a new one without data or scripts.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::RedisStore;
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::sides::connected;
use crate::report::Table;
use crate::rounds::Spread;

const REPLICAS: usize = 300;
/// Replicas lose the server for this long.
const OUTAGE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(100);

/// What the new server does until all replicas have checked it.
pub(crate) async fn table(rounds: usize) -> Result<Table, Failure> {
    let redis = Redis::start();
    let mut stores = Vec::new();
    for _ in 0..REPLICAS {
        stores.push(connected(RedisStore::builder(&redis.url())?).await?);
    }
    let mut seen = Vec::new();
    for _ in 0..rounds {
        seen.push(round(&redis).await?);
    }
    let of = |number: fn(&Seen) -> f64| Spread::of(seen.iter().map(number));
    let heads = "replicas | all connected after, s | most in 0.1 s | commands per replica | scripts sent | Redis' processor time, ms | per replica, µs";
    let mut table = Table::new("Replicas that meet a new server", heads);
    let numbers: [fn(&Seen) -> f64; 5] = [
        |seen| seen.most,
        |seen| seen.commands / REPLICAS as f64,
        |seen| seen.loads,
        |seen| seen.processor * 1e3,
        |seen| seen.processor * 1e6 / REPLICAS as f64,
    ];
    table.row(&[&REPLICAS, &of(|seen| seen.took), &numbers.map(|number| (of(number), 0))]);
    Ok(table)
}

/// What the server did.
struct Seen {
    took: f64,
    /// The most replicas that checked it in a tick.
    most: f64,
    commands: f64,
    loads: f64,
    processor: f64,
}

async fn round(redis: &Redis) -> Result<Seen, Failure> {
    redis.kill();
    sleep(OUTAGE).await;
    redis.restart();
    let (start, mut checked, mut most) = (Instant::now(), 0, 0);
    while checked < REPLICAS as u64 {
        sleep(TICK).await;
        // Only a check sends this command.
        let all = redis.calls("pexpireat");
        most = most.max(all - checked);
        checked = all;
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("only {checked} replicas have returned").into());
        }
    }
    let took = start.elapsed().as_secs_f64();
    let number = |name: &str| redis.info(name).parse::<f64>();
    Ok(Seen {
        took,
        most: most as f64,
        commands: number("total_commands_processed")?,
        loads: redis.calls("eval") as f64,
        processor: number("used_cpu_user")? + number("used_cpu_sys")?,
    })
}
