//! The complete proxy between duplex streams, under a clock that advances while all tasks wait.

mod chunks;
mod http1;
mod streams;
mod timeouts;
mod upgrades;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderName, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::path::PathRules;
use crate::settings::{
    Address, Balance, Connections, Endpoint, Passive, Protocol, Servers, Timeouts, Upstream,
};
use crate::upstream::connector::Dial;
use crate::{
    Admitted, BodyError, Clients, Common, Connection, Failures, Fault, Forward, HeadLimits,
    Meaning, Patience, Received, RequestBody, Serving, Tunnels, Via, admit, serve,
};

const HEAD: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(75);
const IDLE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(5);
const RESPONSE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Proxy {
    forward: Arc<Forward>,
    serving: Serving<fn() -> bool>,
}

impl Proxy {
    fn to(upstream: Dial) -> Self {
        Self::with(upstream, |_| {})
    }

    fn with(upstream: Dial, change: impl FnOnce(&mut Upstream)) -> Self {
        let authority = "upstream".parse().unwrap();
        let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
        let servers = Servers {
            addresses: vec![Address { endpoint, base_path: String::new() }],
            protocol: Protocol::Http1,
            connections: Connections { timeout: CONNECT, ..Connections::of(KEEP_ALIVE) },
            balance: Balance::RoundRobin,
            passive: Passive::default(),
            active: None,
        };
        let timeouts = Timeouts { response: RESPONSE, body: IDLE, tunnel: IDLE };
        let mut settings = Upstream::to(servers, timeouts);
        change(&mut settings);
        let common = Common {
            proxy_header: HeaderName::from_static("x-balancer-ip"),
            identity: Arc::default(),
            clients: Clients::dialing(upstream),
            idle: IDLE,
            tunnels: Tunnels::default().at_most(8),
            failures: Failures::default(),
            via: Via::new("test").unwrap(),
        };
        let serving: Serving<fn() -> bool> = Serving {
            patience: Patience::new(HEAD, KEEP_ALIVE, IDLE),
            heads: HeadLimits::CLIENT,
            faults: |_| |fault| rendered(fault).map(|code| code.into()),
            draining: Arc::default(),
            is_crowded: || false,
        };
        Self { forward: Arc::new(Forward::new(settings, None, common).unwrap()), serving }
    }

    /// Opens a connection, with HTTP/2 or HTTP/1.
    fn connect(&self) -> DuplexStream {
        let (client, ours) = duplex(1 << 16);
        let connection = Connection::new("192.0.2.1:9".parse().unwrap(), false).unwrap();
        let (proxy, connection) = (self.clone(), Arc::new(connection));
        tokio::spawn(async move {
            let forward = Arc::clone(&proxy.forward);
            let answer = move |request, received| {
                answer(Arc::clone(&forward), Arc::clone(&connection), request, received)
            };
            let _ = serve(ours, false, (), &proxy.serving, answer).await;
        });
        client
    }

    /// Sends bytes, and returns all that the proxy answers until it closes the connection.
    async fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect();
        client.write_all(bytes.as_ref()).await.unwrap();
        rest_of(&mut client).await
    }
}

async fn rest_of(stream: &mut DuplexStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

async fn answer(
    forward: Arc<Forward>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
    received: Option<Received>,
) -> (Response<UnsyncBoxBody<Bytes, BodyError>>, ()) {
    let version = request.version();
    let mut request = request.map(|body| RequestBody::of(version, body));
    let sent = match admit(&mut request, PathRules::default()) {
        Err(fault) => Err(fault),
        Ok(Meaning { host, original, upgrade }) => {
            let (client, own_header) = (None, None);
            let request = request.map(|body| Admitted {
                body,
                received,
                connection,
                client,
                own_header,
                host,
                original,
                upgrade,
            });
            forward.send(request).await
        }
    };
    let response = match sent {
        Ok(response) => response.map(BodyExt::boxed_unsync),
        Err(fault) => rendered(fault)
            .map(|code| Full::from(code).map_err(|never| match never {}).boxed_unsync()),
    };
    (response, ())
}

fn rendered(fault: Fault) -> Response<&'static str> {
    let response = Response::builder().status(fault.status());
    response.body(fault.code()).unwrap()
}

/// An upstream's behaviour after its answer.
#[derive(Clone, Copy)]
enum Then {
    Close,
    Hang,
    /// Waits for this time, and sends more.
    Send(Duration, &'static str),
}

/// The requests that an upstream has read.
type Requests = Arc<Mutex<Vec<String>>>;

/// An upstream that reads requests of HTTP/1, and answers each with the same bytes.
fn upstream(answer: &'static str, then: Then) -> (Dial, Requests) {
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    let dial: Dial = Arc::new(move || {
        let (ours, mut theirs) = duplex(1 << 16);
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Some(request) = read_request(&mut theirs).await {
                let head = answer.find("\r\n\r\n").map_or(0, |end| end + 4);
                let length = if request.starts_with("HEAD ") { head } else { answer.len() };
                seen.lock().push(request);
                if theirs.write_all(&answer.as_bytes()[..length]).await.is_err() {
                    return;
                }
                match then {
                    Then::Close => return,
                    Then::Hang => std::future::pending().await,
                    Then::Send(pause, more) => {
                        tokio::time::sleep(pause).await;
                        let _ = theirs.write_all(more.as_bytes()).await;
                    }
                }
            }
        });
        Box::pin(async { Ok(ours) })
    });
    (dial, requests)
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An upstream that answers every request with 200.
fn ok() -> (Dial, Requests) {
    upstream(OK, Then::Send(Duration::ZERO, ""))
}

/// A complete request, with its original chunks and trailers. `None` if it is incomplete.
async fn read_request(stream: &mut DuplexStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let value = |name| head.lines().find_map(|line| line.strip_prefix(name));
        let is_whole = match value("content-length: ") {
            Some(length) => body.len() >= length.parse().unwrap(),
            None if value("transfer-encoding: ").is_none() => true,
            None => has_last_chunk(body),
        };
        if is_whole {
            return Some(text.into_owned());
        }
    }
}

fn has_last_chunk(mut body: &str) -> bool {
    while let Some((size, rest)) = body.split_once("\r\n") {
        match usize::from_str_radix(size, 16).unwrap() {
            0 => return rest == "\r\n" || rest.ends_with("\r\n\r\n"),
            size => body = rest.get(size + 2..).unwrap_or_default(),
        }
    }
    false
}

/// An HTTP/2 client. The caller sends its requests one after another.
async fn http2(proxy: &Proxy) -> h2::client::SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(proxy.connect()).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Dials an upstream after this time.
fn delayed(dial: Dial, time: Duration) -> Dial {
    Arc::new(move || {
        let dialed = dial();
        Box::pin(async move {
            tokio::time::sleep(time).await;
            dialed.await as io::Result<_>
        })
    })
}
