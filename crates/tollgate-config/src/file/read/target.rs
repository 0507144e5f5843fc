use std::time::Duration;

use http::header::ACCEPT_ENCODING;
use http::uri::Scheme;
use tollgate_engine::PathPattern;
use tollgate_proxy::edits::Edits;
use tollgate_proxy::settings::{
    Address, Connections, HealthCheck, Host, Passive, Servers, Timeouts, Upstream,
};

use crate::code;
use crate::file::tables::{HeaderEdits, RateLimiter, TargetSection};
use crate::files;
use crate::plan::{PathMatch, Target, TargetTlsFiles};
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::typed::{Key, Setting, values};

pub(super) fn target(
    section: &TargetSection,
    path: &PathMatch,
    limiter: &RateLimiter,
) -> Checked<Target> {
    let outer = limiter.timeouts.get()?;
    let timeouts = section.timeouts.get()?;
    let mut own_timeouts = Vec::new();
    let mut timeout = |own: &Key<Option<Duration>>, outer: Duration| {
        let Some(value) = own.value()? else { return Ok(outer) };
        own_timeouts.push((own.key, value));
        Ok(value)
    };
    let connections = Connections {
        timeout: timeout(&timeouts.connect, outer.connect)?,
        idle: timeout(&timeouts.pool, outer.pool)?,
        max_age: timeout(&timeouts.connection_age, outer.connection_age)?,
        lookup_interval: timeout(&timeouts.address_age, outer.address_age)?,
    };
    let timeouts = Timeouts {
        response: timeout(&timeouts.response, outer.response)?,
        body: timeout(&timeouts.idle, outer.idle)?,
        tunnel: timeout(&timeouts.tunnel, outer.tunnel)?,
    };
    let strip_prefix = section.strip_prefix.value()?;
    if let Some(prefix) = &strip_prefix
        && !PathMatch::Pattern(PathPattern::Below(prefix.as_str().into())).covers(path)
    {
        return Err(section.strip_prefix.error(
            code::STRIP_PREFIX,
            format!("requests on this route need not start with `{}`", prefix.escape_debug()),
            format!("write `path: {prefix}/*` in the route, or a path below it"),
        ));
    }
    if limiter.llm.is_set() {
        warn_of_compression(section);
    }
    let upstream = Upstream {
        host: if section.preserve_host.value()? { Host::Client } else { Host::Target },
        strip_prefix,
        request_headers: edits(&section.request_headers)?,
        response_headers: edits(&section.response_headers)?,
        max_body: match section.max_body_bytes.value()? {
            Some(most) => Some(most),
            None => limiter.max_body_bytes.value()?,
        },
        ..Upstream::to(servers(section, connections)?, timeouts)
    };
    Ok(Target { upstream, own_timeouts, tls: tls(section)? })
}

/// The gateway sends `Accept-Encoding: identity` to model servers, and the file can override it.
fn warn_of_compression(section: &TargetSection) {
    let edits = section.request_headers.there();
    let Some(set) = edits.and_then(|edits| edits.set.there()) else { return };
    for (_, value) in set.values.all.iter().filter(|(name, _)| name == ACCEPT_ENCODING) {
        if value.get().is_ok_and(|coding| coding != "identity") {
            value.location.warn(
                code::LLM_COMPRESSION,
                "a compressed response does not show its usage, so `llm` charges the estimate",
                "remove this header: requests to models get `Accept-Encoding: identity`",
            );
        }
    }
}

fn tls(section: &TargetSection) -> Checked<Option<TargetTlsFiles>> {
    let Some(tls) = section.tls.get()? else { return Ok(None) };
    let is_https = |server: &Address| server.endpoint.scheme == Scheme::HTTPS;
    if !values(section.url.get()?)?.iter().any(is_https) {
        section.tls.name().warn(
            code::NO_EFFECT,
            "`tls` has no effect: no server has an https URL",
            "write `https://` in `url`, or remove it",
        );
    }
    let checked = tls.clone();
    section.tls.location().check_with(move || files::target_tls(&checked).err());
    Ok(Some(tls.clone()))
}

fn servers(section: &TargetSection, connections: Connections) -> Checked<Servers> {
    let items = section.url.get()?;
    let addresses = values(items)?;
    if addresses.len() > Servers::MOST {
        return Err(section.url.error(
            code::TOO_MANY,
            format!("the list has {} URLs", addresses.len()),
            format!("write at most {} URLs", Servers::MOST),
        ));
    }
    for (index, item) in items.iter().enumerate() {
        if addresses[..index].contains(&addresses[index]) {
            item.location.warn(code::LISTED_TWICE, "this URL is in the list twice", "remove one");
        }
    }
    let of_several: [&Setting; 3] = [&section.balance, &section.max_failures, &section.retry_after];
    for key in of_several.into_iter().filter(|key| addresses.len() == 1 && key.is_set()) {
        key.name().warn(
            code::NO_EFFECT,
            format!("`{}` has no effect on a single server", key.key),
            "list further servers in `url`, or remove it",
        );
    }
    Ok(Servers {
        addresses,
        protocol: section.protocol.value()?,
        connections,
        balance: section.balance.value()?,
        passive: Passive {
            failures: section.max_failures.value()?,
            retry_after: section.retry_after.value()?,
        },
        active: section.health_check.value()?.map(|check| HealthCheck {
            path: check.path,
            interval: check.interval,
            timeout: check.timeout,
            healthy: check.healthy,
            unhealthy: check.unhealthy,
        }),
    })
}

fn edits(key: &Key<Option<Box<HeaderEdits>>>) -> Checked<Edits> {
    let mut edits = Edits::default();
    let Some(section) = key.get()? else { return Ok(edits) };
    for name in values(section.remove.items()?)? {
        edits.remove(name).map_err(|_| Reported)?;
    }
    if let Some(set) = section.set.get()? {
        for (name, value) in &set.values.all {
            edits.set(name.clone(), value.get()?.clone()).map_err(|_| Reported)?;
        }
    }
    Ok(edits)
}
