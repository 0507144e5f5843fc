//! The replica app: a small service behind one limit, to be run alone or several times
//! behind a balancer.
//!
//! | file | holds |
//! |---|---|
//! | `admin.rs` | what operators see and do |
//! | `args.rs` | flags and variables, and errors of one line |
//! | `limits.rs` | from flags to the layer |
//! | `app.rs` | the service and what stands around it, outermost last |
//! | `items.rs` | the service itself |
//! | `problem.rs` | what a request gets that the service cannot answer |
//! | `banner.rs` | what is printed at the start |

mod admin;
pub mod app;
pub mod args;
mod banner;
mod items;
pub mod limits;
mod problem;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
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

/// The whole program: serves until SIGTERM or Ctrl-C.
pub fn run() -> ExitCode {
    let args = match Args::from_command_line(std::env::args_os()) {
        Ok(args) => args,
        Err(Stop::Help(text)) => {
            // If stdout is closed, there is no place to report that.
            let _ = write!(io::stdout(), "{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Wrong(line)) => return wrong(&line),
    };
    if let Err(line) = start_logging(args.log_format) {
        return wrong(&line);
    }
    match limited(&args) {
        Ok(code) => code,
        Err(line) => wrong(&line),
    }
}

/// Serves behind the limit over the store that was asked for.
#[tokio::main]
async fn limited(args: &Args) -> Result<ExitCode, String> {
    // Before anything is there to be counted, as what was counted before is not seen.
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
            // A user who reads the banner may send a request at once, so the banner waits for Redis.
            // Without Redis the failure policy decides, as it does later.
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

/// The exit code for what is wrong with the call.
fn wrong(line: &str) -> ExitCode {
    eprintln!("error: {line}");
    ExitCode::from(2)
}

fn start_logging(format: LogFormat) -> Result<(), String> {
    let directives = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        format!("RUST_LOG '{directives}': {error}; use a level as `info`, or `tower_http=debug`")
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
    // Before the banner is printed, because a user may stop the program as soon as it appears.
    let asked_to_stop = match asked_to_stop() {
        Ok(asked_to_stop) => asked_to_stop,
        Err(error) => {
            eprintln!("error: cannot listen to signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    // In one write, so that a program that reads one line can read the others, too. A closed stdout
    // does not stop the service.
    let banner = Banner::new(args, address, admin, &layer).to_string();
    let _ = io::stdout().write_all(banner.as_bytes());

    let app = app::router(&args.server_id, layer);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    // Answers are small: to collect them into larger packets would only delay them.
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
        // axum's server ends in no other way than by being stopped.
        _ = serving => tracing::info!("stopped"),
        () = out_of_patience => tracing::warn!("stopped with requests in flight"),
    }
    ExitCode::SUCCESS
}

/// Serves the admin address, if one is asked for.
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

/// Completes at Ctrl-C and at SIGTERM, which is how orchestrators say it. Signals are
/// caught from the call on, not from the first poll.
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

/// How long the start waits for Redis.
const FIRST_CONNECTION: Duration = Duration::from_secs(1);

/// How long requests in flight may take after the signal: less than the ten seconds after
/// which `docker stop` kills.
const PATIENCE: Duration = Duration::from_secs(9);
