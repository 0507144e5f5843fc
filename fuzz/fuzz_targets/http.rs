//! Any bytes from a client become unambiguous requests or an error.
//!
//! The first byte selects how ambiguous paths are treated. The rest is what the client sends, in
//! HTTP/1 or, after the preface, in HTTP/2.
#![no_main]

use std::convert::Infallible;
use std::io::Cursor;

use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST};
use http::{Method, Request, Response, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use libfuzzer_sys::fuzz_target;
use tokio::io::{join, sink};
use tokio::runtime::{Builder, Runtime};
use tollgate_proxy::path::{Ambiguous, PathRules, normalise};
use tollgate_proxy::admit;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().build().expect("a runtime starts");
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    let ambiguous = if first % 2 == 0 { Ambiguous::Refuse } else { Ambiguous::Keep };
    let service = service_fn(move |mut request: Request<Incoming>| async move {
        let paths = PathRules { ambiguous, ..PathRules::default() };
        if admit(&mut request, paths).is_ok() {
            check(&request, ambiguous);
        }
        // Read trailers and chunks too. The client may stop anywhere.
        let _ = request.into_body().collect().await;
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let client = TokioIo::new(join(Cursor::new(bytes.to_vec()), sink()));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().header_read_timeout(None);
    // hyper rejects most inputs with a connection error.
    RUNTIME.with(|runtime| drop(runtime.block_on(builder.serve_connection(client, service))));
});

fn check(request: &Request<Incoming>, ambiguous: Ambiguous) {
    let (uri, headers) = (request.uri(), request.headers());
    assert!(uri.authority().is_none() && uri.scheme().is_none());
    if uri.path() == "*" {
        assert_eq!(request.method(), Method::OPTIONS);
    } else {
        assert_eq!(normalise(uri.path(), ambiguous).as_deref(), Ok(uri.path()));
    }
    for method in ["CONNECT", "TRACE"] {
        assert!(!request.method().as_str().eq_ignore_ascii_case(method));
    }
    let hosts = headers.get_all(HOST).iter().count();
    assert!(hosts == 1 || hosts == 0 && request.version() <= Version::HTTP_10);
    assert!(headers.get_all(CONTENT_LENGTH).iter().count() <= 1);
    assert!(headers.get_all(COOKIE).iter().count() <= 1);
    assert!(!headers.contains_key(EXPECT));
}
