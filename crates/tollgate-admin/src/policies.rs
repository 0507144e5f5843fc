//! A subject under all policies.

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use http::{HeaderMap, StatusCode};

use super::answers::{SubjectPolicies, SubjectStatus, json};
use super::problem::Problem;
use super::reports;
use super::state::State;
use super::subjects::subject_name;

/// The subject's remaining units under each policy that can name it. The first layer with a policy
/// answers for it.
pub(super) async fn read(
    Extract(state): Extract<State>,
    headers: HeaderMap,
    Path(subject): Path<String>,
) -> Result<Response, Problem> {
    state.0.guard.check_token(&headers)?;
    let name = subject_name(&subject)?;
    let mut policies: Vec<SubjectStatus> = Vec::new();
    for layer in state.layers() {
        for limit in layer.limits() {
            let policy = limit.policy().name();
            let Some(key) = limit.key_of(&name) else { continue };
            if policies.iter().any(|known| known.policy == policy) {
                continue;
            }
            let tier = layer.tier_of(&name);
            policies.push(reports::subject(&layer, limit, tier.as_ref(), &key).await?);
        }
    }
    if policies.is_empty() {
        let detail = "No policy has subjects of this kind. /status lists all policies.";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    json(&SubjectPolicies::new(policies))
}
