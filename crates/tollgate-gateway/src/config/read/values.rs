//! Clients by a header, a cookie or a query parameter.

use http::HeaderName;

use super::super::problem::Problems;
use super::super::view::Item;
use super::identity::networks;
use crate::plan::{ValuePlace, ValuePlan};

/// The source that an item of `identity` describes. `word` is its key.
pub(super) fn value(word: &str, item: &Item<'_>, problems: &mut Problems) -> Option<ValuePlan> {
    let view = item.view();
    let Some(view) = view.filter(|view| view.has("name")) else {
        problems.error(
            item.place(),
            format!("`{word}` needs the name of what it reads"),
            format!("write `{{key: {word}, name: …}}`"),
        );
        return None;
    };
    let name = view.text("name")?;
    let place = match word {
        "header" => ValuePlace::Header(HeaderName::from_bytes(name.as_bytes()).ok()?),
        "cookie" => ValuePlace::Cookie(name.to_owned()),
        _ => ValuePlace::Query(name.to_owned()),
    };
    let proxies = if view.has("trustedProxies") { Some(networks(&view)?) } else { None };
    if proxies.is_none() {
        problems.warn(
            item.place(),
            format!("clients can forge the {place}: each value has a quota of its own"),
            "list the proxies that verify it in `trustedProxies`, use `user` or `apiKey`, or add a \
             `global` limit",
        );
    }
    Some(ValuePlan { place, proxies })
}
