//! What is running: the version of the configuration that serves, and how the last attempt
//! to load another went.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tollgate::status::Inspect;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;

use super::access_log::AccessLog;
use super::app::{App, Persistent};
use super::drain::Drain;
use super::error::BuildError;
use super::source::{Contents, Loaded, Source, files};
use crate::plan::Plan;
use crate::trace::Tracing;

/// What is running.
pub(super) struct Gateway<St> {
    app: ArcSwap<App<St>>,
    /// What the program was started with: of some of it a reload changes nothing.
    started: Plan,
    history: Mutex<History>,
    persistent: Persistent<St>,
    /// Answers for the health of the Rate Limit Service.
    pub(super) health: HealthServer<HealthService>,
    /// Begun when no further connections are taken and those there are shall end.
    pub(super) draining: Drain,
}

/// How the configuration came to be what it is.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// 1 for what the program was started with, one more for each that took its place.
    pub(super) version: u64,
    pub(super) loaded_at: SystemTime,
    /// The plan in words, without secrets.
    pub(super) words: String,
    /// What of it has to wait for the next start.
    pub(super) waiting: Vec<&'static str>,
    /// Attempts to load another that failed.
    pub(super) failures: u64,
    /// Why the last one failed, if nothing was loaded since.
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
            draining: Drain::default(),
        })
    }

    /// The version that serves, for a request: it is served to its end by the one it began
    /// with.
    pub(super) fn app_to_keep(&self) -> Arc<App<St>> {
        self.app.load_full()
    }

    /// The version that serves, for a look at it.
    pub(super) fn app(&self) -> Guard<Arc<App<St>>> {
        self.app.load()
    }

    pub(super) fn history(&self) -> History {
        self.history.lock().clone()
    }

    /// What is added to the traces of requests.
    pub(super) const fn tracing(&self) -> &Tracing {
        &self.persistent.tracing
    }

    /// Where requests are logged.
    pub(super) const fn access_log(&self) -> &AccessLog {
        &self.persistent.access_log
    }

    /// Puts another version in the place of the one that serves, or leaves that where it is.
    /// Returns what the files that it names held before they were read, whether or not it took
    /// its place: one that is missing may be on its way. Blocks, and must be called within a
    /// runtime.
    pub(super) fn replace(&self, source: &Source) -> Contents {
        let before = self.app.load_full();
        let mut named = Contents::default();
        let app = (source.load)().and_then(|loaded| {
            let Loaded { plan, words } = loaded;
            named = Contents::of(files(source, &plan), &Contents::default());
            let app = App::new(plan, &self.persistent, Some(&before));
            let app = app.map_err(|error| error.to_string())?;
            // Until its keys are there the one before does better.
            Handle::current().block_on(app.key_sets_tried());
            Ok((app, words))
        });
        let mut history = self.history.lock();
        match app {
            Ok((app, words)) => {
                let waiting = waiting(&self.started, &app.plan);
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
                    "the configuration was not reloaded and the one before goes on: {error}"
                );
                history.error = Some((SystemTime::now(), error));
            }
        }
        drop(history);
        named
    }
}

/// What is made once, at the start: sockets, the store that holds the counters, and the log
/// with whatever else is told of requests.
fn waiting(started: &Plan, now: &Plan) -> Vec<&'static str> {
    let addresses =
        |plan: &Plan| -> Vec<_> { plan.listen.iter().map(|it| (it.addr, it.front)).collect() };
    let changed = [
        ("listen", addresses(started) != addresses(now)),
        ("admin", (started.admin, &started.admin_peers) != (now.admin, &now.admin_peers)),
        ("store", started.store != now.store),
        ("log", started.log != now.log),
        ("accessLog", started.access_log != now.access_log),
        ("tracing", started.tracing != now.tracing),
    ];
    changed.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
}
