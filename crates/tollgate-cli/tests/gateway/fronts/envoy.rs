//! Envoy as the proxy in front: external authorization, and the Rate Limit Service.

use super::*;

/// Envoy's arguments for this configuration. Several instances may run at the same time.
fn envoy(file: &str) -> [&str; 7] {
    ["-c", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_follows_decisions() {
    let checked = check("envoy", &envoy("envoy.yaml"), &["envoy.yaml"]).await;
    let denied = checked.client.get("/a").await;
    assert_eq!((denied.status.as_u16(), &*denied.code()), (429, "quota-exceeded"));
    check_odd_requests("envoy", &envoy("envoy.yaml"), &["envoy.yaml"]);
}

/// Envoy, its upstream service, and a gateway with the example files.
struct EnvoySetup {
    client: Client,
    service: Upstream,
    gateway: Gateway,
    _envoy: Process,
    _folder: TempDir,
}

impl EnvoySetup {
    /// Starts Envoy and the gateway. `rules` are replacements in the gateway's example files, and
    /// `changes` in Envoy's. With years as units, no window expires during a test.
    async fn start(
        file: &str,
        service: Upstream,
        rules: &[(&str, &str)],
        changes: &[(&str, &str)],
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fronts");
        for file in ["envoy-limits.yaml", "ratelimit.yaml"] {
            let text = fs::read_to_string(examples.join(file)).unwrap();
            let text = text.replace("127.0.0.1:8083", "127.0.0.1:0");
            let text = text.replace("rateLimiter:\n", "rateLimiter:\n  admin: 127.0.0.1:0\n");
            let text = rules.iter().fold(text, |text, (old, new)| text.replace(old, new));
            fs::write(folder.path().join(file), text).unwrap();
        }
        let gateway = Gateway::start_with(folder, "envoy-limits.yaml");
        let limits = gateway.fronts["rateLimitService"];
        let (envoy, folder, port) =
            proxy("envoy", &envoy(file), &[file], changes, limits, service.address);
        let listens = || TcpStream::connect(port.address()).ok();
        until("envoy listens", PATIENCE, listens);
        let client = Client::new(port.address());
        Self { client, service, gateway, _envoy: envoy, _folder: folder }
    }

    /// Waits until Envoy has made this many calls. It reports after it has responded to the client.
    async fn until_asked(&self, count: usize) {
        let line = "tollgate_gateway_rate_limit_service_total{domain=\"shop\",outcome=";
        until_async("the calls arrive", PATIENCE, async || {
            let metrics = self.gateway.metrics().await;
            let lines = metrics.lines().filter_map(|it| it.strip_prefix(line)?.rsplit_once(' '));
            let sum: usize = lines.map(|(_, count)| count.parse::<usize>().unwrap()).sum();
            (sum >= count).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_sends_descriptors() {
    let rules = [("minute", "year"), ("second", "year"), ("100}", "3}"), ("20}", "1}")];
    let asking =
        EnvoySetup::start("envoy-ratelimit.yaml", Upstream::new().await, &rules, &[]).await;
    let send = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        asking.client.send(method, path, headers, "").await.unwrap()
    };
    let order = send("POST", "/api/7/orders", &[]).await;
    assert_eq!((order.status.as_u16(), &*order.body), (200, &b"ok"[..]), "{order:?}");
    let order = send("POST", "/api/8/orders", &[]).await;
    assert_eq!(order.status, 429, "all paths share the quota: {order:?}");
    assert_eq!((order.header("ratelimit-limit"), order.header("ratelimit-remaining")), ("1", "0"));
    assert_eq!(order.header("retry-after"), order.header("ratelimit-reset"));
    for _ in 0..2 {
        assert_eq!(send("GET", "/", &[]).await.status, 200);
    }
    let denied = send("GET", "/", &[]).await;
    assert_eq!((denied.status.as_u16(), denied.header("ratelimit-limit")), (429, "3"));
    let grpc = send("POST", "/a.B/C", &[("content-type", "application/grpc")]).await;
    assert_eq!((grpc.status.as_u16(), grpc.header("grpc-status")), (200, "8"), "{grpc:?}");
    assert_eq!(asking.service.seen().len(), 3);
}

/// A service that reports the number in the path as tokens.
async fn token_service() -> Upstream {
    let service = Upstream::answering(|seen| {
        let tokens = seen.uri.path().trim_start_matches('/').to_owned();
        Response::builder().header("x-tokens", tokens).body(Full::from("ok").boxed()).unwrap()
    });
    service.await
}

/// Follows upstream's integration test: each response reports its tokens, and once the reports
/// exceed the budget, the next request is denied.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_reports_response_tokens() {
    let rules =
        [("{unit: day, requests_per_unit: 100000}", "{unit: year, requests_per_unit: 100}")];
    let asking = EnvoySetup::start("envoy-tokens.yaml", token_service().await, &rules, &[]).await;
    let send = async |user: &str, tokens: &str| {
        let headers = [("x-user", user)];
        asking.client.send("GET", &format!("/{tokens}"), &headers, "").await.unwrap()
    };
    let reported = async |count| asking.until_asked(count).await;
    // Two calls for each request: a check and a report.
    let first = send("ann", "40").await;
    assert_eq!((first.status.as_u16(), first.header("ratelimit-remaining")), (200, "100"));
    reported(2).await;
    let second = send("ann", "70").await;
    assert_eq!((second.status.as_u16(), second.header("ratelimit-remaining")), (200, "60"));
    reported(4).await;
    let denied = send("ann", "1").await;
    assert_eq!((denied.status.as_u16(), denied.header("ratelimit-limit")), (429, "100"));
    assert_eq!(denied.header("retry-after"), denied.header("ratelimit-reset"));
    assert_eq!(send("bob", "1").await.status, 200);
    assert_eq!(asking.service.seen().len(), 3);
}

/// Each request is charged for 10 tokens, and the tokens in the response are refunded.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_refunds_negative_hits() {
    let rules = [
        (
            "{unit: day, requests_per_unit: 100000}",
            "{unit: year, requests_per_unit: 20, algorithm: token_bucket}\n    metadata: {plan: free}",
        ),
        ("    config:", "    dynamicMetadata: true\n    config:"),
    ];
    let plan = "response_headers_to_add: [{header: {key: x-plan, value: \
                '%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:plan)%'}}]";
    let changes = [
        ("hits_addend: {number: 0}", "hits_addend: {number: 10}"),
        ("tokens)%\"}", "tokens)%\", is_negative_hits: true}"),
        ("                  virtual_hosts:", &format!("{0:18}{plan}\n{0:18}virtual_hosts:", "")),
    ];
    let service = token_service().await;
    let asking = EnvoySetup::start("envoy-tokens.yaml", service, &rules, &changes).await;
    let send = async |tokens: &str| {
        let headers = [("x-user", "ann")];
        asking.client.send("GET", &format!("/{tokens}"), &headers, "").await.unwrap()
    };
    for (count, tokens, remaining) in [(2, "7", "10"), (4, "0", "7")] {
        let answer = send(tokens).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-plan")), (200, "free"), "{answer:?}");
        assert_eq!(answer.header("ratelimit-remaining"), remaining);
        asking.until_asked(count).await;
    }
    assert_eq!(send("5").await.status, 429);
}
