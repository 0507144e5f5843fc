//! The limiter around a client never exceeds the third party's quota.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::MemoryStore;
use tollgate::store::{Clock, Timestamp};
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt};

/// Tokio's paused clock. It does not advance while a task runs, so results do not vary.
#[derive(Clone, Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_000_000) + self.0.elapsed().into()
    }
}

/// Sends forty requests. Returns how many the third party rejected, and the total time.
async fn refused(is_polite: bool) -> (usize, Duration) {
    let started = Instant::now();
    let store = || MemoryStore::builder().clock(Paused(started)).build();
    let third_party = super::third_party(store()).expect("a quota that builds");
    let client = if is_polite {
        let polite = super::polite(store()).expect("a quota that builds");
        let client = ServiceBuilder::new().map_response(|it: Response<_>| it.map(Body::new));
        BoxCloneSyncService::new(client.layer(polite).service(third_party))
    } else {
        BoxCloneSyncService::new(third_party)
    };
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        requests.spawn(client.clone().oneshot(request));
    }
    let responses = requests.join_all().await;
    let statuses = responses.into_iter().map(|it| it.expect("it does not fail").status());
    (statuses.filter(|status| *status != StatusCode::OK).count(), started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn third_party_quota_is_never_exceeded() {
    let (refused_to_the_polite, took) = refused(true).await;
    assert_eq!(refused_to_the_polite, 0);
    // Five requests immediately, then exactly five every 1.1 seconds.
    assert_eq!(took.as_millis() / 100, 77);
    let (refused_to_others, _) = refused(false).await;
    assert_eq!(refused_to_others, 35);
}
