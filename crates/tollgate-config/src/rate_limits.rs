//! Rules in the format of envoyproxy/ratelimit.

use std::collections::hash_map::Entry as Slot;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tollgate::policy::{Algorithm, Refill, Resolution};

use super::place::Place;
use super::problem::{Checked, Problem, Problems, Report, Reported, Severity};
use super::source::Source;
use super::typed::{
    AnySection, Flag, Input, Item, Kind as _, List, Setting, Whole, section, texts, words,
};
use super::{format, problem, spec, tree, typed};
use crate::files::{self, FileError};
use crate::plan::{Allowed, Descriptor, RateLimitDomain, RateLimitDomains, Rule, Unit};

/// Whether a text contains such rules, and not a gateway configuration.
pub fn is_rate_limits(source: &Source) -> bool {
    let root = tree::parse_first(&source.text, &as_written, &Problems::default()).flatten();
    root.is_some_and(|root| match &root.value {
        tree::Value::Map(entries) => {
            let has = |key| entries.iter().any(|entry| entry.key == key);
            has("domain") || (has("descriptors") && !has("rateLimiter"))
        }
        _ => false,
    })
}

/// Reads the rules in one file, or reports all its problems.
pub fn read_rate_limits(source: &Source) -> (Option<RateLimitDomain>, Report) {
    let problems = Rc::new(Problems::default());
    let domain = domain(source, &problems).ok().filter(|_| !problems.has_errors());
    (domain, problems.report(source))
}

/// Reads the rules in several files.
///
/// # Errors
/// A file cannot be read or is invalid, or two files contain the same domain or, if it merges
/// domains, the same descriptor.
pub fn read_rate_limit_files(
    files: &[PathBuf],
    merges_domains: bool,
) -> Result<RateLimitDomains, Vec<FileError>> {
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match read_rate_limit_file(file) {
            Ok(domain) => {
                errors.extend(conflict(&read, file, &domain, merges_domains));
                read.push((file, domain));
            }
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut all = RateLimitDomains::new();
    for (_, domain) in read {
        match all.entry(domain.name.clone()) {
            Slot::Occupied(mut merged) => merged.get_mut().descriptors.extend(domain.descriptors),
            Slot::Vacant(slot) => drop(slot.insert(domain)),
        }
    }
    Ok(all)
}

fn read_rate_limit_file(file: &Path) -> Result<RateLimitDomain, FileError> {
    let source = Source::new(file.display().to_string(), files::text(file)?);
    let (domain, report) = read_rate_limits(&source);
    domain.ok_or_else(|| first_error(&report, &source, file))
}

/// Like envoyproxy/ratelimit, merges only the lists of a domain, and not descriptors in them.
fn conflict(
    read: &[(&PathBuf, RateLimitDomain)],
    file: &Path,
    domain: &RateLimitDomain,
    merges_domains: bool,
) -> Option<FileError> {
    let name = domain.name.escape_debug();
    let (what, cure) =
        read.iter().filter(|(_, it)| it.name == domain.name).find_map(|(first, it)| {
            let first = first.display();
            if !merges_domains {
                let what = format!("the domain `{name}` is also in {first}");
                return Some((what, "write it into one file, or set `mergeDomains: true`"));
            }
            let twice = domain
                .descriptors
                .iter()
                .find(|new| it.descriptors.iter().any(|old| old.is_like(new)))?;
            let what =
                format!("the descriptor `{twice}` of the domain `{name}` is also in {first}");
            Some((what, "remove one of the two"))
        })?;
    Some(FileError { file: file.to_owned(), what, cure: cure.to_owned() })
}

/// The first error in a rules file, and a command that shows all errors.
fn first_error(report: &Report, source: &Source, file: &Path) -> FileError {
    let mut errors = report.problems().iter().filter(|it| it.severity == Severity::Error);
    let Some(Problem { place, what, cure, .. }) = errors.next() else {
        let (what, cure) = ("it is not valid".to_owned(), "correct it".to_owned());
        return FileError { file: file.to_owned(), what, cure };
    };
    let before = source.text.chars().take(place.span.start);
    let line = before.filter(|letter| *letter == '\n').count() + 1;
    let mut what = format!("line {line}: {what}");
    let others = errors.count();
    if others > 0 {
        let all = format!("`tollgate check {}` shows all", file.display());
        what = format!("{what} (and {others} more: {all})");
    }
    FileError { file: file.to_owned(), what, cure: cure.clone() }
}

/// envoyproxy/ratelimit does not replace variables.
fn as_written(name: &str) -> Option<String> {
    Some(format!("${{{name}}}"))
}

fn domain(source: &Source, problems: &Rc<Problems>) -> Checked<RateLimitDomain> {
    let root = tree::parse_first(&source.text, &as_written, problems).ok_or(Reported)?;
    let Some(root) = root else {
        let cure = "write `domain: …` and `descriptors: […]`";
        return Err(problems.error(Place::START, "the file is empty", cure));
    };
    // envoyproxy/ratelimit ignores a key without a value.
    let root = root.without_empty();
    let root = Domain::read(Input::root(&root, problems))?;
    let name = root.domain.value()?;
    let descriptors = all(root.descriptors.items()?, &name);
    Ok(RateLimitDomain { name, descriptors })
}

fn all(items: &[Item<Entry>], domain: &str) -> Vec<Descriptor> {
    let mut all: Vec<Descriptor> = Vec::new();
    for item in items {
        let read = item.get().and_then(|entry| descriptor(entry, domain));
        let Ok(descriptor) = read else { continue };
        if all.iter().any(|it| it.is_like(&descriptor)) {
            let what = "this list already has a descriptor with the same key and value";
            item.location.error(what, "remove one of the two");
        }
        all.push(descriptor);
    }
    all
}

fn descriptor(entry: &Entry, domain: &str) -> Checked<Descriptor> {
    for flag in [&entry.detailed_metric, &entry.value_to_metric] {
        if flag.value() == Ok(true) {
            let key = flag.key;
            flag.name().warn(
                format!("`{key}` has no effect: values that clients choose never become labels"),
                format!("remove `{key}`; give values that you want to distinguish their own rules"),
            );
        }
    }
    let value = entry.value.value()?.filter(|value| !value.is_empty());
    let shares = entry.share_threshold.value()?;
    if shares && !value.as_ref().is_some_and(|value| value.contains('*')) {
        let what = "`share_threshold` is for values that match a pattern, and `value` has no `*`";
        entry.share_threshold.name().error(what, "remove it, or add a `*`");
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
                key.name().warn(what, "move it to the entry with the limit");
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
            item.location.error(what, "name another rule");
        }
        replaces.push(replaced);
    }
    let [number, unit, algorithm]: [&Setting; 3] =
        [&limit.requests_per_unit, &limit.unit, &limit.algorithm];
    let allowed = if limit.unlimited.value()? {
        let what = |key: &Setting| format!("`{}` has no effect with `unlimited: true`", key.key);
        if unit.is_set() {
            unit.name().error(what(unit), "remove one of the two");
        }
        for key in [number, algorithm].into_iter().filter(|key| key.is_set()) {
            key.name().warn(what(key), "remove one of the two");
        }
        None
    } else {
        if !unit.is_set() {
            let cure = "write `unit` and `requests_per_unit`, or `unlimited: true`";
            limit.info.location.error("`unit` is missing", cure);
        }
        if !number.is_set() {
            limit.info.location.warn(
                "`requests_per_unit` is missing, which means 0: every request is denied",
                "write the number of requests",
            );
        }
        let requests = limit.requests_per_unit.value()?.unwrap_or_default();
        let unit = limit.unit.value()?.ok_or(Reported)?;
        let allowed = Allowed::new(domain, requests, unit, limit.algorithm.value()?);
        Some(allowed.map_err(|error| {
            let nearest = error.nearest_limit().map(|nearest| format!("write {nearest}"));
            number.error(error.to_string(), nearest.unwrap_or_else(|| "choose another".to_owned()))
        })?)
    };
    Ok(Rule { name, replaces, allowed, ..Rule::default() })
}

section! {
    /// Envoy's rate limits.
    Domain = "domain" {
        /// The name with which requests select these rules.
        required domain: DomainName,
        /// The rules.
        optional descriptors: List<Entry>,
    }

    /// One entry in a descriptor.
    Entry = "descriptors[]" {
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
        optional descriptors: List<Entry>,
    }

    /// A limit.
    RateLimit = "rate_limit" {
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
    Replaced = "replaces[]" {
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
