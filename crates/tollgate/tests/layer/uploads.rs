//! The cure in `docs/how-to/uploads.md`: clients that send everything before they read receive the
//! response to a denied upload.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use http_body_util::BodyExt;
use tollgate::{RateLimitLayer, Store};

/// The request body, while the limiter decides.
#[derive(Clone)]
struct Upload(Arc<Mutex<Option<Body>>>);

/// Outside of the limiter: if the body remains, the limiter denied the request. Reads the body in the
/// background, because many clients read a response only after they have sent everything.
async fn read_denied(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let upload = Upload(Arc::new(Mutex::new(Some(body))));
    parts.extensions.insert(upload.clone());
    let response = next.run(Request::from_parts(parts, Body::empty())).await;
    let rest = upload.0.lock().unwrap().take();
    if let Some(mut body) = rest {
        tokio::spawn(tokio::time::timeout(Duration::from_secs(30), async move {
            while let Some(Ok(_)) = body.frame().await {}
        }));
    }
    response
}

/// Inside of the limiter.
async fn restore_allowed(mut request: Request, next: Next) -> Response {
    let upload: Option<Upload> = request.extensions_mut().remove();
    if let Some(body) = upload.and_then(|upload| upload.0.lock().unwrap().take()) {
        *request.body_mut() = body;
    }
    next.run(request).await
}

/// Layers that are added later are outside.
fn limited<St: Store>(uploads: Router, limit: RateLimitLayer<St>) -> Router {
    uploads.layer(from_fn(restore_allowed)).layer(limit).layer(from_fn(read_denied))
}

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use tokio::net::TcpListener;
use tollgate::Limit;

use crate::support::*;

/// The same text, so that the documented code is tested.
#[test]
fn documented_code_is_this_code() {
    let document = include_str!("../../../../docs/how-to/uploads.md");
    let (_, section) = document.split_once("## Denied uploads").unwrap();
    let code = section.split("```").nth(1).unwrap().strip_prefix("rust\n").unwrap();
    assert!(include_str!("uploads.rs").contains(code));
}

/// Sends an upload like simple blocking clients do, and returns the response.
fn upload(server: SocketAddr, bytes: usize) -> io::Result<String> {
    let mut socket = TcpStream::connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let head = "POST /uploads HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    write!(socket, "{head}Content-Length: {bytes}\r\n\r\n")?;
    socket.write_all(&vec![b'x'; bytes])?;
    let mut response = String::new();
    socket.read_to_string(&mut response)?;
    Ok(response)
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_upload_receives_its_response() {
    const BYTES: usize = 30 << 20;
    let limit = layer(&memory().1, [Limit::global(log("uploads", 1))]);
    let uploads = Router::new()
        .route("/uploads", post(|body: Bytes| async move { body.len().to_string() }))
        .layer(DefaultBodyLimit::disable());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, limited(uploads, limit)).await });
    let answers =
        tokio::task::spawn_blocking(move || [BYTES; 3].map(|bytes| upload(server, bytes)));
    let [first, second, third] = answers.await.unwrap().map(Result::unwrap);
    assert!(first.starts_with("HTTP/1.1 200") && first.ends_with(&BYTES.to_string()), "{first}");
    for denied in [second, third] {
        assert!(denied.starts_with("HTTP/1.1 429"), "{denied}");
        assert!(denied.contains("quota-exceeded"), "{denied}");
    }
}
