use tollgate::Policy;
use tollgate::policy::{Algorithm, LeakyMode};

use super::context::{FileContext, inherited};
use super::policy::{self, QuotaKeys};
use crate::code;
use crate::file::tables::DecisionPolicy;
use crate::plan::{ApiWaits, DecisionApiPlan};
use crate::yaml::problem::Checked;

pub(super) fn decision_api(file: &FileContext<'_>) -> Checked<Option<DecisionApiPlan>> {
    let Some(api) = file.limiter.decision_api.get()? else { return Ok(None) };
    let items = api.policies.get()?;
    let policies: Vec<_> =
        items.iter().map(|item| item.get().and_then(|keys| read(keys, file))).collect();
    let waits = match (api.wait.value()?, api.queue.value()?) {
        (Some(wait), _) => Some(ApiWaits::InGateway(wait)),
        (None, queue) => queue.map(ApiWaits::InStore),
    };
    let policies = policies.into_iter().collect::<Checked<Vec<_>>>()?;
    if let Some(ApiWaits::InStore(max)) = waits {
        for (policy, keys) in policies.iter().zip(items) {
            policy.clone().with_queue(max).map_err(|error| match keys.get() {
                Ok(keys) => keys.identifier.error(
                    code::NOT_QUEUED,
                    error.to_string(),
                    "write `wait` instead of `queue`",
                ),
                Err(reported) => reported,
            })?;
        }
    }
    Ok(Some(DecisionApiPlan {
        policies,
        token: api.token.value()?,
        socket: api.socket.value()?,
        waits,
        longest_block: api.longest_block.value()?,
    }))
}

fn read(keys: &DecisionPolicy, file: &FileContext<'_>) -> Checked<Policy> {
    let name = keys.identifier.value()?;
    file.names.take(&name, &keys.identifier.location());
    let algorithm = match inherited(&keys.strategy, &file.limiter.strategy)? {
        Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        algorithm => algorithm,
    };
    let DecisionPolicy { info, limit, window, .. } = keys;
    let quota = QuotaKeys { info, amount: limit, limit: limit.value(), window };
    let policy = policy::build(&name, policy::quota(quota, algorithm)?, algorithm, quota)?;
    if !file.can_fail {
        keys.on_store_error.no_effect("in memory", "a memory store does not fail");
        return Ok(policy);
    }
    let on_store_error = inherited(&keys.on_store_error, &file.limiter.on_store_error)?;
    Ok(policy.with_on_store_error(on_store_error))
}
