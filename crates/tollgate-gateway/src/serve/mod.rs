//! `tollgate serve`: listeners, reload, the admin address and the shutdown.

mod answers;
mod app;
mod bodies;
mod body;
mod decide;
mod edge;
mod entrance;
mod error;
mod fronts;
mod gateway;
mod operations;
mod planned;
mod status;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write as _};
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tollgate::MemoryStore;
use tollgate::observe::{Inspect, Observer};
use tollgate_config::plan::{Front, Plan, StorePlan, Timeouts};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use self::app::Persistent;
pub use self::decide::client_identity::ClientIdentity;
use self::decide::key_sets::KeySets;
pub use self::decide::key_sources::client_ip;
use self::decide::redis;
pub use self::decide::redis::connect;
use self::decide::tenants::Sources;
use self::decide::token_limit::Addresses;
use self::edge::listener_settings::ListenerKey;
#[cfg(unix)]
use self::edge::local_socket::LocalSocket;
use self::edge::workers::Workers;
use self::edge::{listener, slots};
pub use self::error::BuildError;
use self::fronts::rate_limit_service;
use self::gateway::Gateway;
use self::operations::access_log::AccessLog;
pub use self::operations::loader::{Load, Loaded, Loader};
use self::operations::reload::Reload;
use self::operations::signals::{Signal, Signals};
use self::operations::summary::Summary;
use self::operations::{admin, observed};
pub use self::planned::{Met, Planned, Read, Refused, Sent, Tenant, ambiguous};
use crate::trace::Tracing;
use tollgate_proxy::{Failures, Tunnels, Via};

#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    /// The exit code: 2 if a configuration is invalid, otherwise 1.
    pub code: u8,
}

impl Failure {
    fn new(message: &str, code: u8) -> Self {
        // A message with its own location already starts with `error: `, which the caller adds.
        Self { message: message.strip_prefix("error: ").unwrap_or(message).to_owned(), code }
    }
}

/// Serves until SIGTERM or Ctrl-C, and sends spans with `tracing`.
pub fn run(loader: Loader, tracing: &Tracing) -> Result<ExitCode, Failure> {
    let loaded = (loader.load)().map_err(|error| Failure::new(&error, 2))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::new(&format!("cannot start threads: {error} [TG0416]"), 1))?;
    // Before the store is created, because earlier counts would be lost.
    let metrics = observed::count().map_err(|error| Failure::new(&error, 1))?;
    let spans = tracing.clone();
    let served = match &loaded.plan.store {
        StorePlan::Memory(memory) => {
            let store = MemoryStore::builder().max_keys(memory.max_keys);
            let store = store.max_bytes(memory.max_bytes).build();
            runtime.block_on(serve(loader, loaded, store, metrics, spans))
        }
        StorePlan::Redis(redis) => {
            let redis = redis.clone();
            runtime.block_on(async {
                let store = redis::shared(&redis)?;
                let served = serve(loader, loaded, store.clone(), metrics, spans).await;
                redis::return_leases(&store).await;
                served
            })
        }
    };
    // The remaining tasks have no work to finish.
    runtime.shutdown_timeout(Duration::ZERO);
    tracing.finish();
    served.map_err(|error| Failure::new(&error, 1))
}

async fn serve<St: Inspect>(
    loader: Loader,
    loaded: Loaded,
    store: St,
    metrics: PrometheusHandle,
    tracing: Tracing,
) -> Result<ExitCode, String> {
    let settings = observed::settings(loaded.plan.admin.address)?;
    let access_log = AccessLog::start(loaded.plan.access_log.as_ref())?;
    let observer = Observer::new();
    let failures = Failures::default();
    let summary = Summary::new(observer.clone(), failures.clone());
    // The number of processors, unless TOKIO_WORKER_THREADS is set.
    let count = Handle::current().metrics().num_workers();
    let workers =
        Workers::start(count).map_err(|error| format!("cannot start threads: {error} [TG0416]"))?;
    let workers = Arc::new(workers);
    let persistent = Persistent {
        store,
        files: slots::open_files(),
        tunnels: Tunnels::default(),
        failures: failures.clone(),
        via: Via::new(&name()).map_err(|error| format!("Via: {error}"))?,
        workers: count,
        observer,
        summary: summary.clone(),
        key_sets: KeySets::default(),
        refused_tokens: Addresses::default(),
        tenants: Sources::default(),
        access_log: access_log.clone(),
        tracing,
    };
    let tunnels = persistent.tunnels.clone();
    let health = HealthReporter::new();
    for service in rate_limit_service::SERVICES {
        health.set_service_status(service, ServingStatus::Serving).await;
    }
    let answers = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let gateway = Gateway::new(loaded, persistent, answers).map_err(|error| error.to_string())?;
    let gateway = Arc::new(gateway);
    let bound = Bound::bind(&gateway.app().plan).await?;
    // Before the addresses are announced, because a reader may immediately send a signal.
    let mut signals = Signals::catch().map_err(|error| format!("signals: {error} [TG0416]"))?;
    let (reload, ask) = Reload::new(Arc::clone(&gateway), loader);
    tokio::spawn(reload.run());
    bound.announce();

    tokio::spawn(rate_limit_service::keep_health(Arc::clone(&gateway), health));
    tokio::spawn(observed::keep_small(metrics.clone()));
    tokio::spawn(summary.clone().keep_telling());
    let most = gateway.app().admin_connections;
    let router = observed::router(settings, &gateway, metrics)?;
    tokio::spawn(admin::serve(Arc::clone(&gateway), router, bound.admin, most));
    let (connections, listeners) = (TaskTracker::new(), TaskTracker::new());
    #[cfg(unix)]
    if let Some(socket) = bound.socket {
        let (connections, workers) = (connections.clone(), Arc::clone(&workers));
        let gateway = Arc::clone(&gateway);
        listeners.spawn(async move {
            socket.accept(gateway, Front::DecisionApi, &workers, connections).await;
        });
    }
    for (key, listener) in bound.public {
        let Some(settings) = gateway.app().listeners.get(&key).cloned() else { continue };
        let (connections, workers) = (connections.clone(), Arc::clone(&workers));
        let gateway = Arc::clone(&gateway);
        listeners.spawn(async move {
            // Clients wait in the backlog until the first fetch of keys has finished, because their
            // tokens cannot be verified before that.
            let first = gateway.app_to_keep();
            tokio::select! {
                _ = gateway.draining.wait() => {}
                () = first.key_sets_tried() => {}
            }
            drop(first);
            listener::accept(gateway, listener, key, settings, &workers, connections).await;
        });
    }
    let signal = loop {
        match signals.next().await {
            Signal::Reload => {
                access_log.reopen();
                ask.now();
            }
            signal => break signal,
        }
    };
    let Timeouts { drain: patience, drain_delay: delay, .. } = gateway.app().plan.timeouts;
    // This is the only call, so it succeeds.
    let _ = gateway.leaving.set(());
    // A person at a terminal does not route requests by `/readyz`.
    if signal == Signal::Terminate && !delay.is_zero() {
        tracing::info!(?delay, "no longer ready, but still accepting connections during the delay");
        tokio::select! {
            () = sleep(delay) => {}
            () = asked_again(&mut signals) => {}
        }
    }
    tracing::info!(?patience, "stopping after the requests in flight");
    let _ = gateway.draining.set(());
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
    // Write the rest of both logs before the program exits.
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
    // Give tasks time to close their connections.
    sleep(Duration::from_millis(50)).await;
    Ok(ExitCode::SUCCESS)
}

/// Completes on another stop signal, which cuts the delay or the drain short.
async fn asked_again(signals: &mut Signals) {
    while signals.next().await == Signal::Reload {}
}

struct Bound {
    public: Vec<(ListenerKey, TcpListener)>,
    #[cfg(unix)]
    socket: Option<LocalSocket>,
    admin: TcpListener,
    banner: String,
}

impl Bound {
    async fn bind(plan: &Plan) -> Result<Self, String> {
        let mut banner = String::new();
        let mut public = Vec::new();
        for (front, listen) in &plan.listen {
            let (address, listener) = bind(front.name(), listen.address, |_| Ok(()))?;
            let scheme = if listen.tls.is_some() { "https" } else { "http" };
            let what = match front {
                Front::Proxy => "listening ",
                front => front.name(),
            };
            let _ = writeln!(banner, "{what} {scheme}://{address}");
            public.push(((listen.address, *front), listener));
        }
        let socket = plan.decision_api.as_ref().and_then(|api| api.socket.as_deref());
        if let Some(path) = socket {
            let _ = writeln!(banner, "{} unix:{}", Front::DecisionApi.name(), path.display());
        }
        #[cfg(unix)]
        let socket = match socket {
            Some(path) => Some(local_socket(path).await?),
            None => None,
        };
        #[cfg(not(unix))]
        if socket.is_some() {
            return Err(
                "this system has no Unix sockets; remove `decisionApi.socket` [TG0401]".to_owned()
            );
        }
        let (address, admin) = bind("admin", plan.admin.address, admin::prepare)?;
        let _ = writeln!(banner, "admin      http://{address}");
        Ok(Self {
            public,
            #[cfg(unix)]
            socket,
            admin,
            banner,
        })
    }

    /// Writes the banner in a single call, so readers usually get all lines together. The gateway
    /// starts even if the write fails.
    fn announce(&self) {
        let _ = io::stdout().write_all(self.banner.as_bytes());
    }
}

#[cfg(unix)]
async fn local_socket(path: &Path) -> Result<LocalSocket, String> {
    LocalSocket::bind(path).await.map_err(|error| {
        let path = path.display();
        format!("cannot listen on {path}: {error}; choose another `decisionApi.socket` [TG0401]")
    })
}

fn bind(
    key: &str,
    address: SocketAddr,
    prepare: impl FnOnce(&TcpSocket) -> io::Result<()>,
) -> Result<(SocketAddr, TcpListener), String> {
    let wrong = |error: io::Error| {
        format!("cannot listen on {address}: {error}; choose another `{key}` [TG0401]")
    };
    let listener = listen(address, prepare).map_err(wrong)?;
    Ok((listener.local_addr().map_err(wrong)?, listener))
}

fn listen(
    address: SocketAddr,
    prepare: impl FnOnce(&TcpSocket) -> io::Result<()>,
) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Otherwise the port would remain in use for a while after the previous process has exited. On
    // Windows, the option would let two processes listen at the same time.
    if cfg!(unix) {
        socket.set_reuseaddr(true)?;
    }
    prepare(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How many connections the backlog may contain; the system has its own limit. If the backlog is
/// full, a client retries after a second. After a restart, all of a proxy's clients connect at the
/// same time.
const BACKLOG: u32 = 1024;

/// The name in `Via`. It is unique to this process, so other gateways do not mistake it for their
/// own.
fn name() -> String {
    // The system seeds each process differently.
    format!("tollgate-{:08x}", RandomState::new().build_hasher().finish() as u32)
}
