//! Headers with a number each: `X-RateLimit-Remaining`, `RateLimit-Remaining` and their relatives.

use http::HeaderMap;

use super::draft;
use super::quotas::{DEFAULT, Quotas};
use super::text;
use super::times::{self, ServerClock, Unit};

struct Family {
    start: &'static str,
    /// Precedes the names of the quotas.
    prefix: &'static str,
    /// Whether quotas with a name refill continuously. Their reset is then the time until they are
    /// full.
    refills: bool,
}

impl Family {
    const fn new(start: &'static str) -> Self {
        Self { start, prefix: "", refills: true }
    }

    const fn windows(start: &'static str, prefix: &'static str) -> Self {
        Self { start, prefix, refills: false }
    }
}

const FAMILIES: [Family; 8] = [
    Family::new("x-ratelimit-"),
    Family::new("x-rate-limit-"),
    Family::new("ratelimit-"),
    Family::windows("anthropic-ratelimit-unified-", "unified-"),
    Family::new("anthropic-ratelimit-"),
    Family::new("x-hubspot-ratelimit-"),
    Family::windows("x-app-limit-", "app-"),
    Family::windows("x-user-limit-", "user-"),
];

#[derive(Clone, Copy)]
enum Field {
    Limit,
    Remaining,
    Reset,
    Status,
    Window(Unit),
}

/// The words for each field. A word that contains another precedes it.
const FIELDS: [(&str, Field); 13] = [
    ("remaining", Field::Remaining),
    ("left", Field::Remaining),
    ("reset-after", Field::Reset),
    ("reset", Field::Reset),
    ("limit", Field::Limit),
    ("max", Field::Limit),
    ("quota", Field::Limit),
    ("status", Field::Status),
    ("interval-milliseconds", Field::Window(Unit::Millis)),
    ("interval-seconds", Field::Window(Unit::Seconds)),
    ("interval", Field::Window(Unit::Seconds)),
    ("period", Field::Window(Unit::Seconds)),
    ("window", Field::Window(Unit::Seconds)),
];

/// The headers that name the quota in the other headers.
const NAMES: [&str; 4] =
    ["x-ratelimit-resource", "x-ratelimit-bucket", "x-ratelimit-name", "ratelimit-name"];

pub(super) fn read(headers: &HeaderMap, clock: ServerClock, quotas: &mut Quotas) {
    let has_draft = !quotas.is_empty();
    let default = NAMES.iter().find_map(|name| text(headers, name)).unwrap_or(DEFAULT);
    // Discord sends both, and only this has milliseconds.
    let has_reset_after = headers.contains_key("x-ratelimit-reset-after");
    for (header, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        let Some((family, rest)) = family(header.as_str()) else { continue };
        let Some((field, suffix)) = field(rest) else { continue };
        let is_default = suffix.is_empty() && family.prefix.is_empty();
        if is_default && (has_draft || has_reset_after && rest == "reset") {
            continue;
        }
        let name = if is_default { default } else { &[family.prefix, suffix].concat() };
        let Some(quota) = quotas.entry(name.trim_end_matches('-')) else { continue };
        if family.refills && !is_default {
            quota.set_refills();
        }
        match field {
            Field::Limit => match times::amount(value) {
                Some(limit) => quota.set_limit(Some(limit)),
                None => {
                    let (limit, window) = draft::limit_and_window(value);
                    quota.set_limit(limit);
                    quota.set_window(window);
                }
            },
            Field::Remaining => {
                let list = || draft::limit_and_window(value).0;
                quota.set_remaining(times::amount(value).or_else(list));
            }
            Field::Reset => quota.set_reset(clock.time_until(value), header),
            // Anthropic's limits of subscriptions have no numbers.
            Field::Status if value == "rejected" => quota.set_remaining(Some(0)),
            Field::Status if value.starts_with("allowed") => quota.set_allowing(),
            Field::Status => {}
            Field::Window(unit) => quota.set_window(unit.read(value)),
        }
    }
    shopify(headers, quotas);
}

fn family(header: &str) -> Option<(&'static Family, &str)> {
    FAMILIES.iter().find_map(|family| Some((family, header.strip_prefix(family.start)?)))
}

/// Splits `remaining-tokens` or `tokens-remaining` into the field and the quota's name.
fn field(rest: &str) -> Option<(Field, &str)> {
    FIELDS.iter().find_map(|(word, field)| {
        let name = if rest == *word {
            ""
        } else {
            let after = rest.strip_prefix(word).and_then(|name| name.strip_prefix('-'));
            after.or_else(|| rest.strip_suffix(word)?.strip_suffix('-'))?
        };
        Some((*field, name))
    })
}

/// `X-Shopify-Shop-Api-Call-Limit: 32/40` is the level of a leaky bucket.
fn shopify(headers: &HeaderMap, quotas: &mut Quotas) {
    let level = text(headers, "x-shopify-shop-api-call-limit");
    let Some((used, limit)) = level.and_then(|level| level.split_once('/')) else { return };
    let (Some(used), Some(limit)) = (times::amount(used), times::amount(limit)) else { return };
    if let Some(quota) = quotas.entry("api-call") {
        quota.set_limit(Some(limit));
        quota.set_remaining(Some(limit.saturating_sub(used)));
        quota.set_refills();
    }
}
