//! `tollgate serve`: listeners, reload, the admin address and the way out.
//!
//! | file | holds |
//! |---|---|
//! | `app.rs` | what serves requests, made of one version of the configuration |
//! | `build.rs` | routes, and a limiter for each kind of request |
//! | `identity.rs` | whose quota a request uses |
//! | `gateway.rs` | what is running, and how the last reload went |
//! | `source.rs`, `reload.rs` | where the configuration comes from, and when it is read again |
//! | `listener.rs`, `connection.rs` | connections, from the first byte to the last |
//! | `activity.rs` | what a connection is doing |
//! | `store.rs` | Redis, and what stands in for it while it is away |
//! | `tls.rs` | certificates |
//! | `admin.rs` | where operators look |
//! | `observed.rs` | what they see besides the configuration |
//! | `signals.rs` | what the system tells the program |

mod activity;
mod admin;
mod app;
mod build;
mod connection;
pub mod explain;
mod gateway;
mod identity;
mod listener;
mod observed;
mod reload;
mod signals;
mod source;
mod store;
mod tls;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tollgate::status::Inspect;
use tollgate::{MemoryStore, Observer};

use self::app::Lasting;
use self::gateway::Gateway;
use self::reload::Reload;
use self::signals::{Signal, Signals};
pub use self::source::{Load, Loaded, Source};
use crate::plan::{Plan, StorePlan};
use crate::proxy::Tunnels;

/// Serves until SIGTERM or Ctrl-C.
///
/// It ends with 0 when all requests were answered, with 1 when something stood in the way:
/// a port that is taken, say; a configuration that is wrong is 2.
pub fn run(source: Source) -> ExitCode {
    let loaded = match (source.load)() {
        Ok(loaded) => loaded,
        Err(error) => return failed(&error, 2),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start threads: {error}"), 1),
    };
    // Before there is a store, as what was counted before is not seen.
    let metrics = match observed::count() {
        Ok(metrics) => metrics,
        Err(error) => return failed(&error, 1),
    };
    let served = match &loaded.plan.store {
        StorePlan::Memory { max_keys, max_bytes } => {
            let store = MemoryStore::builder().max_keys(*max_keys).max_bytes(*max_bytes).build();
            runtime.block_on(serve(source, loaded, store, metrics))
        }
        StorePlan::Redis(redis) => {
            let redis = redis.clone();
            runtime.block_on(async { serve(source, loaded, store::shared(&redis)?, metrics).await })
        }
    };
    // Nothing that is left has anything to say.
    runtime.shutdown_timeout(Duration::ZERO);
    served.unwrap_or_else(|error| failed(&error, 1))
}

fn failed(error: &str, code: u8) -> ExitCode {
    // What names its own place is told as it is.
    eprintln!("error: {}", error.strip_prefix("error: ").unwrap_or(error));
    ExitCode::from(code)
}

async fn serve<St: Inspect>(
    source: Source,
    loaded: Loaded,
    store: St,
    metrics: PrometheusHandle,
) -> Result<ExitCode, String> {
    let settings = observed::settings()?;
    let lasting = Lasting {
        store,
        tunnels: Tunnels::default(),
        name: name().into(),
        observer: Observer::new(),
    };
    let tunnels = lasting.tunnels.clone();
    let gateway = Gateway::new(loaded, lasting).map_err(|error| error.to_string())?;
    let gateway = Arc::new(gateway);
    let bound = Bound::bind(&gateway.app().plan).await?;
    // Before anybody is told that the program runs: who reads that may signal at once.
    let mut signals = Signals::catch().map_err(|error| format!("signals: {error}"))?;
    let (reload, ask) = Reload::new(Arc::clone(&gateway), source);
    tokio::spawn(reload.run());
    bound.announce();

    tokio::spawn(observed::keep_small(metrics.clone()));
    let router = observed::router(settings, &gateway, metrics)?;
    tokio::spawn(admin::serve(Arc::clone(&gateway), router, bound.admin));
    let (connections, listeners) = (TaskTracker::new(), TaskTracker::new());
    for (address, listener) in bound.public {
        let Some(door) = gateway.app().doors.get(&address).cloned() else { continue };
        let connections = connections.clone();
        let gateway = Arc::clone(&gateway);
        listeners.spawn(listener::accept(gateway, listener, address, door, connections));
    }
    while signals.next().await == Signal::Reload {
        ask.now();
    }

    let patience = gateway.app().plan.timeouts.drain;
    tracing::info!(?patience, "stopping: requests under way are answered first");
    gateway.draining.cancel();
    let drained = async {
        listeners.close();
        listeners.wait().await;
        connections.close();
        connections.wait().await;
        tunnels.tasks.close();
        tunnels.tasks.wait().await;
    };
    let stopped = tokio::select! {
        drained = timeout(patience, drained) => drained.is_ok(),
        () = asked_again(&mut signals) => false,
    };
    if stopped {
        tracing::info!("stopped");
        return Ok(ExitCode::SUCCESS);
    }
    tracing::warn!(
        connections = connections.len(),
        tunnels = tunnels.tasks.len(),
        "stopped with connections open"
    );
    tunnels.cut.cancel();
    // Enough to close what can be closed.
    sleep(Duration::from_millis(50)).await;
    Ok(ExitCode::SUCCESS)
}

/// Who asks twice does not want to wait.
async fn asked_again(signals: &mut Signals) {
    while signals.next().await != Signal::Stop {}
}

/// Sockets that are open.
struct Bound {
    /// With the address in the file, which may leave the port to the system.
    public: Vec<(SocketAddr, TcpListener)>,
    admin: TcpListener,
    banner: String,
}

impl Bound {
    async fn bind(plan: &Plan) -> Result<Self, String> {
        let mut banner = String::new();
        let mut public = Vec::new();
        for listen in &plan.listen {
            let (address, listener) = bind("listen", listen.addr).await?;
            let scheme = if listen.tls.is_some() { "https" } else { "http" };
            // Writing to a string does not fail.
            let _ = writeln!(banner, "listening  {scheme}://{address}");
            public.push((listen.addr, listener));
        }
        let (address, admin) = bind("admin", plan.admin).await?;
        let _ = writeln!(banner, "admin      http://{address}");
        Ok(Self { public, admin, banner })
    }

    /// In one piece, so that what reads a line of it finds the others as well; and whoever
    /// does not read it is served nevertheless.
    fn announce(&self) {
        let _ = io::stdout().write_all(self.banner.as_bytes());
    }
}

async fn bind(key: &str, address: SocketAddr) -> Result<(SocketAddr, TcpListener), String> {
    let wrong =
        |error: io::Error| format!("cannot listen on {address}: {error}; choose another `{key}`");
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    Ok((listener.local_addr().map_err(wrong)?, listener))
}

/// What stands in `Via`: a name of this process alone, so that it is recognised by nobody
/// else.
fn name() -> String {
    // Seeded by the system, differently for each process.
    format!("tollgate-{:08x}", RandomState::new().build_hasher().finish() as u32)
}
