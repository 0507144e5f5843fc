//! A worker, and the limiter that all workers share through their store.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::feedback::Feedback;
use tollgate::key::Key;
use tollgate::policy::OnStoreError;
use tollgate::{Limiter, Policy, Quota, RedisStore, Store};

use super::Fallible;
use super::options::Options;

/// The calls that all workers may make together, and what they learn from the third party.
pub(super) fn limiter<St: Store>(store: St, options: &Options) -> Fallible<Limiter<St>> {
    let quota = Quota::new(options.quota, options.window() + margin(options));
    // While Redis cannot decide, no call leaves.
    let policy =
        Policy::sliding_window_log("third party", quota)?.with_on_store_error(OnStoreError::Closed);
    let builder = Limiter::builder(store).policy(policy).queue(Duration::from_secs(10 * 60));
    Ok(builder.pausable(2 * options.window()).build()?)
}

/// How much longer our window is than the third party's.
///
/// The limiter times departures by Redis' clock, but the third party counts arrivals. Two calls that
/// leave a window apart arrive closer together if the first spends more time on the way than the
/// second. One half is for the network, and the other half for Redis' replies: see [`connect`].
fn margin(options: &Options) -> Duration {
    (options.window() / 60).max(Duration::from_millis(400))
}

/// A call starts when Redis replies, so a late reply also delays the call. A worker can wait for
/// longer than the 50 ms of a server, but not for longer than half of the margin.
pub(super) fn connect(url: &str, options: &Options) -> Fallible<RedisStore> {
    Ok(RedisStore::builder(url)?.timeout(margin(options) / 2).connect()?)
}

/// Runs tasks that call the third party as often as they may.
pub(super) async fn work<St: Store>(store: St, options: &Options, worker: usize) -> Fallible {
    let limiter = limiter(store, options)?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let mut tasks = JoinSet::<Fallible>::new();
    for task in 0..options.tasks {
        let (limiter, client, url) = (limiter.clone(), client.clone(), options.url.clone());
        tasks.spawn(async move {
            let account = Key::from("account");
            loop {
                // Waits behind all earlier calls of all workers.
                let permit = match limiter.acquire(&account, 1).await {
                    Ok(permit) => permit,
                    // The queue is too long, or Redis cannot decide.
                    Err(error) => {
                        sleep(error.retry_after().unwrap_or(Duration::from_secs(1))).await;
                        continue;
                    }
                };
                let request = Request::get(&url).header("user-agent", format!("{worker}/{task}"));
                let Ok(response) = client.request(request.body(Body::empty())?).await else {
                    continue;
                };
                if let Some(feedback) = Feedback::of(&response, SystemTime::now())
                    && let Ok(Some(pause)) = permit.learn(&feedback).await
                {
                    println!("worker {worker}: all workers pause for {pause:?}");
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
