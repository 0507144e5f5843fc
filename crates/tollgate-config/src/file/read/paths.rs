use http::Method;
use regex_syntax::hir::Look;
use regex_syntax::hir::literal::{Extractor, Literal};
use tollgate_engine::{Methods, PathPattern};

use crate::code;
use crate::file::tables::{self, PathSection, RateLimiter};
use crate::file::{format, urls};
use crate::plan::{Front, Listen, PathMatch};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Either, Item, Key, Location, ValueType, all, values};
use tollgate_proxy::path::{Ambiguous, PathRules};

pub(super) fn path(
    path: &<tables::Path as ValueType>::Value,
    location: &Location,
) -> Checked<PathMatch> {
    let section = match path {
        Either::One(path) => {
            // In many routers a colon starts a placeholder, but HTTP gives it no special meaning.
            if path.text.contains("/:") && !path.is_from_variable {
                location.warn(
                    code::SURPRISING_PATH,
                    "`:` is an ordinary character in a path, and does not start a placeholder",
                    format!(
                        "write `expression: regex` and {} if it names a part of the path",
                        urls::expression(&path.text)
                    ),
                );
            }
            return Ok(path.value.clone());
        }
        Either::Other(section) => section,
    };
    match section.expression.value()? {
        true => regex(section),
        false => plain(section),
    }
}

fn plain(section: &PathSection) -> Checked<PathMatch> {
    let value = section.value.get()?;
    let wrong = match &*value.text {
        text if text.contains('*') => {
            "`*` is a letter in a plain path: write `path: /static/*` without `expression`, or \
             `expression: regex`"
                .to_owned()
        }
        // A caret suggests a regular expression.
        text if text.starts_with('^') => "this looks like `expression: regex`".to_owned(),
        text => match urls::path(text) {
            Ok(path) => return Ok(path),
            Err(_) if value.is_from_variable => "check the variable's value".to_owned(),
            Err(wrong) => wrong,
        },
    };
    let what = format!("no request has the path `{}`", value.shown);
    Err(section.value.error(code::PATH, what, wrong))
}

fn regex(section: &PathSection) -> Checked<PathMatch> {
    let (value, location) = (section.value.get()?, section.value.location());
    let path = PathMatch::regex(&value.text).map_err(|error| {
        let cure = match &error.0 {
            regex::Error::CompiledTooBig(_) => {
                "it grows with each `{n,m}` and with classes such as `\\w`: use smaller counts, or \
                 `[a-z]`"
            }
            _ => {
                "the syntax is that of https://docs.rs/regex, without look-around and \
                 back-references"
            }
        };
        let what = format!("the regular expression is invalid: {}", reason(&error.0));
        location.error(code::PATH, what, cure)
    })?;
    if !value.text.starts_with('^') && !value.text.starts_with("(?") {
        location.warn(
            code::SURPRISING_PATH,
            "the expression is not anchored: it also matches in the middle of a path",
            format!("write `^{}` if it must match from the start", value.shown),
        );
    }
    if never_matches(&value.text) {
        location.warn(
            code::SURPRISING_PATH,
            "every path starts with `/`, so the expression never matches",
            "start it with `^/`",
        );
    }
    if !value.text.is_ascii() {
        location.warn(
            code::SURPRISING_PATH,
            "paths are percent-encoded when they are matched, so these characters never match",
            "write them as they are sent: `%C3%A9` for `é`",
        );
    }
    Ok(path)
}

/// Whether each match would be at the start of the path, and would start with another character than
/// `/`.
fn never_matches(expression: &str) -> bool {
    let Ok(parsed) = regex_syntax::parse(expression) else { return false };
    let starts = Extractor::new().extract(&parsed);
    let is_wrong = |start: &Literal| start.as_bytes().first().is_some_and(|byte| *byte != b'/');
    parsed.properties().look_set_prefix().contains(Look::Start)
        && starts.literals().is_some_and(|starts| starts.iter().all(is_wrong))
}

fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(bytes) => format!("it is larger than {} KiB", bytes >> 10),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        }
    }
}

/// A key's methods. By default, all methods match.
pub(super) fn methods(key: &Key<Option<Vec<Item<format::Method>>>>) -> Checked<Methods> {
    Ok(Methods::new(values(key.items()?)?.iter().map(Method::as_str)))
}

pub(super) fn rules(limiter: &RateLimiter) -> Checked<PathRules> {
    let keys = limiter.paths.get()?;
    Ok(PathRules { ambiguous: keys.ambiguous.value()?, forward: keys.forward.value()? })
}

/// The path at which clients read their limits. `None` if no request to it arrives here.
pub(super) fn status_path(
    limiter: &RateLimiter,
    listen: &[(Front, Listen)],
) -> Checked<Option<Box<str>>> {
    let key = &limiter.status_path;
    if !listen.iter().any(|(front, _)| *front == Front::Proxy) {
        key.no_effect("without a target", "the proxy forwards this path to its own service");
        return Ok(None);
    }
    match key.value()? {
        None => Ok(None),
        Some(PathMatch::Pattern(PathPattern::Exact(path))) => Ok(Some(path)),
        Some(_) => {
            Err(key.error(code::PATH, "the limits are at a single path", "write it without `*`"))
        }
    }
}

pub(super) fn exempt(limiter: &RateLimiter, rules: Checked<PathRules>) -> Checked<Vec<PathMatch>> {
    let mut has_patterns = false;
    let paths = all(limiter.exempt.items()?, |item| {
        let path = path(item.get()?, &item.location)?;
        has_patterns |= !matches!(path, PathMatch::Pattern(PathPattern::Exact(_)));
        if path == PathMatch::any() {
            item.location.warn(
                code::NOTHING_LIMITED,
                "every path is exempt, so no request is limited",
                "name the paths that need no limit",
            );
        }
        Ok(path)
    });
    if let Ok(keys) = limiter.paths.get()
        && rules.is_ok_and(|rules| rules.ambiguous == Ambiguous::Keep)
        && has_patterns
    {
        keys.ambiguous.warn(
            code::SURPRISING_PATH,
            "a path with `%2F`, `%5C` or `%3B` is limited, although `exempt` matches it",
            "write `ambiguous: reject`, unless your clients send such paths",
        );
    }
    paths
}
