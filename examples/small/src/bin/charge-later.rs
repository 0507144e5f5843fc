//! cargo run -p examples --bin charge-later
//!
//! A model with a quota of 1000 tokens per minute for each client. Each request first reserves 300
//! tokens, and is charged its actual cost when the streamed response has finished.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::key::ClientIp;
use tollgate::layer::Reservation;
use tollgate::limit::Reserve;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

/// Streams one word at a time. A client that disconnects pays for the words that were sent.
async fn chat(reservation: Reservation) -> Body {
    let (words, answer) = mpsc::channel(1);
    tokio::spawn(async move {
        for word in ["The ", "answer ", "is ", "42.", "\n"] {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if words.send(Ok::<_, Infallible>(Frame::data(Bytes::from(word)))).await.is_err() {
                break;
            }
        }
    });
    let body = StreamBody::new(ReceiverStream::new(answer));
    // In this model, each word costs ten tokens.
    Body::new(reservation.tally().body(body, |_| 10))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tokens = Policy::token_bucket("tokens", Quota::per_minute(1_000))?;
    let tokens = Limit::new(tokens, ClientIp::peer()).cost(300).reserve(Reserve::by_handler());
    let limit = RateLimitLayer::builder(MemoryStore::new()).limit(tokens).build()?;

    let app = Router::new().route("/", get(chat)).layer(limit);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Each answer takes 300 tokens and gives 250 back when it has ended:");
    println!("  curl -i http://127.0.0.1:3000/");
    println!("Of four at once the last is refused, as the others may take all there is:");
    println!("  for i in {{1..4}}; do curl -s http://127.0.0.1:3000/ & done; wait");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
