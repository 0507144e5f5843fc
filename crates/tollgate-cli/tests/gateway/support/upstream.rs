//! An upstream that records its requests.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::until;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Seen {
    /// A header, or an empty string.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// An upstream that speaks HTTP/1 and HTTP/2.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

/// An upstream response.
pub(crate) type Reply = Response<BoxBody<Bytes, Infallible>>;

impl Upstream {
    /// Answers `ok`.
    pub(crate) async fn new() -> Self {
        Self::listening(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap())
    }

    /// Like [`new`](Self::new), but uses an existing listener.
    pub(crate) fn listening(listener: TcpListener) -> Self {
        Self::serving(listener, |_| std::future::ready(Response::new(Full::from("ok").boxed())))
    }

    /// Waits until this number of requests has arrived.
    pub(crate) async fn until_seen(&self, requests: usize) {
        until("the upstream receives the requests", async || self.seen().len() >= requests).await;
    }

    /// Reads each request completely and responds with the result of `answer`.
    pub(crate) async fn answering(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::answering_later(move |seen| std::future::ready(answer(seen))).await
    }

    /// Like [`answering`](Self::answering), but with asynchronous responses.
    pub(crate) async fn answering_later<F>(
        answer: impl Fn(&Seen) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self::serving(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(), answer)
    }

    /// Answers `ok`. A request to a path with this prefix first waits for a permit, until the
    /// semaphore is closed.
    pub(crate) async fn gated(prefix: &'static str) -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let wait = Arc::clone(&gate);
        let upstream = Self::answering_later(move |seen| {
            let wait = seen.uri.path().starts_with(prefix).then(|| Arc::clone(&wait));
            async move {
                if let Some(wait) = wait {
                    wait.acquire().await.into_iter().for_each(|permit| permit.forget());
                }
                Response::new(Full::from("ok").boxed())
            }
        });
        (upstream.await, gate)
    }

    fn serving<F>(
        listener: TcpListener,
        answer: impl Fn(&Seen) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (answer, log, counter) =
            (Arc::new(answer), Arc::clone(&seen), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                    async move {
                        let seen = read(request).await?;
                        log.lock().unwrap().push(seen.clone());
                        Ok::<_, hyper::Error>(answer(&seen).await)
                    }
                });
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    // The gateway may disconnect at any time.
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, seen, connections }
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The last request.
    pub(crate) fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    /// How many connections have been accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The configuration line that selects this upstream.
    pub(crate) fn target(&self) -> String {
        format!("target: http://{}\n", self.address)
    }

    /// The configuration for this target, with more lines.
    pub(crate) fn with(&self, lines: &str) -> String {
        self.target() + lines
    }
}

async fn read(request: Request<Incoming>) -> Result<Seen, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?;
    Ok(Seen {
        method: head.method,
        uri: head.uri,
        version: head.version,
        headers: head.headers,
        trailers: body.trailers().cloned(),
        body: body.to_bytes(),
    })
}
