//! Rules in a text in the format of envoyproxy/ratelimit.

use std::rc::Rc;

use tollgate::policy::{Algorithm, Refill, Resolution};

use super::go_yaml;
use crate::code;
use crate::file::format;
use crate::file::read::policy::out_of_range;
use crate::plan::{Allowed, Descriptor, RateLimitDomain, Rule, Unit};
use crate::yaml::parse;
use crate::yaml::place::Place;
use crate::yaml::problem::{Checked, Problems, Reported};
use crate::yaml::tree::Node;
use crate::yaml::typed::{
    AnySection, Flag, Input, Item, List, Setting, ValueType as _, Whole, section, texts, words,
};

/// Whether a document contains such rules.
pub(super) fn is_rules(root: &Node) -> bool {
    let has = |key| root.get(key).is_some();
    has("domain") || has("descriptors") && !has("rateLimiter")
}

/// Reads the rules in a text.
pub(super) fn domain(text: &str, problems: &Rc<Problems>) -> Checked<RateLimitDomain> {
    let root = parse::parse_first(text, problems).ok_or(Reported)?;
    let Some(root) = root else {
        let cure = "write `domain: …` and `descriptors: […]`";
        return Err(problems.error(code::EMPTY_FILE, Place::START, "the file is empty", cure));
    };
    let root = go_yaml::as_go_reads(&root, problems);
    let root = Domain::read(Input::root(&root, problems))?;
    let name = root.domain.value()?;
    let descriptors = all(root.descriptors.items()?, &name);
    Ok(RateLimitDomain { name, descriptors })
}

fn all(items: &[Item<DescriptorEntry>], domain: &str) -> Vec<Descriptor> {
    let mut all: Vec<Descriptor> = Vec::new();
    for item in items {
        let read = item.get().and_then(|entry| descriptor(entry, domain));
        let Ok(descriptor) = read else { continue };
        if all.iter().any(|it| it.is_like(&descriptor)) {
            let what = "this list already has a descriptor with the same key and value";
            item.location.error(code::LISTED_TWICE, what, "remove one of the two");
        }
        all.push(descriptor);
    }
    all
}

fn descriptor(entry: &DescriptorEntry, domain: &str) -> Checked<Descriptor> {
    for flag in [&entry.detailed_metric, &entry.value_to_metric] {
        if flag.value() == Ok(true) {
            let key = flag.key;
            flag.name().warn(
                code::NO_EFFECT,
                format!("`{key}` has no effect: values that clients choose never become labels"),
                format!("remove `{key}`; give values that you want to distinguish their own rules"),
            );
        }
    }
    let value = entry.value.value()?.filter(|value| !value.is_empty());
    let shares = entry.share_threshold.value()?;
    if shares && !value.as_ref().is_some_and(|value| value.contains('*')) {
        let what = "`share_threshold` is for values that match a pattern, and `value` has no `*`";
        entry.share_threshold.name().error(code::DESCRIPTOR, what, "remove it, or add a `*`");
    }
    let (shadow, quota) = (entry.shadow_mode.value()?, entry.quota_mode.value()?);
    let rule = match entry.rate_limit.get()? {
        Some(limit) => {
            let metadata = entry.metadata.value()?.unwrap_or_default();
            rule(limit, domain).ok().map(|rule| Rule { shadow, quota, metadata, ..rule })
        }
        None => {
            let keys: [(&Setting, bool); 3] = [
                (&entry.shadow_mode, shadow),
                (&entry.quota_mode, quota),
                (&entry.metadata, entry.metadata.is_set()),
            ];
            for (key, _) in keys.into_iter().filter(|(_, is_used)| *is_used) {
                let what = format!("`{}` has no effect without `rate_limit`", key.key);
                key.name().warn(code::NO_EFFECT, what, "move it to the entry with the limit");
            }
            None
        }
    };
    let nested = entry.descriptors.get()?.as_deref().unwrap_or_default();
    let nested = all(nested, domain);
    Ok(Descriptor { key: entry.key.value()?, value, rule, shares, nested })
}

fn rule(limit: &RateLimit, domain: &str) -> Checked<Rule> {
    let name = limit.name.value()?.unwrap_or_default();
    let mut replaces = Vec::new();
    for item in limit.replaces.get()?.iter().flatten() {
        let replaced = item.get()?.name.value()?;
        if replaced == name {
            let what = "a rule cannot replace itself";
            item.location.error(code::DESCRIPTOR, what, "name another rule");
        }
        replaces.push(replaced);
    }
    let [number, unit, algorithm]: [&Setting; 3] =
        [&limit.requests_per_unit, &limit.unit, &limit.algorithm];
    let allowed = if limit.unlimited.value()? {
        let what = |key: &Setting| format!("`{}` has no effect with `unlimited: true`", key.key);
        if unit.is_set() {
            unit.name().error(code::EXCLUSIVE_KEYS, what(unit), "remove one of the two");
        }
        for key in [number, algorithm].into_iter().filter(|key| key.is_set()) {
            key.name().warn(code::NO_EFFECT, what(key), "remove one of the two");
        }
        None
    } else {
        if !unit.is_set() {
            let cure = "write `unit` and `requests_per_unit`, or `unlimited: true`";
            limit.info.location.error(code::MISSING_KEY, "`unit` is missing", cure);
        }
        if !number.is_set() {
            limit.info.location.warn(
                code::DESCRIPTOR,
                "`requests_per_unit` is missing, which means 0: every request is denied",
                "write the number of requests",
            );
        }
        let requests = limit.requests_per_unit.value()?.unwrap_or_default();
        let unit = limit.unit.given()?;
        let allowed = Allowed::new(domain, requests, unit, limit.algorithm.value()?);
        Some(allowed.map_err(|error| out_of_range(number, &error, "choose another"))?)
    };
    Ok(Rule { name, replaces, allowed, ..Rule::default() })
}

section! {
    /// Envoy's rate limits.
    keys Domain = "domain" {
        /// The name with which requests select these rules.
        required domain: DomainName,
        /// The rules.
        optional descriptors: List<DescriptorEntry>,
    }

    /// One entry in a descriptor.
    keys DescriptorEntry = "descriptors[]" {
        /// The entry's key.
        required key: format::Text,
        /// The value, in which `*` matches any text. Default: any value.
        optional value: AnyText,
        /// The limit.
        optional rate_limit as "rate_limit": RateLimit,
        /// Whether the rule is only a shadow.
        default shadow_mode as "shadow_mode": Flag = "false",
        /// Whether the limit denies a request only together with all other limits of this kind.
        default quota_mode as "quota_mode": Flag = "false",
        /// Whether matching values share a quota.
        default share_threshold as "share_threshold": Flag = "false",
        /// Dynamic metadata for requests within the limit.
        optional metadata: AnySection,
        /// Without effect.
        default detailed_metric as "detailed_metric": Flag = "false",
        /// Without effect.
        default value_to_metric as "value_to_metric": Flag = "false",
        /// Rules for longer descriptors.
        optional descriptors: List<DescriptorEntry>,
    }

    /// A limit.
    keys RateLimit = "rate_limit" {
        /// The unit of time.
        optional unit: UnitName,
        /// The number of requests.
        optional requests_per_unit as "requests_per_unit": Whole<0, { u32::MAX as u64 }, u32>,
        /// How requests are counted.
        default algorithm: AlgorithmName = "fixed_window_counter",
        /// Whether the number of requests is unlimited.
        default unlimited: Flag = "false",
        /// The name with which other rules replace this rule.
        optional name: AnyText,
        /// The rules that this rule replaces.
        optional replaces: List<Replaced>,
    }

    /// A rule that does not apply if this rule does.
    keys Replaced = "replaces[]" {
        /// The replaced rule's name.
        required name: format::Text,
    }
}

words! {
    AlgorithmName -> Algorithm {
        /// Windows start at multiples of the unit, as in envoyproxy/ratelimit.
        "fixed_window_counter" => Algorithm::FixedWindowCounter,
        /// Counts the last unit of time exactly.
        "sliding_window_log" => Algorithm::SlidingWindowLog { resolution: Resolution::Auto },
        /// Counts the current window and a share of the previous window.
        "sliding_window_counter" => Algorithm::SlidingWindowCounter,
        /// Refills the requests evenly over the unit.
        "token_bucket" => Algorithm::TokenBucket { refill: Refill::Greedy },
    }
}

texts! {
    AnyText(text) -> String: "a text" => Ok(text.to_owned());

    /// A domain's name. Together with a unit's name, it is the policy's name.
    DomainName(text) -> String: "a name of 1 to 120 printable ASCII characters" =>
        match text.len() <= 120 {
            true => format::Identifier::parse(text),
            false => Err("write a shorter name".to_owned()),
        };

    UnitName(text) -> Unit: "a unit of time" => {
        let unit = Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(text));
        unit.ok_or_else(|| "write second, minute, hour, day, week, month or year".to_owned())
    };
}
