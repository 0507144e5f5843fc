//! Finds the limits and keys that a path names.

use http::StatusCode;
use tollgate::Limit;
use tollgate::key::{Subject, SubjectName};
use tollgate::observe::LayerHandle;

use super::problem::Problem;
use super::state::State;

pub(super) fn subject_name(subject: &str) -> Result<SubjectName, Problem> {
    let wrong = |error| Problem::new(StatusCode::BAD_REQUEST, format!("The subject: {error}."));
    subject.parse().map_err(wrong)
}

/// Returns the limits with this policy that can name the subject, by layer and number: at least one.
pub(super) fn matches(
    state: &State,
    policy: &str,
    subject: &str,
) -> Result<Vec<(LayerHandle, usize, Subject)>, Problem> {
    let name = subject_name(subject)?;
    let (mut is_known, mut all) = (false, Vec::new());
    for layer in state.layers() {
        let limits = layer.limits();
        let named = |limit: &&Limit| limit.policy().name() == policy;
        is_known |= limits.iter().any(named);
        let found = limits.iter().enumerate().filter(|(_, limit)| named(limit));
        let found = found.filter_map(|(number, limit)| Some((number, limit.subject_of(&name)?)));
        all.extend(found.map(|(number, subject)| (layer.clone(), number, subject)));
    }
    if !all.is_empty() {
        return Ok(all);
    }
    let detail = if is_known {
        "This policy has no subjects of this kind. /status shows whether all clients share its \
         quota, and `key:HEX` names any key."
    } else {
        "There is no such policy. /status lists all policies."
    };
    Err(Problem::new(StatusCode::NOT_FOUND, detail))
}
