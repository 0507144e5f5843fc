//! A process that is killed while its requests are in flight. It takes all permits and waits.
//! Arguments: the Redis URL, and the permits' time to live in milliseconds.

use std::convert::Infallible;
use std::env::args;
use std::error::Error;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::{Limit, Policy, RateLimitLayer, RedisStore};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (Some(url), Some(lease)) = (args().nth(1), args().nth(2)) else {
        return Err("expected a Redis URL and the permits' time to live in milliseconds".into());
    };
    let lease = Duration::from_millis(lease.parse()?);
    let store = RedisStore::builder(&url)?.timeout(Duration::from_secs(10)).connect()?;
    store.connected().await;
    let policy = Policy::concurrent_requests("at-once", 3, lease)?;
    let endless =
        service_fn(|_: Request<()>| pending::<Result<Response<Full<Bytes>>, Infallible>>());
    let service =
        RateLimitLayer::builder(store).limit(Limit::global(policy)).build()?.layer(endless);
    let request = || service.clone().oneshot(Request::new(()));
    let _ = tokio::join!(request(), request(), request());
    Err("a request finished, but the service never responds".into())
}
