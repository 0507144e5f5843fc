//! What requests cost.

use std::sync::Arc;

use http::Method;
use tollgate::Cost;

use super::super::problem::Problems;
use super::super::view::View;
use super::paths;
use crate::plan::{CostRule, CostTable};

/// The costs of a section that may have its own, else those of all.
pub(super) fn costs(
    view: &View<'_>,
    of_all: Option<&Arc<CostTable>>,
    problems: &mut Problems,
) -> Option<Arc<CostTable>> {
    if !view.has("costs") {
        return match of_all {
            Some(costs) => Some(Arc::clone(costs)),
            None => Some(Arc::new(CostTable::flat(Cost::ONE))),
        };
    }
    let view = view.view("costs")?;
    let mut methods = Vec::new();
    for (name, item) in view.others() {
        let units = item.text()?.parse().ok()?;
        methods.push((Method::from_bytes(name.as_bytes()).ok()?, Cost::new(units)));
    }
    let mut rules = Vec::new();
    for item in view.items("paths") {
        let rule = item.view()?;
        rules.push(CostRule {
            methods: paths::methods(&rule)?,
            path: paths::path(&rule.item("path")?, problems)?,
            cost: Cost::new(rule.whole("cost")?),
        });
    }
    Some(Arc::new(CostTable { paths: rules, methods, other: Cost::new(view.whole("other")?) }))
}
