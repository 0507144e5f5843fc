//! Real model servers' responses. The gateway charges their usage and forwards every byte, except a
//! usage event that only the gateway requested.

use std::convert::Infallible;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::models::{lines, lines_for, spent};
use crate::support::{Client, Gateway, RawUpstream, Upstream, exchange};

/// A line of the file that `tollgate-llm` tests too.
struct Case(Value);

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let lines = include_str!("../../../tollgate-llm/tests/servers.jsonl").lines();
        lines.map(|line| Self(serde_json::from_str(line).unwrap()))
    }

    /// A member, or an empty string.
    fn text(&self, member: &str) -> &str {
        self.0[member].as_str().unwrap_or_default()
    }

    fn chunks(&self) -> impl Iterator<Item = Bytes> {
        // In compressed responses, each character stands for a byte.
        let is_compressed = self.0.get("encoding").is_some();
        self.0["chunks"].as_array().unwrap().iter().map(move |chunk| {
            let chunk = chunk.as_str().unwrap();
            if is_compressed {
                return chunk.chars().map(|byte| u8::try_from(byte).unwrap()).collect();
            }
            Bytes::copy_from_slice(chunk.as_bytes())
        })
    }

    fn respond(&self) -> Response<BoxBody<Bytes, Infallible>> {
        let status = self.0["status"].as_u64().map_or(200, |status| status.try_into().unwrap());
        let mut response = Response::builder().status(status);
        response = response.header("content-type", self.text("type"));
        if let Some(encoding) = self.0["encoding"].as_str() {
            response = response.header("content-encoding", encoding);
        }
        let chunks: Vec<_> = self.chunks().collect();
        if chunks.is_empty() {
            return response.body(Full::default().boxed()).unwrap();
        }
        let (mut sender, body) = Channel::new(1);
        tokio::spawn(async move {
            for chunk in chunks {
                sender.send(Frame::data(chunk)).await.unwrap();
            }
        });
        response.body(body.boxed()).unwrap()
    }

    /// The bytes that the client receives.
    fn expected(&self) -> Vec<u8> {
        let sent: Vec<u8> = self.chunks().flatten().collect();
        let hidden = self.text("hidden").as_bytes();
        if hidden.is_empty() {
            return sent;
        }
        let start = sent.windows(hidden.len()).position(|it| it == hidden).unwrap();
        [&sent[..start], &sent[start + hidden.len()..]].concat()
    }
}

const MODELS: &str = "models: {other: {input: 1, output: 4, maxOutput: 1000}, \
                      cheap: {input: 0, output: 1, maxOutput: 1000}}";

#[tokio::test(flavor = "multi_thread")]
async fn real_responses_cost_their_usage() {
    let upstream = Upstream::answering(|seen| {
        match Case::all().find(|case| case.text("case") == seen.header("x-case")) {
            Some(case) => case.respond(),
            // A failure is free.
            None => Response::builder().status(418).body(Full::default().boxed()).unwrap(),
        }
    })
    .await;
    let budget = format!("{{monthlyBudget: 50 USD, {MODELS}, path: /*}}");
    let gateway = Gateway::start(&lines(&upstream, &budget));
    let client = Client::new(gateway.address);
    let (mut total, mut wrong) = (0, Vec::new());
    for case in Case::all() {
        let name = case.text("case");
        let headers = [("authorization", "Bearer k-7f3a"), ("x-case", name)];
        let request = case.0["request"].to_string();
        let answer = client.send("POST", case.text("path"), &headers, &request).await;
        let received = answer.map(|it| it.body).unwrap_or_default();
        let now = spent(&client).await;
        let charged = now - std::mem::replace(&mut total, now);
        let (expected, price) = (case.expected(), case.0["charged"].as_u64().unwrap());
        if (charged, &received[..]) != (price, &expected[..]) {
            let [received, expected] = [received.escape_ascii(), expected.escape_ascii()];
            wrong.push(format!(
                "{name}: charged {charged}, not {price}; received {received}, not {expected}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn broken_streams_keep_their_last_bytes() {
    let upstream = RawUpstream::closing(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
         20\r\n: ready\n\ndata: {\"choices\": [{\"de\r\n",
    );
    let budget = format!("{{monthlyBudget: 50 USD, {MODELS}}}");
    let gateway = Gateway::start(&lines_for(&upstream.target(), &budget));
    let body = "{\"stream\": true}";
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer k-7f3a\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(gateway.address, &request);
    assert!(answer.contains(": ready\n\n"), "{answer}");
    // The client receives the incomplete line, and the missing end.
    assert!(answer.ends_with("data: {\"choices\": [{\"de\r\n"), "{answer}");
}
