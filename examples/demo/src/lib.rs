//! The demo: a small service behind a rate limit. It runs alone, or as several replicas behind a
//! load balancer.
//!
//! | file | contents |
//! |---|---|
//! | `admin.rs` | the admin address for operators |
//! | `args/` | flags and environment variables, with one-line errors |
//! | `limits.rs` | builds the layer from the flags |
//! | `app.rs` | the service and the layers around it, outermost last |
//! | `items.rs` | the service itself |
//! | `problem.rs` | error responses |
//! | `banner.rs` | the text that is printed at startup |

mod admin;
pub mod app;
pub mod args;
mod banner;
mod items;
pub mod limits;
mod problem;

use std::io::{self, IsTerminal, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use axum::serve::ListenerExt;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tollgate::observe::Inspect;
use tollgate::{MemoryStore, RateLimitLayer, StoreExt};
use tracing_subscriber::EnvFilter;

use self::args::{Args, LogFormat, Stop, Store};
use self::banner::Banner;

/// Runs the program: serves until SIGTERM or Ctrl-C.
pub fn run() -> ExitCode {
    let args = match Args::from_command_line(std::env::args_os()) {
        Ok(args) => args,
        Err(Stop::Help(text)) => {
            // If stdout is closed, the error cannot be reported either.
            let _ = write!(io::stdout(), "{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Wrong(line)) => return wrong(&line),
    };
    if args.healthcheck {
        return match health(args.listen) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) | Err(_) => ExitCode::FAILURE,
        };
    }
    if let Err(line) = start_logging(args.log_format) {
        return wrong(&line);
    }
    match limited(&args) {
        Ok(code) => code,
        Err(line) => wrong(&line),
    }
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

/// Serves behind the limit, with the selected store.
#[tokio::main]
async fn limited(args: &Args) -> Result<ExitCode, String> {
    // Install the recorder first, because metrics recorded before that are lost.
    let metrics = args.admin.admin.map(|_| admin::count()).transpose()?;
    match &args.store {
        Store::Memory => {
            let layer = limits::layer(args, MemoryStore::new())?;
            Ok(serve(args, layer, metrics).await)
        }
        Store::Redis(redis) => {
            let redis = match args.store_timeout {
                Some(timeout) => (**redis).clone().timeout(timeout),
                None => (**redis).clone(),
            };
            let redis = redis.connect().map_err(|error| error.to_string())?;
            // A user may send a request as soon as the banner appears, so the banner waits for
            // Redis. If Redis is down, the failure policy decides.
            let _ = tokio::time::timeout(FIRST_CONNECTION, redis.connected()).await;
            let code = if limits::falls_back(args) {
                let store = redis.clone().or_local(MemoryStore::new());
                serve(args, limits::layer(args, store)?, metrics).await
            } else {
                serve(args, limits::layer(args, redis.clone())?, metrics).await
            };
            redis.return_leases().await;
            Ok(code)
        }
    }
}

/// Prints a usage error and returns its exit code.
fn wrong(line: &str) -> ExitCode {
    eprintln!("error: {line}");
    ExitCode::from(2)
}

fn start_logging(format: LogFormat) -> Result<(), String> {
    let directives = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        format!(
            "RUST_LOG '{directives}': {error}; use a level such as `info`, or `tower_http=debug`"
        )
    })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}

async fn serve<St: Inspect>(
    args: &Args,
    layer: RateLimitLayer<St>,
    metrics: Option<PrometheusHandle>,
) -> ExitCode {
    let bound = TcpListener::bind(args.listen).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            let listen = args.listen;
            eprintln!("error: cannot listen on {listen}: {error}; choose another with --listen");
            return ExitCode::FAILURE;
        }
    };
    let ending = CancellationToken::new();
    let admin = match operated(args, &layer, metrics, address, ending.clone()).await {
        Ok(admin) => admin,
        Err(line) => {
            eprintln!("error: {line}");
            return ExitCode::FAILURE;
        }
    };
    // Catch signals before the banner, because a user may stop the program as soon as it appears.
    let asked_to_stop = match asked_to_stop() {
        Ok(asked_to_stop) => asked_to_stop,
        Err(error) => {
            eprintln!("error: cannot listen to signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    // A single write: a program that has read the first line can then read the rest too. A closed
    // stdout does not stop the service.
    let banner = Banner::new(args, address, admin, &layer).to_string();
    let _ = io::stdout().write_all(banner.as_bytes());

    let app = app::router(&args.server_id, layer);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    // Responses are small, so Nagle's algorithm would only delay them.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let (stopped, stopping) = oneshot::channel();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        asked_to_stop.await;
        tracing::info!("stopping: requests in flight are answered first");
        ending.cancel();
        let _ = stopped.send(());
    });
    let out_of_patience = async move {
        let _ = stopping.await;
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        // axum's server only returns after a graceful shutdown.
        _ = serving => tracing::info!("stopped"),
        () = out_of_patience => tracing::warn!("stopped with requests in flight"),
    }
    ExitCode::SUCCESS
}

/// Serves the admin address if it is configured.
async fn operated<St: Inspect>(
    args: &Args,
    layer: &RateLimitLayer<St>,
    metrics: Option<PrometheusHandle>,
    public: SocketAddr,
    stopping: CancellationToken,
) -> Result<Option<SocketAddr>, String> {
    let (Some(address), Some(metrics)) = (args.admin.admin, metrics) else { return Ok(None) };
    admin::keep_small(metrics.clone());
    let router = admin::router(&args.server_id, &args.admin, layer, metrics, public, stopping)?;
    admin::serve(address, router).await.map(Some)
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
#[cfg(not(unix))]
fn asked_to_stop() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

/// How long startup waits for Redis.
const FIRST_CONNECTION: Duration = Duration::from_secs(1);

/// How long requests in flight may take after the signal. `docker stop` kills the process after
/// ten seconds.
const PATIENCE: Duration = Duration::from_secs(9);
