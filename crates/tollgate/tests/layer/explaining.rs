//! What a layer that explains says, and that it is true.

use tollgate::{Cost, Costs, Limit, Micros, Policy, Quota, RateLimit, Store};
use tower::Layer;

use crate::stage::Staged;
use crate::support::*;

const FIELD: &str = "x-ratelimit-explain";

fn explaining<St: Store>(store: &St, limits: Vec<Limit>) -> RateLimit<Hello, St> {
    let builder = limits.into_iter().fold(builder(store, []), |it, limit| it.limit(limit));
    builder.explain(true).build().unwrap().layer(hello())
}

/// A minute of ten units, and a bucket of six that only watches and gets one back a second.
fn limits() -> Vec<Limit> {
    let bucket = Policy::token_bucket("bucket", Quota::per_second(1).burst(6)).unwrap();
    let costs = || Costs::flat(Cost::new(4));
    vec![
        Limit::global(log("global", 10)).costs(costs()),
        Limit::global(bucket).costs(costs()).shadow(),
    ]
}

#[tokio::test]
async fn it_says_what_each_policy_did_and_when_each_cost_would_pass() {
    let (clock, memory) = memory();
    let store = Staged::new(memory);
    let service = explaining(&store, limits());
    let said = [
        r#""global";said=allow;r=6;c1=0;c3=0;c5=0;c10=60000000, "bucket";said=allow;r=2;shadow;c1=0;c3=1000000;c5=3000000;c10=never"#,
        r#""global";said=allow;r=2;c1=0;c3=58000000;c5=58000000;c10=60000000, "bucket";said=allow;r=0;shadow;c1=1000000;c3=3000000;c5=5000000;c10=never"#,
        r#""global";said=deny;r=2;c1=0;c3=57999999;c5=57999999;c10=59999999, "bucket";said=deny;r=0;shadow;c1=999999;c3=2999999;c5=4999999;c10=never"#,
    ];
    for (asked, (said, pause)) in said.into_iter().zip([2_000_000, 1, 0]).enumerate() {
        let response = ask(&service, get()).await;
        assert_eq!(field(response.headers(), FIELD).unwrap(), said);
        // One call for all of it.
        assert_eq!(store.calls(), asked + 1);
        clock.advance(Micros::new(pause));
    }
}

#[tokio::test]
async fn the_waits_are_exact() {
    let (clock, store) = memory();
    let limit = |cost| Limit::global(log("global", 10)).costs(Costs::flat(Cost::new(cost)));
    let service = explaining(&store, vec![limit(5)]);
    for _ in 0..2 {
        assert_eq!(status(&service).await, 200);
        clock.advance(seconds(7));
    }
    let response = ask(&service, get()).await;
    let said = field(response.headers(), FIELD).unwrap();
    let (_, wait) = said.split_once("c10=").unwrap();
    let whole = explaining(&store, vec![limit(10)]);
    clock.advance(Micros::new(wait.parse::<u64>().unwrap() - 1));
    assert_eq!(status(&whole).await, 429);
    clock.advance(Micros::new(1));
    assert_eq!(status(&whole).await, 200);
}

#[tokio::test]
async fn nothing_is_explained_unasked() {
    let (_, store) = memory();
    let service = limited(&store, limits());
    assert_eq!(field(ask(&service, get()).await.headers(), FIELD), None);
}

/// The handler sees the verdict on its request and nothing else.
#[tokio::test]
async fn a_verdict_is_exposed_without_what_was_asked_besides() {
    let (_, store) = memory();
    let layer = builder(&store, limits()).explain(true).expose_verdicts(true).build().unwrap();
    let service = layer.layer(tower::service_fn(async |request: http::Request<()>| {
        let verdicts = request.extensions().get::<tollgate::Verdicts>().unwrap();
        assert_eq!(verdicts.iter().next().unwrap().decisions().len(), 2);
        Ok::<_, std::convert::Infallible>(http::Response::new(
            http_body_util::Full::<bytes::Bytes>::default(),
        ))
    }));
    let response = tower::ServiceExt::oneshot(service, get()).await.unwrap();
    assert_eq!(response.status(), 200);
}
