//! The running gateway: the current version of the configuration and the last reload's result.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::SetOnce;
use tollgate::observe::Inspect;
use tollgate_config::plan::Plan;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

use super::app::{App, Persistent};
use super::error::BuildError;
use super::operations::loader::{Fingerprints, Loaded, Loader, files};

pub(super) struct Gateway<St: Inspect> {
    app: ArcSwap<App<St>>,
    /// The plan at startup. A reload cannot change some parts of it.
    started: Plan,
    history: Mutex<History>,
    pub(super) persistent: Persistent<St>,
    pub(super) health: HealthServer<HealthService>,
    /// Set when the gateway receives a stop signal, so `/readyz` fails.
    pub(super) leaving: SetOnce<()>,
    /// Set when the drain starts: no new connections are accepted, and open connections are closed
    /// after their requests.
    pub(super) draining: Arc<SetOnce<()>>,
}

#[derive(Clone, Debug)]
pub(super) struct History {
    /// 1 at startup, plus 1 for each successful reload.
    pub(super) version: u64,
    pub(super) loaded_at: SystemTime,
    /// A description of the plan, without secrets.
    pub(super) words: String,
    /// The changes that only take effect at the next start.
    pub(super) waiting: Vec<&'static str>,
    pub(super) failures: u64,
    /// When and why the last reload failed, unless a later one succeeded.
    pub(super) error: Option<(SystemTime, String)>,
}

impl<St: Inspect> Gateway<St> {
    pub(super) fn new(
        loaded: Loaded,
        persistent: Persistent<St>,
        health: HealthServer<HealthService>,
    ) -> Result<Self, BuildError> {
        let started = loaded.plan.clone();
        let app = App::new(loaded.plan, &persistent, None)?;
        app.tenants().apply();
        let history = History {
            version: 1,
            loaded_at: SystemTime::now(),
            words: loaded.words,
            waiting: Vec::new(),
            failures: 0,
            error: None,
        };
        Ok(Self {
            health,
            app: ArcSwap::from_pointee(app),
            started,
            history: Mutex::new(history),
            persistent,
            leaving: SetOnce::new(),
            draining: Arc::default(),
        })
    }

    /// The current version, to keep for an entire request: a reload does not affect requests in
    /// flight.
    pub(super) fn app_to_keep(&self) -> Arc<App<St>> {
        self.app.load_full()
    }

    pub(super) fn app(&self) -> Guard<Arc<App<St>>> {
        self.app.load()
    }

    pub(super) fn history(&self) -> History {
        self.history.lock().clone()
    }

    /// Replaces the current version, unless the new version is invalid. Returns the contents of the
    /// files that the new version names, from before it read them, even if it is invalid: a missing
    /// file may be created later. Blocks, and must be called within a runtime.
    pub(super) fn replace(&self, loader: &Loader) -> Fingerprints {
        let before = self.app.load_full();
        let mut named = Fingerprints::default();
        let app = (loader.load)().and_then(|loaded| {
            let Loaded { plan, words } = loaded;
            named = Fingerprints::of(files(loader, &plan), &Fingerprints::default());
            let app = App::new(plan, &self.persistent, Some(&before));
            let app = app.map_err(|error| error.to_string())?;
            // The old version serves requests until the new version's keys are fetched.
            Handle::current().block_on(app.key_sets_tried());
            Ok((app, words))
        });
        let mut history = self.history.lock();
        match app {
            Ok((app, words)) => {
                let waiting = waiting(&self.started, &app.plan);
                app.tenants().apply();
                self.app.store(Arc::new(app));
                history.version += 1;
                history.loaded_at = SystemTime::now();
                history.words = words;
                history.error = None;
                tracing::info!(version = history.version, "the configuration was reloaded");
                if !waiting.is_empty() {
                    let waiting = waiting.join(", ");
                    tracing::warn!("changes of {waiting} wait for the next start of the program");
                }
                history.waiting = waiting;
            }
            Err(error) => {
                history.failures += 1;
                tracing::error!(
                    version = history.version,
                    "the configuration was not reloaded and the earlier one stays in use: {error}"
                );
                history.error = Some((SystemTime::now(), error));
            }
        }
        drop(history);
        named
    }
}

fn waiting(started: &Plan, now: &Plan) -> Vec<&'static str> {
    let addresses = |plan: &Plan| -> Vec<_> {
        plan.listen.iter().map(|(front, it)| (it.address, *front)).collect()
    };
    let socket = |plan: &Plan| plan.decision_api.as_ref().and_then(|api| api.socket.clone());
    let changed = [
        ("listen", addresses(started) != addresses(now)),
        ("decisionApi.socket", socket(started) != socket(now)),
        ("admin", started.admin != now.admin),
        ("store", started.store != now.store),
        ("log", started.log != now.log),
        ("accessLog", started.access_log != now.access_log),
        ("tracing", started.tracing != now.tracing),
    ];
    changed.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
}
