//! The plan that each configuration file is read into.

mod clients;
mod file;
mod limits;
mod llm;
mod tenants;

use tollgate_config::plan::Plan;

use crate::support::plan;

/// The plan for a file with a client policy and the lines in `rest`.
fn with(rest: &str) -> Plan {
    plan(&format!(
        "rateLimiter:\n  target: http://localhost:3000\n  client: {{limit: 100, windowSeconds: \
         60}}\n{rest}"
    ))
}

fn api(rest: &str) -> tollgate_config::plan::ApiPlan {
    let plan = with(&format!("  apis:\n    - {{identifier: a, path: /a, {rest}}}\n"));
    plan.routes[0].limits.apis[0].clone()
}
