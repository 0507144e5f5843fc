//! The demo: a small service behind a rate limit. It runs alone, or as several replicas behind a
//! load balancer.
//!
//! | file | contents |
//! |---|---|
//! | `args.rs` | flags and environment variables |
//! | `limits.rs` | builds the layer from the flags |
//! | `service.rs` | the service, and the layers around it, outermost last |
//! | `admin.rs` | the admin address for operators |

mod admin;
mod args;
mod limits;
mod service;

use std::error::Error;
use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::serve::ListenerExt;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tollgate::observe::Inspect;
use tollgate::{MemoryStore, RateLimitLayer, RedisStore, StoreExt};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use self::args::{Args, spelled};

/// A one-line error.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs the program: serves until SIGTERM or Ctrl-C.
pub fn run() -> ExitCode {
    let args = Args::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    if args.healthcheck {
        let is_healthy = health(args.listen).unwrap_or(false);
        return if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match log(&args.log_format).and_then(|()| decide_and_serve(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The app for a command line, over memory.
///
/// # Errors
/// A value or a combination of values is invalid.
pub fn app(line: &[&str]) -> Result<Router, Box<dyn Error + Send + Sync>> {
    let args = Args::read(line)?;
    let layer = limits::layer(&args, "demo", MemoryStore::new())?;
    Ok(service::router(HeaderValue::from_static("demo"), layer))
}

/// Adds the flag or its variable to its error.
fn flag<T, E: Display>(flag: &str, result: Result<T, E>) -> Result<T, Failure> {
    result.map_err(|error| format!("{}: {error}", spelled(flag)).into())
}

/// Whether the demo on this machine at this port answers that it is healthy.
fn health(listen: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, listen.port()))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
    let mut status = [0; "HTTP/1.0 200".len()];
    stream.read_exact(&mut status)?;
    Ok(status.ends_with(b" 200"))
}

fn log(format: &str) -> Result<(), Failure> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = filter.parse(&directives).map_err(|error| {
        format!("RUST_LOG '{directives}': {error}; use a level such as info, or tower_http=debug")
    })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if format == "json" {
        lines.json().flatten_event(true).with_span_list(false).init();
    } else {
        lines.with_ansi(io::stderr().is_terminal()).init();
    }
    Ok(())
}

/// Serves behind the limit, with the selected store.
#[tokio::main]
async fn decide_and_serve(args: &Args) -> Result<(), Failure> {
    // Install the recorder first, because metrics recorded before that are lost.
    let metrics = args.admin.map(|_| admin::recorder()).transpose()?;
    if args.store == "memory" {
        return serve(args, MemoryStore::new(), "memory, in this process only", metrics).await;
    }
    let mut redis = flag("--store", RedisStore::builder(&args.store))?;
    if let Some(timeout) = args.store_timeout {
        redis = redis.timeout(timeout);
    }
    let place = format!("{}, shared with other replicas", redis.address());
    let redis = redis.connect()?;
    // A user may send a request as soon as the banner appears, so the banner waits for Redis. If
    // Redis is down, the failure policy decides.
    let _ = tokio::time::timeout(Duration::from_secs(1), redis.connected()).await;
    let served = serve(args, redis.clone().or_local(MemoryStore::new()), &place, metrics).await;
    redis.return_leases().await;
    served
}

async fn serve<St: Inspect>(
    args: &Args,
    store: St,
    place: &str,
    metrics: Option<PrometheusHandle>,
) -> Result<(), Failure> {
    let host = gethostname::gethostname().into_string().ok();
    let host = host.filter(|name| !name.is_empty() && HeaderValue::from_str(name).is_ok());
    let server_id = args.server_id.clone().or(host).unwrap_or_else(|| "demo".to_owned());
    let id = flag("--server-id", HeaderValue::from_str(&server_id))?;
    let layer = limits::layer(args, &server_id, store)?;
    let (listener, address) = listen("--listen", args.listen).await?;
    // A client on this machine cannot use an unspecified address.
    let host =
        if address.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { address.ip() };
    let url = format!("http://{}", SocketAddr::new(host, address.port()));
    let ending = CancellationToken::new();
    let mut admin = None;
    if let Some((address, metrics)) = args.admin.zip(metrics) {
        let router = admin::router(args, &server_id, &layer, metrics, &url, ending.clone())?;
        admin = Some(admin::serve(address, router).await?);
    }
    // Catch signals before the banner, because a user may stop the program as soon as it appears.
    let asked_to_stop = asked_to_stop()?;
    // A single write: a program that has read the first line can then read the rest too. A closed
    // stdout does not stop the service.
    let banner = banner(args, &server_id, address, admin, place, &layer, &url)?;
    let _ = io::stdout().write_all(banner.as_bytes());

    let app = service::router(id, layer).into_make_service_with_connect_info::<SocketAddr>();
    // Responses are small, so Nagle's algorithm would only delay them.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            asked_to_stop.await;
            tracing::info!("stopping: requests in flight are answered first");
            ending.cancel();
        })
        .await?;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(name: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = TcpListener::bind(address).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let bound = bound.map_err(|error| {
        format!("cannot listen on {address}: {error}; choose another with {}", spelled(name))
    })?;
    Ok((bound.1, bound.0))
}

/// The text that is printed at startup: the addresses, the limit and commands to try.
fn banner<St: Inspect>(
    args: &Args,
    server_id: &str,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    place: &str,
    layer: &RateLimitLayer<St>,
    url: &str,
) -> Result<String, Failure> {
    let mut text = format!("Tollgate demo, server {server_id}\n");
    if let Some(admin) = admin {
        writeln!(text, "  admin      http://{admin}")?;
    }
    writeln!(text, "  listening  http://{address}\n  store      {place}")?;
    for limit in layer.limits() {
        writeln!(text, "  policy     {}", limit.policy())?;
    }
    writeln!(text, "  costs      {}; none for /healthz and OPTIONS\n\nTry:", limits::costs(args))?;
    writeln!(text, "  curl -i {url}/items")?;
    let json = "-H 'Content-Type: application/json' -d '{\"name\":\"tea\"}'";
    writeln!(text, "  curl -i {url}/items {json}\n  curl -i -X SEARCH '{url}/items?q=tea'")?;
    Ok(text)
}

/// Completes at Ctrl-C and at SIGTERM, which orchestrators send. Signals are caught from the call
/// on, not from the first poll.
#[cfg(unix)]
fn asked_to_stop() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}

/// Completes at Ctrl-C.
#[cfg(windows)]
fn asked_to_stop() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupted = tokio::signal::windows::ctrl_c()?;
    Ok(async move { drop(interrupted.recv().await) })
}
