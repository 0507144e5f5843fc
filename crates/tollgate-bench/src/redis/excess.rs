//! Admitted requests above a limit that two replicas share.

use std::sync::Arc;

use tollgate::{Policy, Quota, RedisStore};
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::peers::Outside;
use crate::redis::sides::{Limits, Tollgate, connected};
use crate::redis::worst::{LIMIT, WINDOW, worst};
use crate::report::Table;

pub(crate) async fn table(server: &Redis) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Excess of two replicas over a limit of 1000 in 10 s",
        "limiter | most in 10 s | over the limit",
    );
    let url = server.url();
    // All at the same time: with so few requests, they do not slow each other down.
    let mut others = Vec::new();
    for (name, kind) in
        [("limitador, Redis", "limitador"), ("limitador, write-behind cache", "limitador-cached")]
    {
        if let Some(peer) = Outside::start(kind, &url, 1)? {
            others.push((name, tokio::task::spawn_blocking(move || peer.worst())));
        }
    }
    let replica = async || {
        let policy = Policy::sliding_window_log("excess", Quota::new(LIMIT, WINDOW))?;
        let store = connected(RedisStore::builder(&url)?).await?;
        Ok::<_, Failure>(Arc::new(Tollgate { store, limits: Limits(vec![(policy, 1)]) }))
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let ours = worst([replica().await?, replica().await?]).await? as f64;
    let mut row = |name: &'static str, most: f64| {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let over = (most / LIMIT as f64 - 1.0) * 100.0;
        table.row(&[&name, &(Some(most), 0), &format!("{over:.1} %")]);
    };
    row("Tollgate, sliding window log", ours);
    for (name, most) in others {
        row(name, most.await??);
    }
    Ok(table)
}
