//! Stands in for the model's server: it streams a word every 100 ms, then the usage.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use axum::{Router, routing::post};
use bytes::Bytes;
use http::{StatusCode, Uri};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};

type Answer = Sse<Box<dyn Stream<Item = Result<Event, Infallible>> + Send + Unpin>>;

async fn answer(request: Bytes) -> Result<Answer, StatusCode> {
    let request: Value = serde_json::from_slice(&request).map_err(|_| StatusCode::BAD_REQUEST)?;
    if request["model"] == "broken" {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    let words = ["The", " answer", " is", " 42."];
    let words = words.map(|word| json!({"choices": [{"delta": {"content": word}}], "usage": null}));
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 5}});
    let has_usage = request["stream_options"]["include_usage"] == true;
    let chunks = words.into_iter().chain(has_usage.then_some(usage));
    let events = tokio_stream::iter(chunks).then(|chunk| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(Event::default().data(chunk.to_string()))
    });
    Ok(Sse::new(Box::new(Box::pin(events))))
}

/// Starts the server and returns its address.
pub(crate) async fn start() -> io::Result<Uri> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/chat/completions", listener.local_addr()?);
    let app = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(axum::serve(listener, app).into_future());
    url.parse().map_err(io::Error::other)
}
