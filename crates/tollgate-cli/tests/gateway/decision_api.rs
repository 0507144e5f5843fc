//! Decisions over HTTP with JSON, for programs in any language.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use jsonschema::Validator;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tollgate_test_servers::Redis;

use crate::support::{Answer, Client, Gateway, until};

/// Windows last for days, so the machine's speed does not matter.
const API: &str = "decisionApi:
  listen: 127.0.0.1:0
  policies:
  - {identifier: tenant, limit: 9, window: 240h, strategy: sliding_window_log}
  - {identifier: user, limit: 2, window: 240h, strategy: fixed_window_counter}
";

struct Api {
    gateway: Gateway,
    client: Client,
    description: Value,
}

impl Api {
    async fn start(lines: &str) -> Self {
        let gateway = Gateway::start(lines);
        let client = Client::new(gateway.fronts["decisionApi"]);
        let description = client.get("/v1/openapi.json").await;
        Self { gateway, client, description: description.json() }
    }

    async fn post(&self, path: &str, body: &str) -> Answer {
        self.client.send("POST", path, &[], body).await.unwrap()
    }

    /// Sends a request, and checks both against the description.
    async fn ask(&self, path: &str, body: &Value) -> Value {
        let operation = &self.description["paths"][path]["post"];
        self.check(&operation["requestBody"]["content"]["application/json"]["schema"], body);
        let answer = self.post(path, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        let answer = answer.json();
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        self.check(schema, &answer);
        answer
    }

    fn check(&self, schema: &Value, value: &Value) {
        let mut whole = schema.clone();
        whole["components"] = self.description["components"].clone();
        let validator: Validator = jsonschema::draft202012::new(&whole).unwrap();
        let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{value}: {errors:?}");
    }

    async fn remaining(&self, policy: &str, key: &str) -> u64 {
        let charges = json!([{"policy": policy, "key": key, "cost": 0}]);
        let decided = self.ask("/v1/decide", &json!({"charges": charges, "dry_run": true})).await;
        decided["policies"][0]["remaining"].as_u64().unwrap()
    }
}

fn charges(tenant: u64, user: u64) -> Value {
    json!([
        {"policy": "tenant", "key": "acme", "cost": tenant},
        {"policy": "user", "key": "ann", "cost": user},
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn all_policies_are_charged_or_none() {
    let api = Api::start(API).await;
    let decided = api.ask("/v1/decide", &json!({"charges": charges(3, 2)})).await;
    assert_eq!(decided["allowed"], true);
    assert_eq!(decided["policies"][0]["remaining"], 6);
    let denied = api.ask("/v1/decide", &json!({"charges": charges(1, 1)})).await;
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["policies"][0]["allowed"], true);
    assert_eq!(denied["policies"][1]["allowed"], false);
    assert_eq!(denied["receipts"], json!([]));
    assert!(denied["retry_after"].as_f64().unwrap() > 0.0);
    assert_eq!(api.remaining("tenant", "acme").await, 6);
    let never = api.ask("/v1/decide", &json!({"charges": charges(10, 0)})).await;
    assert_eq!((&never["allowed"], &never["retry_after"]), (&json!(false), &Value::Null));

    let dry = json!({"charges": charges(6, 0), "dry_run": true});
    assert_eq!(api.ask("/v1/decide", &dry).await["allowed"], true);
    assert_eq!(api.remaining("tenant", "acme").await, 6);

    let receipt = &mut decided["receipts"][0].clone();
    // A member that a later version adds.
    receipt["shard"] = json!(7);
    let settled = api.ask("/v1/settle", &json!({"receipt": receipt, "actual": 1})).await;
    assert_eq!(settled, json!({"settlement": "returned", "units": 2}));
    let again = api.ask("/v1/settle", &json!({"receipt": receipt, "actual": 0})).await;
    assert_eq!(again["settlement"], "repeated");
    assert_eq!(api.remaining("tenant", "acme").await, 8);
    let metrics = api.gateway.metrics().await;
    assert!(metrics.contains("policy=\"tenant\""), "{metrics}");
    let status = api.gateway.admin("/status").await;
    assert!(String::from_utf8_lossy(&status.body).contains("\"tenant\""));
}

/// Each row contains a path, a body, the expected status, and a part of the problem's detail.
const BAD: &str = r#"
/v1/decide |  | 400 | EOF
/v1/decide | {} | 400 | missing field `charges`
/v1/decide | {"charges": []} | 400 | at least one charge
/v1/decide | {"charges": [{"policy": "x", "key": "k"}]} | 400 | There are: tenant, user.
/v1/decide | {"charges": [{"policy": "user", "key": "k", "costs": 2}]} | 400 | unknown field `costs`
/v1/decide | {"charges": [{"policy": "user", "key": "k", "cost": -2}]} | 400 | expected u64
/v1/decide | {"charges": [{"policy": "user", "key": "k"}], "wait": 2} | 400 | `decisionApi.wait`
/v1/decide | {"charges": [{"policy": "user", "key": "k"}], "wait": -1} | 400 | a number of seconds
/v1/block | {"key": "k", "seconds": 2} | 400 | `longestBlock: 1h`
/v1/settle | {"actual": 2} | 400 | missing field `receipt`
/v1/other |  | 404 | /v1/decide, /v1/settle, /v1/block
"#;

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_name_the_member_and_the_cure() {
    let api = Api::start(API).await;
    for row in BAD.trim().lines() {
        let [path, body, status, said] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let answer = api.post(path, body).await;
        let problem = answer.json();
        api.check(&json!({"$ref": "#/components/schemas/Problem"}), &problem);
        assert_eq!(answer.status.as_str(), status, "{row}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(said), "{row}: {problem}");
    }
    let long = format!("{{\"charges\": \"{}\"}}", "x".repeat(70_000));
    assert_eq!(api.post("/v1/decide", &long).await.status, 400);
    let wrong = api.client.get("/v1/decide").await;
    assert_eq!((wrong.status.as_u16(), &wrong.headers["allow"]), (405, &"POST".parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_required() {
    let api = Api::start(&format!("{API}  token: 0123456789abcdef\n")).await;
    let answer = api.post("/v1/decide", "{}").await;
    assert_eq!(answer.status, 401);
    assert!(String::from_utf8_lossy(&answer.body).contains("Authorization: Bearer"));
}

/// A gateway that has been killed leaves its socket's file.
#[tokio::test(flavor = "multi_thread")]
async fn programs_on_the_same_machine_use_a_socket() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("decide.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let lines = API.replace("listen: 127.0.0.1:0", &format!("socket: {}", path.display()));
    let mut gateway = Gateway::start(&lines);
    assert!(!gateway.fronts.contains_key("decisionApi"), "{:?}", gateway.fronts);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let body = json!({"charges": charges(3, 1)}).to_string();
    let length = body.len();
    let head = "POST /v1/decide HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\n";
    let request = format!("{head}content-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains(r#""allowed":true"#), "{answer}");
    // The gateway would wait for the end of a connection that is half open.
    drop(stream);
    gateway.rewrite(&lines.replace("decide.sock", "other.sock"));
    let waits = |config: &Value| config["waitsForRestart"] == json!(["decisionApi.socket"]);
    gateway.until_config(waits).await;
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(!path.exists(), "the gateway removes its socket");
}

/// A reload changes the numbers of a program's policies: units in use still count, receipts from
/// before it are settled, and a request that waits is decided.
#[tokio::test(flavor = "multi_thread")]
async fn reload_keeps_units_receipts_and_waits() {
    let file = |limit: u64| {
        format!(
            "decisionApi:\n  listen: 127.0.0.1:0\n  wait: 60s\n  policies:\n  - {{identifier: \
             tenant, limit: {limit}, window: 240h, strategy: sliding_window_log}}\n  - {{identifier: \
             job, limit: 1, window: 2s, strategy: token_bucket}}\n"
        )
    };
    let api = Api::start(&file(9)).await;
    let ask = |policy: &str, cost: u64| json!({"charges": [{"policy": policy, "key": "acme", "cost": cost}], "wait": 30});
    let decided = api.ask("/v1/decide", &ask("tenant", 7)).await;
    assert_eq!(api.ask("/v1/decide", &ask("job", 1)).await["allowed"], true);
    let waiting = ask("job", 1).to_string();
    let mut waiting = Box::pin(api.post("/v1/decide", &waiting));
    assert!(timeout(Duration::from_millis(100), &mut waiting).await.is_err());
    api.gateway.rewrite(&file(10));
    api.gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(api.remaining("tenant", "acme").await, 3);
    let settle = json!({"receipt": decided["receipts"][0], "actual": 1});
    assert_eq!(api.ask("/v1/settle", &settle).await["units"], 6);
    assert_eq!(api.ask("/v1/decide", &ask("tenant", 8)).await["allowed"], true);
    assert_eq!(api.ask("/v1/decide", &ask("tenant", 2)).await["allowed"], false);
    assert_eq!(waiting.await.json()["allowed"], true);
}

/// While Redis is silent, each gateway decides with its share.
#[tokio::test(flavor = "multi_thread")]
async fn outage_is_decided_locally() {
    let redis = Redis::start();
    let store = format!("store: {{redis: {{url: \"{}\", timeout: 200ms}}}}\n", redis.url());
    let file = format!("{API}{store}onStoreError: local\n");
    let (one, two) = (Api::start(&file).await, Api::start(&file).await);
    for api in [&one, &two] {
        assert_eq!(
            api.ask("/v1/decide", &json!({"charges": charges(1, 1)})).await["allowed"],
            true
        );
    }
    for api in [&one, &two] {
        let knows_both = async || {
            let metrics = api.gateway.metrics().await;
            metrics
                .lines()
                .any(|it| it.starts_with("tollgate_redis_replicas") && it.ends_with(" 2"))
        };
        until("both know each other", knows_both).await;
    }
    redis.stop();
    let mut allowed = 0;
    for n in 0..12 {
        let ask = json!({"charges": [{"policy": "tenant", "key": "other"}]});
        let decided = [&one, &two][n % 2].ask("/v1/decide", &ask).await;
        if decided["allowed"] == true {
            allowed += 1;
            assert_eq!(decided["receipts"][0]["local"], true, "{decided}");
        }
    }
    // Four of nine units each.
    assert_eq!(allowed, 8);
    redis.cont();
}

/// Requests wait in order, and a program that leaves gives its charge back.
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_their_turn() {
    for waits in ["wait", "queue"] {
        let file = format!(
            "decisionApi:\n  listen: 127.0.0.1:0\n  {waits}: 60s\n  policies:\n  \
             - {{identifier: job, limit: 1, window: 1s, strategy: token_bucket}}\n"
        );
        let api = Api::start(&file).await;
        let ask = json!({"charges": [{"policy": "job", "key": "a"}], "wait": 60});
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(api.ask("/v1/decide", &ask).await["allowed"], true, "{waits}");
        }
        assert!(start.elapsed() >= Duration::from_millis(1_900), "{waits}: {:?}", start.elapsed());
        let body = ask.to_string();
        let leaving = api.post("/v1/decide", &body);
        assert!(timeout(Duration::from_millis(100), leaving).await.is_err());
        until("the bucket is full", async || api.remaining("job", "a").await == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_key_is_denied_by_all_gateways() {
    let redis = Redis::start();
    let file = format!("{API}  longestBlock: 1h\nstore: {{redis: {{url: \"{}\"}}}}\n", redis.url());
    let (one, two) = (Api::start(&file).await, Api::start(&file).await);
    let blocked = one.ask("/v1/block", &json!({"key": "acme", "seconds": 600})).await;
    assert!(blocked["seconds"].as_f64().unwrap() > 590.0, "{blocked}");
    let denied = two.ask("/v1/decide", &json!({"charges": charges(1, 1)})).await;
    assert_eq!(denied["allowed"], false);
    assert!(denied["retry_after"].as_f64().unwrap() > 500.0, "{denied}");
}

/// The programs in docs/how-to/other-languages.md, with its file.
#[tokio::test(flavor = "multi_thread")]
async fn documented_programs_run() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/other-languages.md");
    let page = fs::read_to_string(page).unwrap();
    let block = |head: &str| {
        let (_, rest) = page.split_once(&format!("{head}\n")).unwrap();
        rest.split_once("\n```").unwrap().0.to_owned()
    };
    let folder = TempDir::new().unwrap();
    let file = block("```yaml file=limits.yaml").replace("127.0.0.1:8084", "127.0.0.1:0");
    let file = file.replace("rateLimiter:\n", "rateLimiter:\n  admin: 127.0.0.1:0\n");
    fs::write(folder.path().join("limits.yaml"), file).unwrap();
    let gateway = Gateway::start_with(folder, "limits.yaml");
    let address = gateway.fronts["decisionApi"].to_string();
    let programs = TempDir::new().unwrap();
    for (head, program, flag, said) in [
        ("```sh test=curl", "sh", "-c", "\"allowed\":true"),
        ("```python test=python3", "python3", "-c", "'returned', 'units': 2"),
        ("```js test=node", "node", "-e", "go"),
        ("```go test=go", "go", "run", "allowed: true"),
    ] {
        let mut text = block(head).replace("127.0.0.1:8084", &address);
        if program == "go" {
            // It has no option for a program's text.
            let path = programs.path().join("main.go");
            fs::write(&path, text).unwrap();
            text = path.display().to_string();
        }
        let output = Command::new(program).args([flag, &text]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains(said), "{program}: {output:?}");
    }
}
