//! A tenants file. A change to it reloads nothing else.

use std::convert::Infallible;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::task::block_in_place;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tollgate::tier::{ClientQuota, QuotaLookup, QuotaLookupBuilder};
use tollgate_config::files;
use tollgate_config::plan::{TenantRules, TenantTable};

use super::numbers::client_quota;
use crate::serve::error::BuildError;
use crate::serve::operations::loader::{Fingerprints, settled};

pub(crate) struct TenantsFile {
    shared: Arc<Shared>,
    watcher: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Shared {
    path: PathBuf,
    contents: ArcSwap<Contents>,
    state: Mutex<State>,
}

/// The last valid contents, and the rules that they fit.
#[derive(Default)]
struct Contents(Option<(TenantTable, TenantRules)>);

#[derive(Clone, Default)]
pub(crate) struct State {
    seen: Fingerprints,
    pub(crate) tenants: usize,
    /// Why the file's latest contents are not used.
    pub(crate) error: Option<String>,
}

/// A file's valid contents, and its fingerprint from before they were read.
pub(super) struct Read {
    seen: Fingerprints,
    contents: Contents,
}

impl TenantsFile {
    pub(super) fn new(path: &Path) -> Self {
        let (contents, state) = Default::default();
        let shared = Arc::new(Shared { path: path.to_owned(), contents, state });
        Self { shared, watcher: Mutex::default() }
    }

    /// The look-up finds no tenant before the first contents are set.
    pub(super) fn lookup(&self) -> QuotaLookupBuilder {
        let shared = Arc::clone(&self.shared);
        QuotaLookup::builder(move |client| {
            let found = shared.contents.load().find(&client.name);
            ready(Ok::<_, Infallible>(found))
        })
    }

    /// Applies each change of the file from now on. Needs a multi-threaded runtime.
    pub(super) fn watch(&self, rules: &Arc<ArcSwap<TenantRules>>, lookup: &QuotaLookup) {
        let (shared, rules, lookup) = (Arc::clone(&self.shared), Arc::clone(rules), lookup.clone());
        let watcher = tokio::spawn(async move {
            loop {
                sleep(INTERVAL).await;
                shared.look(&rules, &lookup).await;
            }
        });
        *self.watcher.lock() = Some(AbortOnDropHandle::new(watcher));
    }

    pub(super) fn replace(&self, read: Read, lookup: &QuotaLookup) {
        self.shared.replace(read, lookup, || true);
    }

    pub(crate) fn state(&self) -> State {
        self.shared.state.lock().clone()
    }
}

impl Shared {
    async fn look(&self, rules: &ArcSwap<TenantRules>, lookup: &QuotaLookup) {
        let seen = self.state.lock().seen.clone();
        let look = || block_in_place(|| fingerprint(&self.path, &seen));
        let now = look();
        if !seen.differ_from(&now) {
            self.state.lock().seen.adopt_metadata(&now);
            return;
        }
        let now = settled(now, look).await;
        let used = rules.load_full();
        match block_in_place(|| Read::new(&self.path, &used)) {
            Ok(read) => {
                let tenants = read.contents.len();
                // A reload has read the file meanwhile, under its own rules.
                if self.replace(read, lookup, || Arc::ptr_eq(&used, &rules.load())) {
                    let file = self.path.display();
                    tracing::info!(%file, tenants, "the tenants' numbers were read again");
                }
            }
            Err(BuildError(error)) => {
                let mut state = self.state.lock();
                // A file that is written again and again is reported once.
                if state.error.as_ref() != Some(&error) {
                    tracing::warn!(
                        "the tenants' numbers were not read and the earlier ones stay in use: {error}"
                    );
                }
                state.seen = now;
                state.error = Some(error);
            }
        }
    }

    /// Uses these contents if they are current. Returns whether they are.
    fn replace(
        &self,
        Read { seen, contents }: Read,
        lookup: &QuotaLookup,
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        if !is_current() {
            return false;
        }
        *state = State { seen, tenants: contents.len(), error: None };
        self.contents.store(Arc::new(contents));
        lookup.forget_all();
        true
    }
}

impl Read {
    pub(super) fn new(path: &Path, rules: &TenantRules) -> Result<Self, BuildError> {
        let seen = fingerprint(path, &Fingerprints::default());
        let table = files::tenants_logged(path, rules).map_err(BuildError)?;
        Ok(Self { seen, contents: Contents(Some((table, rules.clone()))) })
    }
}

impl Contents {
    fn find(&self, name: &str) -> Option<ClientQuota> {
        let (table, rules) = self.0.as_ref()?;
        client_quota(table.get(name)?, rules)
    }

    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |(table, _)| table.len())
    }
}

fn fingerprint(path: &Path, before: &Fingerprints) -> Fingerprints {
    Fingerprints::of([path.to_owned()], before)
}

/// With the time to read 100 000 tenants, a change applies within two seconds.
const INTERVAL: Duration = Duration::from_millis(250);
