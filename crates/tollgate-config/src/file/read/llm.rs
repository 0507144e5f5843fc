use std::sync::Arc;

use tollgate::policy::{PolicyError, calendar};
use tollgate::store::Receipt;
use tollgate::{Policy, Quota};
use tollgate_engine::Methods;
use tollgate_llm::{Api, Model, Models, Price};

use super::context::{FileContext, inherited};
use super::policy::{self, OnStoreFailure};
use super::quotas::QUOTA_KEYS;
use super::{levels, options, paths};
use crate::code;
use crate::file::tables::{Llm, LlmLevel, ModelPrice};
use crate::plan::{
    ApiPlan, LimitPlan, LlmPlan, PathMatch, QuotaPlan, ReservePlan, SettleBy, Whose,
};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Key, Setting, all};

/// The api for requests to language models.
pub(super) fn api(file: &FileContext<'_>) -> Checked<Option<ApiPlan>> {
    let Some(keys) = file.limiter.llm.get()? else { return Ok(None) };
    if file.limiter.forward_auth.is_set() {
        return Err(file.limiter.llm.name().error(code::NEEDS_TARGET,
            "`llm` reads the bodies of requests and responses, which no proxy sends to `forwardAuth`",
            "forward these requests with a `target` and without `forwardAuth`",
        ));
    }
    let limiter = file.limiter;
    let needs_key = limiter.api_keys.is_set() || limiter.jwt.is_set();
    if needs_key && !limiter.client.is_set() {
        limiter.llm.name().warn(
            code::LLM_NO_KEY,
            "requests to paths without a limit need no key",
            format!("add a section `client` with {QUOTA_KEYS}, which applies to all paths"),
        );
    }
    // An invalid value here must not hide the problems that the readers report.
    let on_store_error = inherited(&keys.on_store_error, &limiter.on_store_error);
    let (shed, mode) = (limiter.shed.value(), file.mode());
    let reader = PolicyReader { keys, file };
    let own = reader.own();
    let levels = reader.levels();
    let in_flight = options::in_flight(&keys.concurrency, LLM, &file.names);
    let capacities = own.iter().chain(levels.iter().flatten().map(|(_, level)| level));
    let capacities = capacities.filter_map(|amounts| Some(amounts.tokens.as_ref()?.capacity()));
    let models = models(keys, capacities.min());
    let (mut own, levels) = (own?, levels?);
    let in_flight = in_flight?;
    if own.money.is_none() && levels.iter().all(|(_, level)| level.money.is_none()) {
        keys.time_zone.no_effect("without `monthlyBudget`", "it is about the month");
    }
    let nothing = own.is_empty() && levels.is_empty() && in_flight.is_none();
    if nothing && !keys.info.has_unknown {
        return Err(keys.info.location.error(
            code::LLM_NO_LIMIT,
            "`llm` has no limit",
            "add `requestsPerMinute`, `tokensPerMinute`, `monthlyBudget` or `concurrency`",
        ));
    }
    let models = models?;
    let path = match keys.path.get()? {
        Some(path) => paths::path(path, &keys.path.location())?,
        None => PathMatch::regex(PATHS).map_err(|_| super::Reported)?,
    };
    let max_read = keys.max_read.value()?;
    let failure = OnStoreFailure { on_store_error: on_store_error?, shed: shed? };
    let quota = |policy| QuotaPlan::of(failure.of(policy));
    let mode = mode?;
    let requests = own.requests.take().map(quota).into_iter().collect();
    let mut budgets = Vec::new();
    for (whose, amounts) in std::iter::once((Whose::Client, own)).chain(levels) {
        for (policy, settle) in amounts.settled() {
            let lapse = Receipt::LIFETIME.into();
            let reserve = settle.map(|settle| ReservePlan { settle, lapse });
            let limit = LimitPlan::new(policy.name(), whose, mode);
            budgets.push(LimitPlan { quotas: vec![quota(policy)], reserve, ..limit });
        }
    }
    let llm = LlmPlan { budgets, models, max_read };
    let limit = LimitPlan::new(LLM, Whose::Client, mode);
    let in_flight = in_flight.map(|policy| failure.of(policy));
    let limit = LimitPlan { quotas: requests, in_flight, ..limit };
    let methods = Methods::new(["POST"]);
    Ok(Some(ApiPlan { methods, path, limit, llm: Some(Arc::new(llm)) }))
}

const LLM: &str = "llm";
const REQUESTS: &str = "requests";
const TOKENS: &str = "tokens";

const PATHS: &str = "/(completions|responses|embeddings|messages|batches)/?$";

/// The budgets of each client, or of each group on a level.
struct Amounts {
    requests: Option<Policy>,
    tokens: Option<Policy>,
    money: Option<Policy>,
}

impl Amounts {
    const fn is_empty(&self) -> bool {
        self.requests.is_none() && self.tokens.is_none() && self.money.is_none()
    }

    fn settled(self) -> impl Iterator<Item = (Policy, Option<SettleBy>)> {
        let Self { requests, tokens, money } = self;
        let all =
            [(requests, None), (tokens, Some(SettleBy::Tokens)), (money, Some(SettleBy::Money))];
        all.into_iter().filter_map(|(policy, settle)| Some((policy?, settle)))
    }
}

struct PolicyReader<'a> {
    keys: &'a Llm,
    file: &'a FileContext<'a>,
}

impl PolicyReader<'_> {
    fn own(&self) -> Checked<Amounts> {
        let Llm { requests_per_minute, tokens_per_minute, monthly_budget, .. } = self.keys;
        self.amounts("", requests_per_minute, tokens_per_minute, monthly_budget)
    }

    fn levels(&self) -> Checked<Vec<(Whose, Amounts)>> {
        let Some(section) = self.keys.levels.get()? else { return Ok(Vec::new()) };
        all(&section.levels.all, |(level, item)| {
            let number = levels::number(&self.file.levels, level, &item.location);
            let LlmLevel { info, requests_per_minute, tokens_per_minute, monthly_budget } =
                &**item.get()?;
            let end = format!("/{level}");
            let amounts =
                self.amounts(&end, requests_per_minute, tokens_per_minute, monthly_budget)?;
            if amounts.is_empty() && !info.has_unknown {
                return Err(info.location.error(
                    code::LLM_NO_LIMIT,
                    format!("the level `{level}` has no budget"),
                    "add `requestsPerMinute`, `tokensPerMinute` or `monthlyBudget`",
                ));
            }
            Ok((Whose::Group(number?), amounts))
        })
    }

    /// The budgets with these keys, and with policy names that end with `end`.
    fn amounts(
        &self,
        end: &str,
        requests: &Key<Option<u64>>,
        tokens: &Key<Option<u64>>,
        money: &Key<Option<u64>>,
    ) -> Checked<Amounts> {
        let requests = self.per_minute(REQUESTS, end, requests);
        let tokens = self.per_minute(TOKENS, end, tokens);
        let money = self.money(end, money);
        Ok(Amounts { requests: requests?, tokens: tokens?, money: money? })
    }

    fn take(
        &self,
        name: &str,
        key: &Setting,
        policy: Result<Policy, PolicyError>,
    ) -> Checked<Policy> {
        self.file.names.take(name, &key.name());
        policy.map_err(|error| policy::out_of_range(key, &error, "write a smaller number"))
    }

    fn per_minute(&self, name: &str, end: &str, key: &Key<Option<u64>>) -> Checked<Option<Policy>> {
        let name = format!("{name}{end}");
        let policy =
            key.value()?.map(|limit| Policy::token_bucket(&*name, Quota::per_minute(limit)));
        policy.map(|policy| self.take(&name, key, policy)).transpose()
    }

    fn money(&self, end: &str, key: &Key<Option<u64>>) -> Checked<Option<Policy>> {
        let name = format!("{}{end}", Api::BUDGET);
        let Some(amount) = key.value()? else { return Ok(None) };
        let zone = self.keys.time_zone.value()?;
        let month = calendar::month(&zone).map_err(|_| super::Reported)?;
        let policy = Policy::fixed_window_counter(&*name, Quota::per_calendar(amount, month));
        let has_other = self
            .keys
            .models
            .there()
            .is_some_and(|models| models.models.all.iter().any(|(name, _)| name == OTHER));
        if !has_other {
            key.name().error(
                code::LLM_NO_PRICE,
                "clients choose the model, and models that are not listed have no price",
                "add `models: {other: {input: …, output: …}}` with your highest prices",
            );
        }
        self.take(&name, key, policy).map(Some)
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
            code::LLM_MAX_OUTPUT,
            format!(
                "a request without a maximum reserves {output} tokens and its input, so \
                 `tokensPerMinute: {capacity}` would always deny it"
            ),
            "write a smaller `maxOutput`, or raise `tokensPerMinute`",
        )),
        _ => Ok(()),
    }
}
