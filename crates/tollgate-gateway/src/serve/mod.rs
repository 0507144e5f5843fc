//! `tollgate serve`: listeners, reload, the admin address and the way out.
//!
//! | file | holds |
//! |---|---|
//! | `access_log.rs` | a line for each request |
//! | `app.rs` | what serves requests, made of one version of the configuration |
//! | `build.rs` | routes, and a limiter for each kind of request |
//! | `denials.rs` | what those get who are denied |
//! | `drain.rs` | the end of the gateway, as connections see it |
//! | `error.rs` | why what was read cannot be put to work |
//! | `client_identity.rs` | the client whose quota a request uses |
//! | `values.rs` | clients by a header, a cookie or a query parameter |
//! | `keys.rs` | key sets that are fetched |
//! | `lists.rs` | who is refused whatever he asks, and who is never limited |
//! | `recorded.rs` | a line of an access log, held against the plan |
//! | `settled.rs` | costs that only the body of a response says |
//! | `forward_auth.rs` | decisions for proxies that ask over HTTP |
//! | `gateway.rs` | what is running, and how the last reload went |
//! | `source.rs`, `reload.rs` | where the configuration comes from, and when it is read again |
//! | `listener.rs`, `slots.rs`, `connection.rs` | connections, from the first byte to the last |
//! | `workers.rs` | the threads that serve requests |
//! | `activity.rs` | what a connection is doing |
//! | `linger.rs` | the end of a connection whose client may still be sending |
//! | `streams.rs` | streams of HTTP/2 whose client does not read |
//! | `redis.rs` | Redis, and the local store while Redis is down |
//! | `admin.rs` | where operators look |
//! | `rate_limits.rs` | Envoy's Rate Limit Service |
//! | `observed.rs` | what they see besides the configuration |
//! | `summary.rs` | denials and failures in the log |
//! | `signals.rs` | what the system tells the program |

mod access_log;
mod activity;
mod admin;
mod app;
mod build;
mod client_identity;
mod connection;
mod denials;
mod drain;
mod error;
pub mod explain;
mod forward_auth;
mod gateway;
mod keys;
mod linger;
mod listener;
mod lists;
mod observed;
mod rate_limits;
pub(crate) mod recorded;
mod redis;
mod reload;
mod settled;
mod signals;
mod slots;
mod source;
mod streams;
mod summary;
mod values;
mod workers;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tollgate::status::Inspect;
use tollgate::{MemoryStore, Observer};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use self::access_log::AccessLog;
use self::app::{ListenerKey, Persistent};
use self::gateway::Gateway;
use self::keys::KeySets;
use self::reload::Reload;
use self::signals::{Signal, Signals};
pub use self::source::{Load, Loaded, Source};
use self::summary::Summary;
use self::workers::Workers;
use crate::plan::{Front, Plan, StorePlan};
use crate::proxy::{Failures, Tunnels, Via};
use crate::trace::Tracing;

/// What stood in the way.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    /// To exit with: 2 where a configuration is wrong, else 1.
    pub code: u8,
}

impl Failure {
    fn new(message: &str, code: u8) -> Self {
        // What names its own place is told as it is.
        Self { message: message.strip_prefix("error: ").unwrap_or(message).to_owned(), code }
    }
}

/// Serves until SIGTERM or Ctrl-C, and adds to traces what `tracing` wants.
///
/// It ends with 0 when all requests were answered.
///
/// # Errors
/// Something stood in the way: a port that is taken, say.
pub fn run(source: Source, tracing: &Tracing) -> Result<ExitCode, Failure> {
    let loaded = (source.load)().map_err(|error| Failure::new(&error, 2))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(&format!("cannot start threads: {error}"), 1))?;
    // Before there is a store, as what was counted before is not seen.
    let metrics = observed::count().map_err(|error| Failure::new(&error, 1))?;
    let spans = tracing.clone();
    let served = match &loaded.plan.store {
        StorePlan::Memory { max_keys, max_bytes } => {
            let store = MemoryStore::builder().max_keys(*max_keys).max_bytes(*max_bytes).build();
            runtime.block_on(serve(source, loaded, [store.clone(), store], metrics, spans))
        }
        StorePlan::Redis(redis) => {
            let redis = redis.clone();
            runtime.block_on(async {
                let store = redis::shared(&redis)?;
                let stores = [store.clone(), store.without_local()];
                let served = serve(source, loaded, stores, metrics, spans).await;
                redis::return_leases(&store).await;
                served
            })
        }
    };
    // Nothing that is left has anything to say.
    runtime.shutdown_timeout(Duration::ZERO);
    tracing.finish();
    served.map_err(|error| Failure::new(&error, 1))
}

async fn serve<St: Inspect>(
    source: Source,
    loaded: Loaded,
    [store, without_local]: [St; 2],
    metrics: PrometheusHandle,
    tracing: Tracing,
) -> Result<ExitCode, String> {
    let settings = observed::settings(loaded.plan.admin)?;
    let access_log = AccessLog::start(loaded.plan.access_log.as_ref())?;
    let observer = Observer::new();
    let failures = Failures::default();
    let summary = Summary::new(observer.clone(), failures.clone());
    // As many as there are processors, or as the variable TOKIO_WORKER_THREADS says.
    let count = Handle::current().metrics().num_workers();
    let workers =
        Workers::start(count).map_err(|error| format!("cannot start threads: {error}"))?;
    let workers = Arc::new(workers);
    let persistent = Persistent {
        store,
        files: slots::open_files(),
        without_local,
        tunnels: Tunnels::default(),
        failures: failures.clone(),
        via: Via::new(&name()).map_err(|error| format!("Via: {error}"))?,
        workers: count,
        observer,
        summary: summary.clone(),
        key_sets: KeySets::default(),
        access_log: access_log.clone(),
        tracing,
    };
    let tunnels = persistent.tunnels.clone();
    let health = HealthReporter::new();
    health.set_service_status(rate_limits::NAME, ServingStatus::Serving).await;
    let answers = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let gateway = Gateway::new(loaded, persistent, answers).map_err(|error| error.to_string())?;
    let gateway = Arc::new(gateway);
    let bound = Bound::bind(&gateway.app().plan)?;
    // Before anybody is told that the program runs: who reads that may signal at once.
    let mut signals = Signals::catch().map_err(|error| format!("signals: {error}"))?;
    let (reload, ask) = Reload::new(Arc::clone(&gateway), source);
    tokio::spawn(reload.run());
    bound.announce();

    tokio::spawn(rate_limits::keep_health(Arc::clone(&gateway), health));
    tokio::spawn(observed::keep_small(metrics.clone()));
    tokio::spawn(summary.clone().keep_telling());
    let most = gateway.app().admin_connections;
    let router = observed::router(settings, &gateway, metrics)?;
    tokio::spawn(admin::serve(Arc::clone(&gateway), router, bound.admin, most));
    let (connections, listeners) = (TaskTracker::new(), TaskTracker::new());
    for (key, listener) in bound.public {
        let Some(settings) = gateway.app().listeners.get(&key).cloned() else { continue };
        let (connections, workers) = (connections.clone(), Arc::clone(&workers));
        let gateway = Arc::clone(&gateway);
        listeners.spawn(async move {
            // Clients that are connected already wait so long, instead of being strangers.
            let first = gateway.app_to_keep();
            tokio::select! {
                () = gateway.draining.begins() => {}
                () = first.key_sets_tried() => {}
            }
            drop(first);
            listener::accept(gateway, listener, key, settings, &workers, connections).await;
        });
    }
    while signals.next().await == Signal::Reload {
        access_log.reopen();
        ask.now();
    }

    let patience = gateway.app().plan.timeouts.drain;
    tracing::info!(?patience, "stopping: requests under way are answered first");
    gateway.draining.begin();
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
    // What has not been told yet will not be otherwise.
    access_log.finish();
    summary.tell();
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
    public: Vec<(ListenerKey, TcpListener)>,
    admin: TcpListener,
    banner: String,
}

impl Bound {
    fn bind(plan: &Plan) -> Result<Self, String> {
        let mut banner = String::new();
        let mut public = Vec::new();
        for listen in &plan.listen {
            let (address, listener) = bind(listen.front.name(), listen.addr, |_| Ok(()))?;
            let scheme = if listen.tls.is_some() { "https" } else { "http" };
            let what = match listen.front {
                Front::Proxy => "listening ",
                front => front.name(),
            };
            // Writing to a string does not fail.
            let _ = writeln!(banner, "{what} {scheme}://{address}");
            public.push(((listen.addr, listen.front), listener));
        }
        let (address, admin) = bind("admin", plan.admin, admin::prepare)?;
        let _ = writeln!(banner, "admin      http://{address}");
        Ok(Self { public, admin, banner })
    }

    /// In one piece, so that what reads a line of it finds the others as well; and whoever
    /// does not read it is served nevertheless.
    fn announce(&self) {
        let _ = io::stdout().write_all(self.banner.as_bytes());
    }
}

fn bind(
    key: &str,
    address: SocketAddr,
    prepare: impl FnOnce(&TcpSocket) -> io::Result<()>,
) -> Result<(SocketAddr, TcpListener), String> {
    let wrong =
        |error: io::Error| format!("cannot listen on {address}: {error}; choose another `{key}`");
    let listener = listen(address, prepare).map_err(wrong)?;
    Ok((listener.local_addr().map_err(wrong)?, listener))
}

fn listen(
    address: SocketAddr,
    prepare: impl FnOnce(&TcpSocket) -> io::Result<()>,
) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Or nobody could listen where a process has just ended. Elsewhere it means something else:
    // that two may listen at once.
    if cfg!(unix) {
        socket.set_reuseaddr(true)?;
    }
    prepare(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How many connections may wait to be taken: whoever finds no room there tries again after a
/// second, and all clients of a proxy come at once when it is started again. The system has a
/// limit of its own.
const BACKLOG: u32 = 1024;

/// What stands in `Via`: a name of this process alone, so that it is recognised by nobody
/// else.
fn name() -> String {
    // Seeded by the system, differently for each process.
    format!("tollgate-{:08x}", RandomState::new().build_hasher().finish() as u32)
}
