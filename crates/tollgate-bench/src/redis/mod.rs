//! A decision in Redis, compared with peers.
//!
//! | file | contains |
//! |---|---|
//! | `decisions.rs` | decisions by load, with tenants' quotas, and over HTTP |
//! | `fleet.rs` | leases, the excess of two replicas, fleets, a single-node Cluster |
//! | `logs.rs` | calls that wait in one order, and a full sliding window log |
//! | `overload.rs` | more requests than Redis can answer, and many replicas after an outage |
//! | `limiters.rs`, `peers.rs` | the limiters: Tollgate, custom scripts, peers |
//! | `lab.rs`, `load.rs` | the Redis server and its clients, and the load in a round |

mod decisions;
mod fleet;
pub(crate) mod lab;
pub(crate) mod limiters;
mod load;
mod logs;
mod overload;
pub(crate) mod peers;

use tollgate_test_servers::Redis;

use self::lab::Lab;
use crate::Failure;
use crate::report::{Options, Page};

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (redis, runtime) = (lab::start(), lab::runtime()?);
    let (mut page, lab) = (Page::new(options, 6), Lab::new(&redis, &runtime));
    decisions::tables(&mut page, &lab)?;
    logs::tables(&mut page, &lab)?;
    fleet::shared(&mut page, &lab)?;
    page.write("redis", include_str!("../../methods/redis.md"))
}

pub(crate) fn fleet(options: &Options) -> Result<(), Failure> {
    let (single, cluster, runtime) = (lab::start(), lab::start_cluster(), lab::runtime()?);
    let mut page = Page::new(options, 3);
    let labs =
        [("one Redis", Lab::new(&single, &runtime)), ("Cluster", Lab::cluster(&cluster, &runtime))];
    fleet::tables(&mut page, &labs)?;
    let new = Redis::start();
    overload::herd(&mut page, &Lab::new(&new, &runtime))?;
    page.write("fleet", include_str!("../../methods/fleet.md"))
}

pub(crate) fn overload(options: &Options) -> Result<(), Failure> {
    let (redis, runtime) = (lab::start(), lab::runtime()?);
    let mut page = Page::new(options, 1);
    overload::tables(&mut page, &Lab::new(&redis, &runtime))?;
    page.write("overload", include_str!("../../methods/overload.md"))
}
