//! The limiter around a client: the other side never sees more than it grants.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::MemoryStore;
use tollgate::store::{Clock, Timestamp};
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt};

/// The paused clock of tokio. It does not advance while a task runs, so results do not vary.
#[derive(Clone, Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_000_000) + self.0.elapsed().into()
    }
}

/// How many of forty requests the third party refused, and how long all of them took.
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
async fn the_other_side_never_sees_more_than_its_quota() {
    let (refused_to_the_polite, took) = refused(true).await;
    assert_eq!(refused_to_the_polite, 0);
    // Five at once, and then five each 1.1 seconds: no faster, and no slower.
    assert_eq!(took.as_millis() / 100, 77);
    let (refused_to_others, _) = refused(false).await;
    assert_eq!(refused_to_others, 35);
}
