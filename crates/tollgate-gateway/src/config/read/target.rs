//! Where requests are forwarded to, and how they change on the way.

use http::{HeaderName, HeaderValue};

use super::super::problem::Problems;
use super::super::tables;
use super::super::view::{Item, View};
use crate::plan::PathMatch;
use crate::proxy::{Active, Balance, Edits, Host, Passive, Protocol, Servers, Upstream};

/// The target of a route that takes the paths of `path`.
pub(super) fn target(
    item: &Item<'_>,
    path: &PathMatch,
    problems: &mut Problems,
) -> Option<Upstream> {
    let Some(view) = item.view() else {
        let servers = Servers {
            addresses: vec![tables::server(item.text()?).ok()?],
            protocol: Protocol::Http1,
            balance: Balance::default(),
            passive: Passive::default(),
            active: None,
        };
        return Some(Upstream::to(servers));
    };
    let items = view.items("url");
    let texts = items.iter().map(Item::text).collect::<Option<Vec<_>>>()?;
    let addresses: Vec<_> =
        texts.iter().map(|text| tables::server(text).ok()).collect::<Option<_>>()?;
    if addresses.len() > Servers::MOST {
        problems.error(
            view.place_of("url"),
            format!("the list has {} URLs", addresses.len()),
            format!("write at most {} URLs", Servers::MOST),
        );
        return None;
    }
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            problems.warn(items[index].place(), "this URL is in the list twice", "remove one");
        }
    }
    if addresses.len() == 1 {
        for key in ["balance", "maxFailures", "retryAfter"] {
            if view.has(key) {
                problems.warn(
                    view.place_of_key(key),
                    format!("`{key}` has no effect on a single server"),
                    "list further servers in `url`, or remove it",
                );
            }
        }
    }
    let strip_prefix = match view.item("stripPrefix") {
        Some(item) => {
            let prefix = tables::prefix(item.text()?).ok()?;
            if !PathMatch::Below(prefix.clone()).covers(path) {
                problems.error(
                    view.place_of("stripPrefix"),
                    format!(
                        "requests of this route need not begin with `{}`",
                        prefix.escape_debug()
                    ),
                    format!("write `path: {prefix}/*` in the route, or a path below it"),
                );
                return None;
            }
            Some(prefix)
        }
        None => None,
    };
    let active = match view.view("healthCheck") {
        Some(check) => Some(Active {
            path: check.text("path")?.parse().ok()?,
            interval: check.span("interval")?,
            timeout: check.span("timeout")?,
            healthy: check.whole("healthy")?.try_into().ok()?,
            unhealthy: check.whole("unhealthy")?.try_into().ok()?,
        }),
        None if view.has("healthCheck") => return None,
        None => None,
    };
    let max_body = if view.has("maxBodyBytes") { Some(view.whole("maxBodyBytes")?) } else { None };
    let servers = Servers {
        addresses,
        protocol: match view.text("protocol")? {
            "http2" => Protocol::Http2,
            _ => Protocol::Http1,
        },
        balance: match view.text("balance")? {
            "leastBusy" => Balance::LeastBusy,
            _ => Balance::RoundRobin,
        },
        passive: Passive {
            failures: view.whole("maxFailures")?.try_into().ok()?,
            retry_after: view.span("retryAfter")?,
        },
        active,
    };
    Some(Upstream {
        host: if view.flag("preserveHost")? { Host::Client } else { Host::Target },
        strip_prefix,
        request_headers: edits(&view, "requestHeaders")?,
        response_headers: edits(&view, "responseHeaders")?,
        max_body,
        ..Upstream::to(servers)
    })
}

fn edits(view: &View<'_>, key: &str) -> Option<Edits> {
    let mut edits = Edits::default();
    let Some(view) = view.view(key) else { return (!view.has(key)).then_some(edits) };
    for item in view.items("remove") {
        edits.remove(HeaderName::from_bytes(item.text()?.as_bytes()).ok()?).ok()?;
    }
    for (name, value) in view.view("set").iter().flat_map(View::others) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        edits.set(name, HeaderValue::from_str(value.text()?).ok()?).ok()?;
    }
    Some(edits)
}
