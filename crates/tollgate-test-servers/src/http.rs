//! An HTTP client for servers under test.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Builder, Client as Hyper};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// A client that reuses its connections. Clones share them.
#[derive(Clone, Debug)]
pub struct Client {
    hyper: Hyper<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

/// A response with its complete body.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Client {
    /// A client for the server at this address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { hyper: builder().build_http(), address }
    }

    /// A client that connects from the address `local`.
    #[must_use]
    pub fn connecting_from(local: IpAddr, address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some(local));
        Self { hyper: builder().build(connector), address }
    }

    /// A client that uses only HTTP/2.
    #[must_use]
    pub fn http2(address: SocketAddr) -> Self {
        Self { hyper: builder().http2_only(true).build_http(), address }
    }

    /// Sends a GET request.
    ///
    /// # Panics
    ///
    /// If there is no response.
    pub async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    /// Sends a GET request with headers.
    ///
    /// # Panics
    ///
    /// If there is no response.
    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send("GET", path, headers, "").await.expect("a response")
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// If there is no complete response.
    ///
    /// # Panics
    ///
    /// If the method, the path or a header is invalid.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, Box<dyn Error>> {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).expect("a valid request");
        let (head, body) = self.hyper.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

fn builder() -> Builder {
    Hyper::builder(TokioExecutor::new())
}

impl Answer {
    /// A header, or an empty string.
    ///
    /// # Panics
    ///
    /// If the header is not ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("an ASCII header"))
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If the body is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// The `code` in a problem response.
    ///
    /// # Panics
    ///
    /// If the response is not a problem with a code.
    #[must_use]
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json");
        self.json()["code"].as_str().expect("a code").to_owned()
    }
}
