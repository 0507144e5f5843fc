//! cargo run -p examples --bin hyper-server
//!
//! Without a framework: the layer around a function, served by hyper.

use std::convert::Infallible;
use std::error::Error;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tollgate::key::ClientIp;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
use tower::ServiceBuilder;

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello\n")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let policy = Policy::token_bucket("client", Quota::per_second(1).burst(5))?;
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .limit(Limit::new(policy, ClientIp::peer()))
        .build()?;

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Try:");
    println!("  curl -i http://127.0.0.1:3000/");
    println!(
        "  for i in {{1..7}}; do curl -so /dev/null -w '%{{http_code}} ' http://127.0.0.1:3000/; done"
    );
    loop {
        let (stream, address) = listener.accept().await?;
        let service = ServiceBuilder::new()
            // hyper does not store the peer address in requests, so add it for the layer.
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(address);
                request
            })
            .layer(limit.clone())
            .service_fn(hello);
        tokio::spawn(async move {
            let service = TowerToHyperService::new(service);
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                eprintln!("{address}: {error}");
            }
        });
    }
}
