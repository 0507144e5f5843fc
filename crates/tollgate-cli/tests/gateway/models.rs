//! Budgets for language models, with a simulated model server.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tollgate_test_servers::Redis;

use crate::support::{Answer, Client, Gateway, Seen, Upstream, until};

/// The key `k-7f3a`, and budgets that no request refills while a test runs.
const KEYS: &str = "\
identity: apiKey
onMissingKey: {deny: 401}
apiKeys:
  scheme: Bearer
  keys: [{sha256: SHA256}]
";

pub(crate) fn lines(upstream: &Upstream, llm: &str) -> String {
    lines_for(&upstream.target(), llm)
}

pub(crate) fn lines_for(target: &str, llm: &str) -> String {
    let digest = "315597da2c02bb7bd5f2425e61c98e827e57194381f820ff22306a2828fb8a76";
    format!("{target}{}llm: {llm}\n", KEYS.replace("SHA256", digest))
}

/// A dollar per million input tokens, four per million output tokens.
const MODELS: &str = "models: {other: {input: 1, output: 4, maxOutput: 100}}";

fn budget(more: &str) -> String {
    format!("{{monthlyBudget: 50 USD, {MODELS}{more}}}")
}

/// Sends a request of 10 estimated input tokens.
async fn ask(client: &Client, path: &str, members: Value) -> Answer {
    let mut body = json!({"model": "m", "prompt": "What is six times seven, eh"});
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    send(client, path, &body.to_string()).await
}

async fn send(client: &Client, path: &str, body: &str) -> Answer {
    client.send("POST", path, &[("authorization", "Bearer k-7f3a")], body).await.unwrap()
}

const CHAT: &str = "/v1/chat/completions";

/// The millionths that all requests have cost.
pub(crate) async fn spent(client: &Client) -> u64 {
    // This request fails and is refunded before its headers are written.
    let answer = ask(client, CHAT, json!({"max_tokens": 0, "model": "free"})).await;
    let left: u64 = answer.header("x-ratelimit-remaining-budget").parse().unwrap();
    50_000_000 - left
}

type Answering = Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>;

fn respond(status: u16, content_type: &str, body: String) -> Answering {
    let response = Response::builder().status(status).header("content-type", content_type);
    response.body(Full::from(body).boxed()).unwrap()
}

fn chunk(text: &str) -> String {
    let chunk = json!({"choices": [{"delta": {"content": text}}], "usage": null});
    format!("data: {chunk}\n\n")
}

/// Like OpenAI's server: a stream of four chunks, with 13 input and 5 output tokens.
fn model(seen: &Seen) -> Answering {
    let request: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    let usage = json!({"prompt_tokens": 13, "completion_tokens": 5});
    match (request["model"].as_str(), request["stream"].as_bool()) {
        (Some("broken"), _) => respond(500, "application/json", "{}".to_owned()),
        (Some("free"), _) => respond(418, "application/json", "{}".to_owned()),
        (_, Some(true)) => {
            let mut stream: String = ["The", " answer", " is", " 42."].map(chunk).concat();
            if request["stream_options"]["include_usage"] == true {
                stream.push_str(&format!("data: {}\n\n", json!({"choices": [], "usage": usage})));
            }
            respond(200, "text/event-stream", stream + "data: [DONE]\n\n")
        }
        _ if seen.uri.path().ends_with("/messages") => {
            let usage = json!({"input_tokens": 13, "output_tokens": 5});
            let body = json!({"type": "message", "content": [], "usage": usage});
            respond(200, "application/json", body.to_string())
        }
        _ => {
            let body = json!({"choices": [{"message": {"content": "42"}}], "usage": usage});
            respond(200, "application/json", body.to_string())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_settle_the_budget() {
    let upstream = Upstream::answering(model).await;
    let gateway = Gateway::start(&lines(&upstream, &budget("")));
    let client = Client::new(gateway.address);
    let mut total = 0;
    for (path, members, cost) in [
        (CHAT, json!({"max_tokens": 50}), 13 + 4 * 5),
        (CHAT, json!({"max_tokens": 50, "stream": true}), 13 + 4 * 5),
        ("/v1/chat/completions/", json!({}), 13 + 4 * 5),
        ("/v1/messages", json!({"max_tokens": 50}), 13 + 4 * 5),
        // Errors are free.
        (CHAT, json!({"max_tokens": 50, "model": "broken"}), 0),
        // The client does not avoid the usage.
        (CHAT, json!({"stream": true, "stream_options": {}}), 13 + 4 * 5),
        (CHAT, json!({"stream": true, "stream_options": {"include_usage": false}}), 13 + 4 * 5),
        ("/other", json!({}), 0),
    ] {
        let answer = ask(&client, path, members.clone()).await;
        assert_eq!(answer.status.is_success(), members["model"] != "broken", "{answer:?}");
        total += cost;
        assert_eq!(spent(&client).await, total, "{path} {members}");
    }
    let last = upstream.last();
    assert_eq!(last.header("accept-encoding"), "identity");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_are_estimated_by_size() {
    let upstream = Upstream::answering(model).await;
    let gateway = Gateway::start(&lines(&upstream, &budget(", maxReadMegabytes: 1")));
    let client = Client::new(gateway.address);
    let prompt = "x".repeat(3 << 20);
    let body = json!({"model": "broken?", "prompt": prompt}).to_string();
    let answer = send(&client, CHAT, &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(upstream.last().body.len(), body.len());
    // 300 tokens for 1000 bytes were reserved.
    let reserved = (body.len() as u64 * 3).div_ceil(10) + 4 * 100;
    assert_eq!(answer.header("x-ratelimit-remaining-budget"), (50_000_000 - reserved).to_string());
    assert_eq!(spent(&client).await, 13 + 4 * 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn usual_output_is_reserved() {
    let upstream = Upstream::answering(model).await;
    let gateway = Gateway::start(&lines(&upstream, &budget("")));
    let client = Client::new(gateway.address);
    let reserved =
        |answer: &Answer| answer.header("x-ratelimit-remaining-budget").parse::<u64>().unwrap();
    for _ in 0..20 {
        ask(&client, CHAT, json!({})).await;
    }
    let before = 50_000_000 - spent(&client).await;
    // 5 tokens, no longer 100.
    assert_eq!(before - reserved(&ask(&client, CHAT, json!({})).await), 10 + 4 * 5);
    let other = ask(&client, CHAT, json!({"model": "another"})).await;
    assert_eq!(before - 33 - reserved(&other), 10 + 4 * 100);
}

/// Sends the sender of each response's body to the test.
async fn slow_model() -> (Upstream, mpsc::UnboundedReceiver<Sender<Bytes, Infallible>>) {
    let (streams, started) = mpsc::unbounded_channel();
    let upstream = Upstream::answering(move |seen| {
        if seen.body.windows(6).any(|it| it == b"\"free\"") {
            return model(seen);
        }
        let (sender, body) = Channel::new(4);
        let _ = streams.send(sender);
        let response = Response::builder().header("content-type", "text/event-stream");
        response.body(body.boxed()).unwrap()
    });
    (upstream.await, started)
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_pays_for_the_text() {
    let (upstream, mut started) = slow_model().await;
    let gateway = Gateway::start(&lines(&upstream, &budget("")));
    let client = Client::new(gateway.address);
    let body =
        json!({"model": "m", "prompt": "What is six times seven, eh", "stream": true}).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer k-7f3a\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    // One byte per packet.
    stream.set_nodelay(true).unwrap();
    for byte in body.as_bytes() {
        stream.write_all(&[*byte]).await.unwrap();
    }
    let mut model = started.recv().await.unwrap();
    model.send(Frame::data(Bytes::from(chunk(&"x".repeat(1000))))).await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"\n\n\r\n") {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0);
    }
    // With a reset, the gateway does not wait for a client that has only finished sending.
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    // 300 tokens of text.
    let expected = 10 + 4 * 300;
    until("the text is charged", async || spent(&client).await == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_failure_is_not_a_free_model() {
    let upstream = Upstream::answering(model).await;
    let redis = Redis::start();
    let store = format!("store: {{redis: {{url: '{}', timeout: 300ms}}}}\n", redis.url());
    let lines = lines(&upstream, &budget(", onStoreError: closed")) + &store;
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.address);
    assert_eq!(ask(&client, CHAT, json!({})).await.status, 200);
    redis.kill();
    let answer = ask(&client, CHAT, json!({})).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["type"], "server_error");
    assert_eq!(upstream.seen().len(), 1);
}
