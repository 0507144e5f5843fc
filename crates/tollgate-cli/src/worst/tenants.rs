//! The tenants' numbers.

use std::collections::BTreeMap;

use tollgate_config::files;
use tollgate_config::plan::{LimitPlan, Plan, TenantQuota, TenantsPlan, Whose};

/// A plan's tenant sources.
pub(super) struct Tenants(Vec<Source>);

/// Where tenants' numbers come from.
pub(super) struct Source {
    pub(super) name: String,
    /// A file's tenants with different numbers. `None` for other sources, which commands do not ask.
    pub(super) table: Option<Vec<(String, TenantQuota)>>,
    number: usize,
    of: Whose,
}

impl Tenants {
    /// Reads the files.
    pub(super) fn read(plan: &Plan) -> Result<Self, String> {
        let sources = plan.tenants.iter().enumerate().map(|(number, tenants)| {
            let TenantsPlan { of, source, .. } = tenants;
            let table = files::known_tenants(tenants)?.map(|table| {
                // Of tenants with the same numbers, only the first by name is a candidate.
                let mut all: Vec<_> = table.into_iter().collect();
                all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                let mut different = BTreeMap::new();
                for (name, quota) in all {
                    different.entry(format!("{quota:?}")).or_insert_with(|| (name.into(), quota));
                }
                different.into_values().collect()
            });
            Ok(Source { name: source.to_string(), table, number, of: *of })
        });
        Ok(Self(sources.collect::<Result<_, String>>()?))
    }

    /// The source of this limit's numbers.
    pub(super) fn of(&self, limit: &LimitPlan) -> Option<&Source> {
        self.0.iter().find(|source| source.is_of(limit))
    }

    /// The source of clients' numbers.
    pub(super) fn of_clients(&self) -> Option<&Source> {
        self.0.iter().find(|source| source.of == Whose::Client)
    }
}

impl Source {
    pub(super) fn is_of(&self, limit: &LimitPlan) -> bool {
        limit.tenants.is_some_and(|tenants| tenants.tenants == self.number)
    }

    fn tenants(&self) -> impl Iterator<Item = (&str, &TenantQuota)> {
        self.table.iter().flatten().map(|(name, quota)| (name.as_str(), quota))
    }

    /// The tenants with limits.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&str, &TenantQuota)> {
        self.tenants().filter(|(_, quota)| **quota != TenantQuota::Unlimited)
    }

    /// Names an unlimited tenant, if the file contains any.
    pub(super) fn unlimited(&self) -> Option<String> {
        let (name, _) = self.tenants().find(|(_, quota)| **quota == TenantQuota::Unlimited)?;
        let name = name.escape_debug();
        Some(format!("requests of unlimited tenants in {}, such as `{name}`", self.name))
    }
}
