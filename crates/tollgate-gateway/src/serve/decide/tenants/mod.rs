//! Tenants: clients, or groups of clients, with their own numbers.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the look-ups, which survive reloads |
//! | `numbers.rs` | the numbers of a tenant |
//! | `naming.rs` | the names of clients at the sources |
//! | `file.rs` | a file and its watcher |
//! | `http.rs` | another service |
//! | `redis.rs` | values in Redis |

mod file;
mod http;
pub(crate) mod naming;
mod numbers;
mod redis;

use std::fmt;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::key::{KeyError, KeySource, RequestHead, Subject};
use tollgate::tier::QuotaLookup;
use tollgate_config::plan::{Plan, TenantRules, TenantSource, TenantsPlan, Whose};

use self::file::TenantsFile;
use super::client_identity::Identity;
use super::facts::Facts;
use crate::serve::error::BuildError;

/// The tenants' numbers from a single source.
pub(crate) struct Numbers {
    settings: Settings,
    pub(crate) lookup: QuotaLookup,
    /// The requirements for the numbers. A reload may change them.
    rules: Arc<ArcSwap<TenantRules>>,
    file: Option<TenantsFile>,
}

/// Look-ups with equal settings are the same, so their last known numbers survive a reload.
#[derive(PartialEq, Eq)]
struct Settings {
    of: Whose,
    source: TenantSource,
    /// The remaining settings, and how clients are named.
    others: String,
}

impl Settings {
    fn of(plan: &Plan, tenants: &TenantsPlan) -> Self {
        let TenantsPlan { of, source, ttl, timeout, capacity, on_failure, on_unknown, .. } =
            tenants;
        let identity = &plan.identity;
        let others =
            format!("{ttl:?} {timeout:?} {capacity} {on_failure:?} {on_unknown:?} {identity:?}");
        Self { of: *of, source: source.clone(), others }
    }
}

/// All look-ups in use.
#[derive(Clone, Default)]
pub(crate) struct Sources(Arc<Mutex<Vec<Weak<Numbers>>>>);

/// A plan's look-ups.
pub(crate) struct Prepared(Vec<(Arc<Numbers>, Mutex<Option<Update>>)>);

struct Update {
    rules: TenantRules,
    table: Option<file::Read>,
}

impl Sources {
    /// Finds or starts the look-ups of a plan, and reads its files. Must be called within a runtime.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Prepared, BuildError> {
        let mut sources = self.0.lock();
        sources.retain(|numbers| numbers.strong_count() > 0);
        let mut prepared = Vec::new();
        for tenants in &plan.tenants {
            let table = match &tenants.source {
                TenantSource::File(file) => Some(file::Read::new(file, &tenants.rules)?),
                _ => None,
            };
            let settings = Settings::of(plan, tenants);
            let known = sources.iter().filter_map(Weak::upgrade).find(|it| it.settings == settings);
            let numbers = match known {
                Some(numbers) => numbers,
                None => {
                    let numbers = Arc::new(Numbers::new(settings, tenants)?);
                    sources.push(Arc::downgrade(&numbers));
                    numbers
                }
            };
            let update = Update { rules: tenants.rules.clone(), table };
            prepared.push((numbers, Mutex::new(Some(update))));
        }
        Ok(Prepared(prepared))
    }
}

impl Prepared {
    pub(crate) fn numbers(&self) -> Vec<Arc<Numbers>> {
        self.0.iter().map(|(numbers, _)| Arc::clone(numbers)).collect()
    }

    /// The plan serves from now on. Until then, an earlier plan with the same look-ups needs numbers
    /// that fit its own rules.
    pub(crate) fn apply(&self) {
        for (numbers, update) in &self.0 {
            let Some(Update { rules, table }) = update.lock().take() else { continue };
            numbers.rules.store(Arc::new(rules));
            if let (Some(file), Some(table)) = (&numbers.file, table) {
                file.replace(table, &numbers.lookup);
            }
        }
    }
}

impl Numbers {
    fn new(settings: Settings, plan: &TenantsPlan) -> Result<Self, BuildError> {
        let rules = Arc::new(ArcSwap::from_pointee(plan.rules.clone()));
        let (builder, file) = match &plan.source {
            TenantSource::File(path) => {
                let file = TenantsFile::new(path);
                (file.lookup(), Some(file))
            }
            TenantSource::Http { url, token } => {
                (http::lookup(url, token.as_ref(), plan.timeout, &rules)?, None)
            }
            TenantSource::Redis { server, key } => {
                (redis::lookup(server, key, plan.timeout, &rules)?, None)
            }
        };
        let lookup = builder
            .ttl(plan.ttl)
            .timeout(plan.timeout)
            .capacity(plan.capacity)
            .on_failure(plan.on_failure)
            .on_unknown(plan.on_unknown)
            .build();
        if let Some(file) = &file {
            file.watch(&rules, &lookup);
        }
        Ok(Self { settings, lookup, rules, file })
    }
}

impl Numbers {
    pub(crate) fn source(&self) -> &TenantSource {
        &self.settings.source
    }

    /// The number of tenants in a file, and why its latest contents are not used.
    pub(crate) fn file(&self) -> Option<(usize, Option<String>)> {
        let state = self.file.as_ref()?.state();
        Some((state.tenants, state.error))
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbers").field("lookup", &self.lookup).finish_non_exhaustive()
    }
}

/// Key source: the client or group whose numbers are looked up.
pub(crate) struct TenantOf {
    pub(crate) identity: Identity,
    pub(crate) whose: Whose,
}

impl KeySource for TenantOf {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        // The limit's own key source reports an ambiguous client.
        Ok(Facts::of(head).and_then(|facts| self.identity.tenant(&facts.client, self.whose)))
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        let facts = Facts::of(head)?;
        self.identity.tenant_name(&facts.client, self.whose, head)
    }
}
