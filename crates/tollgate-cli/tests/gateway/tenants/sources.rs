//! Tenants' numbers from a service and from Redis.

use super::*;

/// A service with the tenants' numbers, which stops when it is dropped.
struct Service {
    address: SocketAddr,
    /// The answers by path.
    answers: Arc<Mutex<HashMap<String, (u16, String)>>>,
    /// The heads of the received requests.
    asked: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl Service {
    async fn start(address: Option<SocketAddr>) -> Self {
        let address = address.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (answers, asked) =
            (Arc::<Mutex<HashMap<_, _>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (known, heads) = (Arc::clone(&answers), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let known: Option<(u16, String)> = known.lock().unwrap().get(&path).cloned();
                let (status, body) = known.unwrap_or((404, String::new()));
                heads.lock().unwrap().push(head);
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { address, answers, asked, _task: AbortOnDropHandle::new(task) }
    }

    fn set(&self, path: &str, status: u16, body: &str) {
        self.answers.lock().unwrap().insert(path.to_owned(), (status, body.to_owned()));
    }
}

/// Returns the limit in a response, or the status if the request was rejected.
async fn limit(client: &Client, key: &str) -> String {
    let answer = get(client, key, "/").await;
    let limit = answer.header("x-ratelimit-limit");
    if limit.is_empty() { answer.status.as_u16().to_string() } else { limit.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_has_the_numbers() {
    let upstream = Upstream::new().await;
    let service = Service::start(None).await;
    service.set("/limits/acme%2Feu%20%C3%BC?v=1", 200, r#"{"limit": 70, "window": "20days"}"#);
    service.set("/limits/globex?v=1", 200, r#"{"tier": "pro"}"#);
    service.set("/limits/initech?v=1", 200, r#""unlimited""#);
    let more = format!(
        "{CLIENT}tiers: {{pro: {{limit: 50, window: 20days}}}}\n\
         tenants: {{http: {{url: 'http://{}/limits/{{tenant}}?v=1', token: a-token-of-the-test}}}}\n",
        service.address
    );
    let lines = lines(&upstream, &more).replace("tenant: acme", "tenant: acme/eu ü");
    let (_gateway, client) = Gateway::with_client(&lines);
    for (key, expected) in
        [("ann", "70"), ("bob", "50"), ("eve", "200"), ("joe", "5"), ("no key", "5"), ("ann", "70")]
    {
        assert_eq!(limit(&client, key).await, expected, "{key}");
    }
    let asked = service.asked.lock().unwrap();
    // Results are cached, and addresses are not looked up.
    assert_eq!(asked.len(), 4, "{asked:?}");
    let head = asked[0].to_ascii_lowercase();
    assert!(head.contains("authorization: bearer a-token-of-the-test\r\n"), "{head}");
}

/// While the number changes, no more pass in three gateways than under the largest number.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_a_thousand_changes() {
    let (upstream, service, redis) =
        (Upstream::new().await, Service::start(None).await, Redis::start());
    let set = |limit: u32| {
        service.set("/acme", 200, &format!(r#"{{"limit": {limit}, "window": "20days"}}"#));
    };
    set(300);
    let more = format!(
        "strategy: sliding_window_log\n{CLIENT}store: {{redis: {{url: '{}', timeout: 5s}}}}\n\
         tenants: {{http: 'http://{}/{{tenant}}', ttl: 1s}}\n",
        redis.url(),
        service.address
    );
    let gateways = [(); 3].map(|()| Gateway::start(&lines(&upstream, &more)));
    let is_over = Arc::new(AtomicBool::new(false));
    let asking: JoinSet<u32> = (0..400)
        .map(|number| {
            let client = Client::new(gateways[number % 3].address);
            let is_over = Arc::clone(&is_over);
            async move {
                let mut passed = 0;
                while !is_over.load(Ordering::Relaxed) {
                    passed += u32::from(get(&client, "ann", "/").await.status == 200);
                }
                passed
            }
        })
        .collect();
    let mut pace = interval(Duration::from_millis(3));
    for change in 0..1_000 {
        pace.tick().await;
        set(if change % 2 == 0 { 400 } else { 300 });
    }
    set(350);
    for gateway in &gateways {
        let client = Client::new(gateway.address);
        until_async("the last number applies", SOON, async || {
            (limit(&client, "ann").await == "350").then_some(())
        })
        .await;
    }
    is_over.store(true, Ordering::Relaxed);
    let passed: u32 = asking.join_all().await.into_iter().sum();
    assert!((300..=400).contains(&passed), "{passed}");
}

/// While the service is dead, no limit becomes wider, also after a reload.
#[tokio::test(flavor = "multi_thread")]
async fn dead_service_widens_no_limit() {
    let upstream = Upstream::new().await;
    for (on_failure, small, large, unseen) in
        [("lastKnown", "2", "90", "5"), ("default", "2", "5", "5"), ("refuse", "503", "503", "503")]
    {
        let service = Service::start(None).await;
        let address = service.address;
        service.set("/acme", 200, r#"{"limit": 2, "window": "20days"}"#);
        service.set("/globex", 200, r#"{"limit": 90, "window": "20days"}"#);
        let lines = |more: &str| {
            let tenants = format!(
                "tenants: {{http: 'http://{address}/{{tenant}}', ttl: 1s, timeout: 500ms, \
                 onFailure: {on_failure}}}\n"
            );
            lines(&upstream, &format!("{CLIENT}{more}{tenants}"))
        };
        let gateway = Gateway::start(&lines(""));
        let client = Client::new(gateway.address);
        assert_eq!(limit(&client, "ann").await, "2");
        assert_eq!(limit(&client, "bob").await, "90");
        drop(service);
        // The last result expires.
        until_async("the failure applies", SOON * 5, async || {
            let is_told = gateway.log().contains("a quota could not be looked up");
            (limit(&client, "bob").await == large && is_told).then_some(())
        })
        .await;
        assert_eq!(limit(&client, "ann").await, small, "{on_failure}");
        assert_eq!(limit(&client, "eve").await, unseen, "{on_failure}");
        gateway.rewrite(&lines("exempt: [/healthz]\n"));
        gateway.until_config(|config| config["version"] == 2).await;
        assert_eq!(limit(&client, "bob").await, large, "{on_failure}");
        // Invalid numbers are failures, too.
        let service = Service::start(Some(address)).await;
        service.set("/acme", 200, r#"{"limits": 1000, "window": "20days"}"#);
        service.set("/globex", 500, "");
        service.set("/initech", 200, r#"{"limit": 77, "window": "20days"}"#);
        until_async("the service is asked again", SOON * 5, async || {
            (limit(&client, "eve").await == "77").then_some(())
        })
        .await;
        until_async("all are asked again", SOON * 5, async || {
            let (small_now, large_now) = (limit(&client, "ann").await, limit(&client, "bob").await);
            assert_eq!([small_now, large_now], [small, large], "{on_failure}");
            let asked = service.asked.lock().unwrap();
            let has = |path: &str| asked.iter().any(|it| it.contains(path));
            (has("/acme") && has("/globex")).then_some(())
        })
        .await;
        service.set("/acme", 200, r#"{"limit": 66, "window": "20days"}"#);
        until_async("a valid number applies", SOON * 5, async || {
            (limit(&client, "ann").await == "66").then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_has_the_numbers() {
    let upstream = Upstream::new().await;
    let redis = Redis::start();
    let run = |arguments: &[&str]| {
        let done = std::process::Command::new("redis-cli")
            .args(["-u", &redis.url()])
            .args(arguments)
            .output();
        assert!(done.unwrap().status.success());
    };
    let acme = r#"{"limit": 70, "window": "20days"}"#;
    run(&["HSET", "tollgate:tenants", "acme", acme]);
    run(&["SET", "tenant:acme", r#"{"limit": 80, "window": "20days"}"#]);
    run(&["SET", "tenant:globex", "{}"]);
    let lines = |more: &str| lines(&upstream, &format!("{CLIENT}{more}"));
    let store = format!("store: {{redis: {{url: '{}', timeout: 5s}}}}\n", redis.url());
    for (more, expected) in [
        (format!("{store}tenants: {{redis: {{}}, ttl: 1s}}\n"), "70"),
        (
            format!("tenants: {{redis: {{url: '{}', key: 'tenant:{{tenant}}'}}}}\n", redis.url()),
            "80",
        ),
    ] {
        let (gateway, client) = Gateway::with_client(&lines(&more));
        assert_eq!(limit(&client, "ann").await, expected);
        assert_eq!(limit(&client, "bob").await, "5");
        if expected == "70" {
            run(&["HSET", "tollgate:tenants", "acme", r#"{"limit": 1000, "window": "20days"}"#]);
            until_async("the change applies", SOON * 5, async || {
                (limit(&client, "ann").await == "1000").then_some(())
            })
            .await;
        } else {
            gateway.until_logged("the numbers of the tenant `key:");
            gateway.until_logged("…`: `limit` is missing");
            assert!(!gateway.log().contains("globex"), "{}", gateway.log());
        }
    }
}

fn with_service(upstream: &Upstream, service: &Service) -> String {
    let url = format!("http://{}/limits/{{tenant}}", service.address);
    lines(upstream, &format!("{CLIENT}tenants: {{http: '{url}'}}\n"))
}

/// Log lines name no tenant.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_answers_are_logged_masked() {
    let upstream = Upstream::new().await;
    let service = Service::start(None).await;
    service.set("/limits/acme", 200, r#"{"limit": 0, "window": "20days"}"#);
    let (gateway, client) = Gateway::with_client(&with_service(&upstream, &service));
    assert_eq!(limit(&client, "ann").await, "5");
    gateway.until_logged("the numbers of the tenant `key:");
    service.set("/limits/globex", 302, "");
    assert_eq!(limit(&client, "bob").await, "5");
    assert!(!gateway.log().contains("acme") && !gateway.log().contains("globex"));
}

/// Servers resolve `..` in a path, so this tenant's URL would name something else.
#[tokio::test(flavor = "multi_thread")]
async fn dots_are_no_tenant() {
    let upstream = Upstream::new().await;
    let service = Service::start(None).await;
    service.set("/limits/..", 200, r#"{"limit": 70, "window": "20days"}"#);
    let lines = with_service(&upstream, &service).replace("tenant: acme", "tenant: '..'");
    let (_gateway, client) = Gateway::with_client(&lines);
    assert_eq!(limit(&client, "ann").await, "5");
    assert_eq!(*service.asked.lock().unwrap(), [""; 0]);
}
