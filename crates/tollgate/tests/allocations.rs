//! An allowed request allocates only header values and the space for them.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tollgate::body::{ExtractLayer, ReplayedBody};
use tollgate::headers::HeaderOptions;
use tollgate::key::{ClientIp, Header};
use tollgate::limit::OnMissingKey;
use tollgate::policy::Cost;
use tollgate::tier::{Client, QuotaLookup};
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer};
use tower::Layer as _;
use tower::Service;

/// Inserts the peer address as a plain extension, which needs no feature.
fn request() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 50_000)));
    request
}

/// Counts how much a request to a warm service allocates. The requests are built beforehand.
/// Returns the minimum of three runs, which excludes occasional work.
fn allocations<S, B>(mut service: S) -> u64
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut requests: Vec<_> = (0..5).map(|_| request()).collect();
    let mut call = || {
        let request = requests.pop().expect("a request");
        let mut cx = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut cx).is_ready());
        let mut future = pin!(service.call(request));
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status(), 200),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => panic!("the memory store answers immediately"),
        }
    };
    // The first call creates the entry in the store, and the second finds it.
    call();
    call();
    (0..3).map(|_| measure(&mut call).count_total).min().expect("three of them")
}

fn limits(count: usize) -> impl Iterator<Item = Limit> {
    let quota = Quota::per_minute(1_000_000);
    (0..count).map(move |n| {
        let policy = Policy::token_bucket(format!("policy-{n}"), quota).expect("a valid policy");
        Limit::new(policy, ClientIp::peer())
    })
}

fn layer(count: usize, headers: HeaderOptions) -> RateLimitLayer<MemoryStore> {
    let builder = RateLimitLayer::builder(MemoryStore::new())
        .headers(headers)
        .costs(Costs::flat(Cost::new(2)));
    limits(count).fold(builder, |builder, limit| builder.limit(limit)).build().expect("a layer")
}

type Answer = Response<Full<Bytes>>;

fn bare(_: Request<()>) -> std::future::Ready<Result<Answer, Infallible>> {
    ready(Ok(Response::default()))
}

/// Counts what these headers allocate on an empty response: the map, and each value that
/// depends on the request. The headers in `constant` have static or remembered values.
fn fields(values: &[(&'static str, &'static str)], constant: &[&str]) -> u64 {
    let info = measure(|| {
        let mut response = Response::new(());
        for (name, value) in values {
            let copy = || HeaderValue::from_bytes(value.as_bytes()).expect("a valid value");
            let is_constant = constant.contains(name);
            let value = if is_constant { HeaderValue::from_static(value) } else { copy() };
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    });
    info.count_total
}

const LISTS: [(&str, &str); 2] =
    [("ratelimit-policy", r#""policy-0";q=1000000;w=60"#), ("ratelimit", r#""policy-0";r=9;t=1"#)];
const NUMBERS: [(&str, &str); 3] = [
    ("x-ratelimit-limit", "1000000"),
    ("x-ratelimit-remaining", "999996"),
    ("x-ratelimit-reset", "1704067200"),
];

#[test]
fn allowed_requests_allocate_only_for_headers() {
    let silent = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
    assert_eq!(allocations(tower::service_fn(bare)), 0);
    for policies in 1..=4 {
        let service = layer(policies, silent).layer(tower::service_fn(bare));
        // Rows store one policy inline, and a verdict stores two decisions inline.
        let spilled = u64::from(policies > 1) + u64::from(policies > 2);
        assert_eq!(allocations(service), spilled, "{policies} policies");
    }
}

#[test]
fn headers_allocate_values_and_map() {
    let all = HeaderOptions::all();
    let constant = ["ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-reset"];
    for (options, expected) in [
        (all, fields(&[LISTS.as_slice(), &NUMBERS].concat(), &constant)),
        (all.x_ratelimit(false), fields(&LISTS, &constant)),
        (all.ratelimit(false), fields(&NUMBERS, &constant)),
    ] {
        let service = layer(1, options).layer(tower::service_fn(bare));
        assert_eq!(allocations(service), expected, "{options:?}");
    }
    let service = layer(2, all.x_ratelimit(false)).layer(tower::service_fn(bare));
    assert_eq!(allocations(service), fields(&LISTS, &constant) + 1);
}

#[test]
fn tier_lookup_does_not_allocate() {
    let silent = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
    let policy = Policy::token_bucket("tiered", Quota::per_minute(10)).expect("a valid policy");
    let limit =
        Limit::global(policy).in_tier("pro", Quota::per_minute(1_000_000)).expect("a valid quota");
    let layer = RateLimitLayer::builder(MemoryStore::new())
        .headers(silent)
        .tiers(tollgate::tier::from_fn(|_| Some("pro")))
        .limit(limit)
        .build()
        .expect("a layer");
    assert_eq!(allocations(layer.layer(tower::service_fn(bare))), 0);
}

#[test]
fn cached_quota_does_not_allocate() {
    let silent = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
    let policy = Policy::token_bucket("tenant", Quota::per_minute(10)).expect("a valid policy");
    let quotas =
        QuotaLookup::new(|_| async { Ok::<_, Infallible>(Some(Quota::per_minute(1_000_000))) });
    let layer = RateLimitLayer::builder(MemoryStore::new())
        .headers(silent)
        .limit(Limit::global(policy).quota_from(&quotas))
        .build()
        .expect("a layer");
    let service = layer.layer(tower::service_fn(bare));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let first = runtime.block_on(tower::ServiceExt::oneshot(service.clone(), request()));
    assert!(first.is_ok());
    let _entered = runtime.enter();
    assert_eq!(allocations(service), 0);
}

#[test]
fn unlimited_requests_do_not_allocate() {
    let policy = Policy::token_bucket("never", Quota::per_minute(1)).expect("a valid policy");
    let layer = RateLimitLayer::builder(MemoryStore::new())
        .limit(Limit::global(policy).when(|_| false))
        .build()
        .expect("a layer");
    assert_eq!(allocations(layer.layer(tower::service_fn(bare))), 0);
}

/// A client chooses the sizes of its frames.
#[test]
fn small_frames_take_no_more_than_their_bytes() {
    let frame = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")));
    let frames: Vec<_> = (0..10_000).map(|_| frame()).collect();
    let inner = tower::service_fn(|request: Request<ReplayedBody<_>>| {
        assert_eq!(request.extensions().get(), Some(&10_000_usize));
        ready(Ok::<_, Infallible>(()))
    });
    let mut service = ExtractLayer::new(10_000, |_, body| Some(body.len())).layer(inner);
    let request = Request::new(StreamBody::new(tokio_stream::iter(frames)));
    let mut future = pin!(service.call(request));
    let mut poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let read = measure(|| while poll().is_pending() {});
    // The buffer grows by doubling.
    assert!(read.bytes_max < 50_000, "{} bytes", read.bytes_max);
}

/// A client chooses its name, which may be long.
#[test]
fn look_ups_do_not_store_names() {
    const CLIENTS: usize = 200;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let policy = Policy::token_bucket("client", Quota::per_minute(5)).expect("a valid policy");
    let lookup = QuotaLookup::new(|client: Client| {
        assert!(client.name.len() > NAME);
        ready(Ok::<_, Infallible>(Some(Quota::per_minute(9))))
    });
    let name = Header::trust_unverified(HeaderName::from_static("name"));
    let limit = Limit::new(policy, name).on_missing_key(OnMissingKey::Deny).quota_from(&lookup);
    let layer = RateLimitLayer::builder(MemoryStore::new()).limit(limit).build();
    let layer = layer.expect("a valid layer");
    let call = |number: usize| {
        let mut service = layer.layer(tower::service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        }));
        let mut request = request();
        let value = format!("{number}{}", "n".repeat(NAME));
        let value = HeaderValue::try_from(value).expect("a header's value");
        request.headers_mut().insert("name", value);
        let response = runtime.block_on(service.call(request)).expect("infallible");
        assert_eq!(response.status(), 200);
    };
    call(0);
    let used = measure(|| (1..=CLIENTS).for_each(call)).bytes_current;
    assert!(used < (CLIENTS * NAME / 4) as i64, "{used} bytes");
}

const NAME: usize = 8_000;
