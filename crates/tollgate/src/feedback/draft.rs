//! `RateLimit` and `RateLimit-Policy`, in the revisions of the draft that services send.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

use super::quotas::{DEFAULT, Quotas};
use crate::headers::{RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_EXCEEDED};

/// Reads `RateLimit`.
pub(super) fn read(headers: &HeaderMap, quotas: &mut Quotas) {
    for value in values(headers, &RATELIMIT) {
        if let Ok(list) = Parser::new(value).parse::<List>() {
            // `"default";r=50;t=30`
            for item in items(list) {
                let Some(quota) = name_of(&item).and_then(|name| quotas.entry(name)) else {
                    continue;
                };
                quota.set_remaining(parameter(&item.params, "r"));
                quota.set_reset(seconds(parameter(&item.params, "t")), &RATELIMIT);
            }
        } else if let Ok(members) = Parser::new(value).parse::<Dictionary>() {
            // Revision 7: `limit=100, remaining=50, reset=30`
            let member = |name| match members.get(name) {
                Some(ListEntry::Item(item)) => unsigned(&item.bare_item),
                _ => None,
            };
            let Some(quota) = quotas.entry(DEFAULT) else { continue };
            quota.set_limit(member("limit"));
            quota.set_remaining(member("remaining"));
            quota.set_reset(seconds(member("reset")), &RATELIMIT);
        }
    }
}

/// Reads `RateLimit-Policy`, and which quotas are soft limits, after all other headers.
pub(super) fn read_policies(headers: &HeaderMap, quotas: &mut Quotas) {
    for item in lists(headers, &RATELIMIT_POLICY) {
        let (limit, quota) = match unsigned(&item.bare_item) {
            // Until revision 7: `100;w=60`
            Some(limit) => (Some(limit), quotas.get_mut(DEFAULT)),
            // `"default";q=100;w=60`
            None => {
                (parameter(&item.params, "q"), name_of(&item).and_then(|name| quotas.entry(name)))
            }
        };
        // Without a name, only the policy with the same limit is about this quota.
        if let Some(quota) = quota
            && (name_of(&item).is_some() || quota.limit() == limit)
        {
            quota.set_limit(limit);
            quota.set_window(seconds(parameter(&item.params, "w")));
        }
    }
    for item in lists(headers, &X_RATELIMIT_EXCEEDED) {
        if let Some(quota) = name_of(&item).and_then(|name| quotas.get_mut(name)) {
            quota.set_allowing();
        }
    }
}

/// Reads `100, 100;w=60, 10000;w=86400`: a limit and its window.
pub(super) fn limit_and_window(value: &str) -> (Option<u64>, Option<Duration>) {
    let items: Vec<_> = Parser::new(value).parse().map(items).into_iter().flatten().collect();
    let limit = items.first().and_then(|item| unsigned(&item.bare_item));
    let same_limit = items.iter().filter(|item| unsigned(&item.bare_item) == limit);
    let window = |params| parameter(params, "w").or_else(|| parameter(params, "window"));
    (limit, seconds(same_limit.filter_map(|item| window(&item.params)).next()))
}

/// Each line is a list. A line with an error is ignored without the other lines.
fn lists(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = Item> {
    values(headers, name).filter_map(|value| Parser::new(value).parse().ok()).flat_map(items)
}

fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

fn items(list: List) -> impl Iterator<Item = Item> {
    list.into_iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    })
}

/// Earlier revisions wrote names as tokens.
fn name_of(item: &Item) -> Option<&str> {
    match &item.bare_item {
        BareItem::String(name) => Some(name.as_str()),
        BareItem::Token(name) => Some(name.as_str()),
        _ => None,
    }
}

fn parameter(parameters: &Parameters, name: &str) -> Option<u64> {
    unsigned(parameters.get(name)?)
}

fn unsigned(item: &BareItem) -> Option<u64> {
    item.as_integer().and_then(|number| u64::try_from(number).ok())
}

fn seconds(number: Option<u64>) -> Option<Duration> {
    number.map(Duration::from_secs)
}
