use std::sync::Arc;

use tollgate::policy::Cost;
use tollgate_engine::MethodCosts;

use super::paths;
use crate::file::tables;
use crate::plan::{CostRule, CostTable};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Either, Key, ValueType};

/// A policy's own costs, or the costs for all policies.
pub(super) fn costs(
    costs: &Key<Option<<tables::Costs as ValueType>::Value>>,
    of_all: Option<&Arc<CostTable>>,
) -> Checked<Arc<CostTable>> {
    let Some(costs) = costs.get()? else {
        let of_all = of_all.map(Arc::clone);
        return Ok(of_all.unwrap_or_else(|| Arc::new(CostTable::flat(Cost::ONE))));
    };
    let section = match costs {
        Either::One(()) => {
            let methods = MethodCosts::by_method();
            return Ok(Arc::new(CostTable { paths: Vec::new(), methods }));
        }
        Either::Other(section) => section,
    };
    let mut methods = MethodCosts::flat(Cost::new(section.other.value()?));
    for (method, units) in &section.methods.all {
        methods = methods.method(method.as_str(), Cost::new(*units.get()?));
    }
    let mut rules = Vec::new();
    for item in section.paths.items()? {
        let rule = item.get()?;
        rules.push(CostRule {
            methods: paths::methods(&rule.method)?,
            path: paths::path(rule.path.get()?, &rule.path.location())?,
            cost: Cost::new(rule.cost.value()?),
        });
    }
    Ok(Arc::new(CostTable { paths: rules, methods }))
}
