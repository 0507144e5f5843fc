use std::sync::Arc;

use tollgate::limit::Mode;
use tollgate::policy::{Cost, OnStoreError, PolicyError, calendar};
use tollgate::store::Receipt;
use tollgate::{Policy, Quota};
use tollgate_engine::Methods;
use tollgate_llm::{Api, Model, Models, Price};

use super::context::{FileContext, inherited};
use super::quotas::QUOTA_KEYS;
use super::{options, paths};
use crate::file::tables::{Llm, ModelPrice};
use crate::plan::{
    ApiPlan, CostTable, LimitPlan, LlmPlan, PathMatch, QuotaPlan, ReservePlan, SettleBy, Whose,
};
use crate::yaml::problem::Checked;
use crate::yaml::typed::Setting;

/// The api for requests to language models.
pub(super) fn api(file: &FileContext<'_>) -> Checked<Option<ApiPlan>> {
    let Some(keys) = file.limiter.llm.get()? else { return Ok(None) };
    if file.limiter.forward_auth.is_set() {
        return Err(file.limiter.llm.name().error(
            "`llm` reads the bodies of requests and responses, which no proxy sends to `forwardAuth`",
            "forward these requests with a `target` and without `forwardAuth`",
        ));
    }
    let limiter = file.limiter;
    let needs_key = limiter.api_keys.is_set() || limiter.jwt.is_set();
    if needs_key && !limiter.client.is_set() {
        limiter.llm.name().warn(
            "requests to paths without a limit need no key",
            format!("add a section `client` with {QUOTA_KEYS}, which applies to all paths"),
        );
    }
    let on_store_error = inherited(&keys.on_store_error, &file.limiter.on_store_error)?;
    let mode = if file.limiter.shadow.value()? { Mode::Shadow } else { Mode::Reject };
    let limit = |name: &str, policy: Option<Policy>, settle: Option<SettleBy>| LimitPlan {
        name: name.to_owned(),
        quotas: policy.map(QuotaPlan::of).into_iter().collect(),
        whose: Whose::Client,
        costs: Arc::new(CostTable::flat(Cost::ONE)),
        mode,
        hide_headers: false,
        counts: None,
        forgives: None,
        reserve: settle.map(|settle| ReservePlan { settle, lapse: Receipt::LIFETIME.into() }),
        in_flight: None,
        penalty: None,
    };
    let reader = PolicyReader { keys, file, on_store_error };
    let requests =
        reader.per_minute(REQUESTS, keys.requests_per_minute.value()?, &keys.requests_per_minute);
    let tokens =
        reader.per_minute(TOKENS, keys.tokens_per_minute.value()?, &keys.tokens_per_minute);
    let money = reader.money();
    let in_flight = options::in_flight(&keys.concurrency, LLM, &file.names);
    let models = models(keys, keys.tokens_per_minute.value()?);
    let (requests, tokens, money) = (requests?, tokens?, money?);
    let in_flight = in_flight?.map(|policy| reader.failing(policy));
    let nothing = requests.is_none() && tokens.is_none() && money.is_none() && in_flight.is_none();
    if nothing && !keys.info.has_unknown {
        return Err(keys.info.location.error(
            "`llm` has no limit",
            "add `requestsPerMinute`, `tokensPerMinute`, `monthlyBudget` or `concurrency`",
        ));
    }
    let models = models?;
    let tokens = tokens.map(|policy| limit(TOKENS, Some(policy), Some(SettleBy::Tokens)));
    let money = money.map(|policy| limit(Api::BUDGET, Some(policy), Some(SettleBy::Money)));
    let path = match keys.path.get()? {
        Some(path) => paths::path(path, &keys.path.location())?,
        None => PathMatch::regex(PATHS).map_err(|_| super::Reported)?,
    };
    let max_read = keys.max_read.value()?;
    let llm = LlmPlan { budgets: tokens.into_iter().chain(money).collect(), models, max_read };
    let limit = LimitPlan { in_flight, ..limit(LLM, requests, None) };
    let methods = Methods::new(["POST"]);
    Ok(Some(ApiPlan { methods, path, limit, llm: Some(Arc::new(llm)) }))
}

const LLM: &str = "llm";
const REQUESTS: &str = "requests";
const TOKENS: &str = "tokens";

const PATHS: &str = "/(completions|responses|embeddings|messages|batches)/?$";

struct PolicyReader<'a> {
    keys: &'a Llm,
    file: &'a FileContext<'a>,
    on_store_error: OnStoreError,
}

impl PolicyReader<'_> {
    fn failing(&self, policy: Policy) -> Policy {
        let shed = self.file.limiter.shed.value().ok().flatten();
        shed.into_iter().fold(policy.with_on_store_error(self.on_store_error), Policy::with_shed)
    }

    fn take(
        &self,
        name: &str,
        key: &Setting,
        policy: Result<Policy, PolicyError>,
    ) -> Checked<Policy> {
        self.file.names.take(name, &key.name());
        let policy = policy.map_err(|error| {
            let nearest = error.nearest_limit().map(|limit| format!("write {limit}"));
            key.error(error.to_string(), nearest.unwrap_or_else(|| "write a smaller number".into()))
        });
        Ok(self.failing(policy?))
    }

    fn per_minute(&self, name: &str, limit: Option<u64>, key: &Setting) -> Checked<Option<Policy>> {
        let policy = limit.map(|limit| Policy::token_bucket(name, Quota::per_minute(limit)));
        policy.map(|policy| self.take(name, key, policy)).transpose()
    }

    fn money(&self) -> Checked<Option<Policy>> {
        let key = &self.keys.monthly_budget;
        let Some(amount) = key.value()? else { return Ok(None) };
        let zone = self.keys.time_zone.value()?;
        let month = calendar::month(&zone).map_err(|_| super::Reported)?;
        let policy = Policy::fixed_window_counter(Api::BUDGET, Quota::per_calendar(amount, month));
        let has_other = self
            .keys
            .models
            .there()
            .is_some_and(|models| models.models.all.iter().any(|(name, _)| name == OTHER));
        if !has_other {
            key.name().error(
                "clients choose the model, and models that are not listed have no price",
                "add `models: {other: {input: …, output: …}}` with your highest prices",
            );
        }
        self.take(Api::BUDGET, key, policy).map(Some)
    }
}

const OTHER: &str = "other";

fn models(keys: &Llm, capacity: Option<u64>) -> Checked<Models> {
    let default_output = capacity.map_or(4096, |capacity| capacity.div_ceil(4).min(4096));
    let free = Model::new(Price::per_million(0, 0)).max_output(default_output);
    let keep_options = !keys.add_stream_options.value()?;
    let table = |other| {
        let models = Models::new(other);
        if keep_options { models.keep_stream_options() } else { models }
    };
    let Some(listed) = keys.models.get()? else { return Ok(table(free)) };
    let model = |keys: &ModelPrice| {
        let input = keys.input.value()?;
        let mut price = Price::per_million(input, keys.output.value()?)
            .cached_input(keys.cached_input.value()?.unwrap_or(input))
            .cache_write(keys.cache_write.value()?.unwrap_or(input));
        if let Some(long) = keys.long_cache_write.value()? {
            price = price.long_cache_write(long);
        }
        check_output(keys, capacity)?;
        Ok(Model::new(price)
            .max_output(keys.max_output.value()?.unwrap_or(default_output))
            .tokens_per_kilobyte(keys.tokens_per_kilobyte.value()?)
            .tokens_per_attachment(keys.tokens_per_attachment.value()?))
    };
    let all = &listed.models.all;
    let other = all.iter().find(|(name, _)| name == OTHER);
    let other = other.map(|(_, other)| model(other.get()?)).transpose()?;
    let mut models = table(other.unwrap_or(free));
    for (name, item) in all.iter().filter(|(name, _)| name != OTHER) {
        models = models.with(name, model(item.get()?)?);
    }
    Ok(models)
}

fn check_output(keys: &ModelPrice, capacity: Option<u64>) -> Checked<()> {
    match (keys.max_output.value()?, capacity) {
        (Some(output), Some(capacity)) if output >= capacity => Err(keys.max_output.error(
            format!(
                "a request without a maximum reserves {output} tokens and its input, so \
                 `tokensPerMinute: {capacity}` would always deny it"
            ),
            "write a smaller `maxOutput`, or raise `tokensPerMinute`",
        )),
        _ => Ok(()),
    }
}
