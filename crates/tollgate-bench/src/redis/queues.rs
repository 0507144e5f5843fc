//! Calls that all processes queue in one order, compared with other clients' queues.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use tollgate::{Policy, Quota};
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::load::Round;
use crate::redis::peers::folder;
use crate::redis::server;
use crate::redis::sides::{self, Limits, OneEach, Tollgate, connected, patient};
use crate::redis::turns::{Load, Side, What, take_turns};
use crate::report::Table;

const TASKS: usize = 32;

/// Nearly all calls get an instant in the future.
const LONG: Duration = Duration::from_secs(10 * 3_600);

pub(crate) async fn table(server: &Redis, rounds: usize) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Calls in one order, 32 tasks",
        "limiter | scripts per call | Redis µs per call | ×",
    );
    let redis = &server::client(&server.url()).await?;
    let store = connected(patient(&server.url())?).await?;
    let one = |policy| Limits(vec![(policy, 1)]);
    let tollgate = |policy| Tollgate { store: store.clone(), limits: one(policy) };
    let each =
        async |policy| OneEach::new(server::client(&server.url()).await?, one(policy), false).await;
    let quota = Quota::per_minute(100_000);
    let bucket = |name| Policy::token_bucket(name, quota)?.with_queue(LONG);
    let log = Policy::sliding_window_log("log", quota)?.with_queue(LONG)?;
    let mut sides = vec![
        Side::new("Tollgate, a script each", each(bucket("queued")?).await?, redis),
        Side::new("the same, without a queue", each(sides::bucket("plain", 1)?).await?, redis),
        Side::new("Tollgate", tollgate(bucket("batched")?), redis),
        Side::new("Tollgate, sliding window log", tollgate(log), redis),
    ];
    if let Some(folder) = peers() {
        let (program, port) = (folder.join("queues.mjs"), server.address().port());
        for (name, limiter) in
            [("Effect 4.1, shared and learned rate", "effect"), ("bottleneck 2.19", "bottleneck")]
        {
            sides.push(Side::outside(
                name,
                Node { program: program.clone(), limiter, port },
                redis,
            ));
        }
    }
    take_turns(&mut sides, TASKS, rounds).await?;
    for side in &sides {
        if side.denied() > 0.0 {
            return Err(format!("{}: a call found the queue full", side.name).into());
        }
        let scripts = format!("{:.2}", side.spread(What::Scripts, 1.0).median);
        let ratio = (side.over(&sides[0], What::Redis), 2);
        table.row(&[&side.name, &scripts, &side.spread(What::Redis, 1e-6), &ratio]);
    }
    Ok(table)
}

/// The folder of the clients in Node, if they are installed.
pub(crate) fn peers() -> Option<PathBuf> {
    Some(folder()?.join("queues")).filter(|folder| folder.join("node_modules").is_dir())
}

/// A client in Node.
struct Node {
    program: PathBuf,
    limiter: &'static str,
    port: u16,
}

impl Load for Node {
    fn round(&self, tasks: usize) -> Pin<Box<dyn Future<Output = Result<Round, Failure>> + '_>> {
        /// How many calls its process makes.
        const CALLS: u32 = 10_000;
        let run = move || {
            let numbers = [self.port.to_string(), CALLS.to_string(), tasks.to_string()];
            let mut command = Command::new("node");
            let status = command.arg(&self.program).arg(self.limiter).args(numbers).status()?;
            if !status.success() {
                return Err(format!("{} failed: {status}", self.limiter).into());
            }
            let (decisions, nan) = (f64::from(CALLS), f64::NAN);
            // Its own times count the start of Node.
            Ok(Round { decisions, admitted: decisions, rate: nan, median: nan, p99: nan })
        };
        Box::pin(async move { run() })
    }
}
