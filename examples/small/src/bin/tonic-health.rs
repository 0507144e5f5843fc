//! cargo run -p examples --bin tonic-health
//!
//! A gRPC service behind the layer. A denial is a gRPC status, 8 RESOURCE_EXHAUSTED.

use std::error::Error;

use tollgate::key::ClientIp;
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer};
use tonic::transport::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A watch is long-lived, so it costs more than a call.
    let costs = Costs::default().route("/grpc.health.v1.Health/Watch", Cost::new(5));
    let policy = Policy::sliding_window_log("client", Quota::per_minute(10))?;
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .limit(Limit::new(policy, ClientIp::peer()))
        .costs(costs)
        // Denials have a gRPC status. Without this line they have the HTTP status 429.
        .grpc(true)
        .build()?;

    let (_reporter, health) = tonic_health::server::health_reporter();

    println!("Send an empty message, which is five zero bytes (9 requests remain):");
    println!(
        "  printf '\\0\\0\\0\\0\\0' | curl -i --http2-prior-knowledge --data-binary @- -o /dev/null -D - \\"
    );
    println!(
        "    -H 'Content-Type: application/grpc' http://127.0.0.1:3000/grpc.health.v1.Health/Check"
    );
    println!("The eleventh request within a minute gets grpc-status 8.");
    Server::builder().layer(limit).add_service(health).serve("127.0.0.1:3000".parse()?).await?;
    Ok(())
}
