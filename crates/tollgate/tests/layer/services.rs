//! Complete services that combine several features, in the README's style.
//!
//! More are in `examples/small` and in the guides in `docs/how-to`, which are compiled too.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::{get as on_get, post};
use http::{Method, Request, StatusCode};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::body::InFlight;
use tollgate::key::{self, ClientIp, JwtKey, JwtKeys, JwtUser, JwtVerifier, Key, KeySource};
use tollgate::layer::Reservation;
use tollgate::limit::{OnMissingKey, Paths, Reserve};
use tollgate::tier::JwtTier;
use tollgate::{Limit, Policy, Quota, RateLimitLayer, StoreExt};

use crate::support::*;

const SECRET: &[u8] = b"at least thirty-two random bytes";

fn token(user: &str, plan: &str) -> String {
    let claims = json!({"sub": user, "plan": plan, "exp": 4_102_444_800_u64});
    let key = EncodingKey::from_secret(SECRET);
    format!("Bearer {}", encode(&Header::default(), &claims, &key).unwrap())
}

/// Behind a proxy: users are limited by token with a larger quota in tier `pro`, anonymous clients
/// and logins by address, and each address uploads one file at a time.
#[tokio::test]
async fn accounts_behind_a_proxy() -> Result<(), Box<dyn std::error::Error>> {
    let (_, store) = memory();
    let address = ClientIp::behind(["192.0.2.0/24"])?;
    let user = JwtUser::new(JwtVerifier::new(JwtKeys::new([JwtKey::hs256(SECRET)?])?));
    let account = Limit::new(log("account", 2), user.clone().or(address.clone()))
        .in_tier("pro", Quota::per_minute(4))?;
    let login = Limit::new(log("login", 1), address.clone()).on_paths(Paths::new(["/login"])?);
    let second = std::time::Duration::from_secs(1);
    let upload = Policy::concurrent_requests("upload", 1, 30 * second)?;
    let upload = Limit::new(upload, address).on_paths(Paths::new(["/upload"])?);
    let limit = RateLimitLayer::builder(store)
        .cost(1)
        .tiers(JwtTier::new(user, "plan"))
        .limit(account)
        .limit(login)
        .limit(upload)
        .build()?;
    let app = Router::new()
        .route("/", on_get(|| async {}))
        .route("/login", post(|| async {}))
        .route("/upload", post(|| async { "stored" }))
        .layer(limit);

    let send = async |path: &str, client: &str, token: Option<String>| {
        let method = if path == "/" { Method::GET } else { Method::POST };
        let mut request = request(method, path);
        request.headers_mut().insert("x-forwarded-for", client.parse().unwrap());
        if let Some(token) = token {
            request.headers_mut().insert("authorization", token.parse().unwrap());
        }
        ask_router(&app, request).await
    };
    for (user, plan, most) in [("ann", "free", 2), ("bob", "pro", 4)] {
        for count in 0..=most {
            let status = send("/", "203.0.113.1", Some(token(user, plan))).await.status();
            assert_eq!(status == StatusCode::OK, count < most, "{user} {count}");
        }
    }
    for (client, expected) in [("203.0.113.1", 200), ("203.0.113.1", 429), ("203.0.113.2", 200)] {
        assert_eq!(send("/login", client, None).await.status(), expected, "{client}");
    }
    let first = send("/upload", "203.0.113.3", None).await;
    assert_eq!(send("/upload", "203.0.113.3", None).await.status(), 429);
    drop(first);
    assert_eq!(send("/upload", "203.0.113.3", None).await.status(), 200);
    Ok(())
}

/// Limits per workspace: GraphQL queries cost their depth, and streams and sockets are limited by
/// number.
#[tokio::test]
async fn live_data_per_workspace() -> Result<(), Box<dyn std::error::Error>> {
    let (_, store) = memory();
    let workspace = || key::from_ref(|head| head.headers.get("x-workspace")?.to_str().ok());
    let units = log("units", 10);
    let live = Policy::concurrent_requests("live", 1, std::time::Duration::from_secs(30))?;
    let by = |policy| Limit::new(policy, workspace()).on_missing_key(OnMissingKey::Deny).cost(1);
    let queries = by(units.clone()).cost(5).reserve(Reserve::by_handler());
    let query = |reservation: Reservation, query: String| async move {
        reservation.settle(query.matches('{').count() as u64);
    };
    let (events, receiver) = mpsc::channel::<Event>(1);
    let receiver = std::sync::Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let stream = || async move {
        let receiver = receiver.lock().take();
        receiver
            .map(|it| Sse::new(ReceiverStream::new(it).map(Ok::<_, Infallible>)))
            .ok_or(StatusCode::CONFLICT)
    };
    // The upgraded socket's task owns the permit.
    let (close, closed) = tokio::sync::oneshot::channel::<()>();
    let closed = std::sync::Arc::new(parking_lot::Mutex::new(Some(closed)));
    let socket = |permit: InFlight| async move {
        let closed = closed.lock().take().expect("one socket");
        tokio::spawn(async move {
            let _ = closed.await;
            drop(permit);
        });
        StatusCode::SWITCHING_PROTOCOLS
    };
    let app = Router::new()
        .route("/graphql", post(query).layer(layer(&store, [queries])))
        .route("/stream", on_get(stream).layer(layer(&store, [by(live.clone())])))
        .route("/socket", on_get(socket).layer(layer(&store, [by(live.clone())])));
    let send = async |method: Method, path: &str, body: &'static str| {
        let request = Request::builder().method(method).uri(path).header("x-workspace", "acme");
        let request = request.body(Body::from(body)).unwrap();
        tower::ServiceExt::oneshot(app.clone(), request).await.unwrap()
    };
    assert_eq!(ask_router(&app, request(Method::POST, "/graphql")).await.status(), 403);
    assert_eq!(send(Method::POST, "/graphql", "{ users { name } }").await.status(), 200);
    let subject = workspace().subject(&key::RequestHead::of(
        &Request::builder().header("x-workspace", "acme").body(()).unwrap(),
    ))?;
    let acme: Key = subject.expect("a key").key;
    let left =
        async |policy: &Policy| store.peek(policy, &acme).await.unwrap().decisions()[0].remaining;
    assert_eq!(left(&units).await, 8, "the estimate of 5 was settled to a depth of 2");

    let response = send(Method::GET, "/stream", "").await;
    assert_eq!((response.status(), left(&live).await), (StatusCode::OK, 0));
    assert_eq!(send(Method::GET, "/socket", "").await.status(), 429);
    drop(events);
    text(response).await;
    assert_eq!(left(&live).await, 1, "the stream has ended");

    let response = send(Method::GET, "/socket", "").await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    drop(response);
    assert_eq!(left(&live).await, 0, "the socket is open");
    drop(close);
    while left(&live).await == 0 {
        tokio::task::yield_now().await;
    }
    Ok(())
}
