//! Describes a plan.

mod count;
mod limits;
mod tenants;

use std::fmt::{self, Write as _};
use std::path::Path;

use tollgate::limit::OnMissingKey;
use tollgate::policy::Algorithm;
use tollgate_proxy::settings::{Balance, Protocol, Upstream};

pub use self::count::Count;
use self::limits::counted;
use self::limits::span;
pub use self::limits::{amount, amount_of, as_branch, write_limit};
use self::tenants::Tenants;
use crate::plan::{
    AccessLogPlan, Allowed, ApiPlan, Descriptor, ForwardingHeader, Front, GroupSource,
    IdentitySource, KeyOrigin, LimitPlan, Listen, Memory, Plan, Preflights, RateLimitDomain, Route,
    StorePlan, SubjectsPlan, Target, Topology, TracingPlan, ValuePlan,
};

/// Describes a plan's effect, one sentence per line and without secrets.
pub fn in_words(plan: &Plan) -> String {
    let mut out = String::new();
    let _ = write(&mut out, plan);
    out
}

fn write(out: &mut String, plan: &Plan) -> fmt::Result {
    for (front, listen) in &plan.listen {
        match front {
            Front::Proxy => writeln!(out, "listens on {}", Listener(listen))?,
            front => writeln!(out, "{} on {}", front.name(), Listener(listen))?,
        }
    }
    write!(out, "admin on {}", plan.admin.address)?;
    match &plan.admin.peers {
        None => writeln!(out)?,
        Some(peers) => writeln!(out, ", also showing {}", peers.join(", "))?,
    }
    writeln!(out, "quotas are stored {}", store(&plan.store))?;
    if let Some(AccessLogPlan { file, sample, .. }) = &plan.access_log {
        let file = file.as_deref().map_or_else(|| "standard output".into(), Path::to_string_lossy);
        writeln!(out, "requests from {} clients are logged to {file}", sampled(*sample))?;
    }
    if let Some(TracingPlan { endpoint, sample, service_name, .. }) = &plan.tracing {
        writeln!(
            out,
            "spans of `{service_name}` are sent to {endpoint}: {} traces that start here",
            sampled(*sample)
        )?;
    }
    let chain: Vec<_> = plan.identity.iter().map(source).collect();
    writeln!(out, "a client is {}", chain.join(", else "))?;
    if !plan.identity.iter().any(|source| matches!(source, IdentitySource::Ip { .. })) {
        writeln!(out, "a request without a client {}", without_key(plan))?;
    }
    for level in plan.levels.iter().filter(|level| !level.is_combined()) {
        let sources: Vec<_> = level.sources.iter().map(group).collect();
        writeln!(out, "its {} is {}", level.name, sources.join(", else "))?;
    }
    for tenants in &plan.tenants {
        writeln!(out, "{}", Tenants(plan, tenants))?;
    }
    for (outcome, list) in [("denied", &plan.deny), ("never limited", &plan.allow)] {
        if !list.is_empty() {
            writeln!(out, "{outcome}: {}", subjects(list))?;
        }
    }
    for path in &plan.exempt {
        writeln!(out, "not limited: {path}")?;
    }
    if let Some(path) = &plan.status_path {
        writeln!(out, "clients read their limits at {path}")?;
    }
    for path in &*plan.grpc {
        writeln!(out, "gRPC: {path}")?;
    }
    match &plan.preflights {
        Preflights::Charged => writeln!(out, "limited like other requests: CORS preflights")?,
        Preflights::Unlimited => {
            writeln!(out, "not limited: CORS preflights, which any client can send")?;
        }
        Preflights::Limited(limit) => {
            let amount = limit.policy().map(amount).unwrap_or_default();
            writeln!(out, "not charged: CORS preflights, up to {amount} per client address")?;
        }
    }
    if let Some(rules) = &plan.rate_limits {
        let files: Vec<_> = rules.files.iter().map(|file| file.display().to_string()).collect();
        let watches = if rules.shadow { ", not enforced" } else { "" };
        writeln!(out, "Envoy's descriptors are limited by {}{watches}", files.join(", "))?;
    }
    if let Some(socket) = plan.decision_api.as_ref().and_then(|api| api.socket.as_ref()) {
        writeln!(out, "{} on unix:{}", Front::DecisionApi.name(), socket.display())?;
    }
    for policy in plan.decision_api.iter().flat_map(|api| &api.policies) {
        let (name, amount) = (policy.name(), amount(policy));
        writeln!(out, "programs may charge {name}: {amount} per key, {}", counted(policy))?;
    }
    for route in &plan.routes {
        write_route(out, plan, route)?;
    }
    Ok(())
}

/// "all" or "10% of the"
fn sampled(sample: f64) -> String {
    let percent = (sample * 1e6).round() / 1e4;
    if sample == 1.0 { "all".to_owned() } else { format!("{percent}% of the") }
}

pub fn rate_limits_in_words(domain: &RateLimitDomain) -> String {
    let mut out = format!("domain {}\n", domain.name);
    write_descriptors(&mut out, "", &domain.descriptors);
    out
}

fn write_descriptors(out: &mut String, before: &str, descriptors: &[Descriptor]) {
    for descriptor in descriptors {
        let path = format!("{before}{descriptor}");
        let Descriptor { value, rule, shares, nested, .. } = descriptor;
        let allowed = match rule.as_ref().map(|rule| &rule.allowed) {
            None => "not limited".to_owned(),
            Some(None) => "unlimited".to_owned(),
            Some(Some(Allowed { requests, unit, algorithm, .. })) => {
                let each = match value {
                    None => " for each value",
                    Some(value) if value.contains('*') && *shares => " for all matches together",
                    Some(value) if value.contains('*') => " for each match",
                    Some(_) => "",
                };
                let rolls = match algorithm {
                    Algorithm::FixedWindowCounter => String::new(),
                    other => format!(", {other}"),
                };
                format!("{requests} per {}{each}{rolls}", unit.name())
            }
        };
        // A node that only leads to longer descriptors has no rule.
        if rule.is_some() || nested.is_empty() {
            let _ = write!(out, "  {path}: {allowed}");
            for replaced in rule.iter().flat_map(|rule| &rule.replaces) {
                let _ = write!(out, ", replaces {replaced}");
            }
            let watches = rule.as_ref().is_some_and(|rule| rule.shadow);
            let only_with_others = rule.as_ref().is_some_and(|rule| rule.quota);
            if only_with_others {
                out.push_str(", denies only together with all quota mode rules");
            }
            out.push_str(if watches { ", not enforced\n" } else { "\n" });
        }
        write_descriptors(out, &format!("{path}, "), nested);
    }
}

fn write_route(out: &mut String, plan: &Plan, route: &Route) -> fmt::Result {
    let Route { name, host, path, target, limits } = route;
    let host = host.as_deref().unwrap_or("any host");
    write!(out, "\nroute {name}: {host}, {path}")?;
    match target {
        Some(target) => writeln!(out, " -> {}", Where(target))?,
        None => writeln!(out, ", for other proxies")?,
    }
    write_limits(out, plan, "every request", &limits.everywhere().collect::<Vec<_>>())?;
    for api in &*limits.apis {
        let ApiPlan { methods, path, .. } = api;
        let what = format!("{methods} {path}");
        write_limits(out, plan, &what, &api.limits().collect::<Vec<_>>())?;
    }
    if limits.global.is_none() && limits.client.is_none() && limits.apis.is_empty() {
        writeln!(out, "  no request is limited")?;
    }
    Ok(())
}

fn write_limits(out: &mut String, plan: &Plan, what: &str, limits: &[&LimitPlan]) -> fmt::Result {
    limits.iter().try_for_each(|limit| {
        let mut lines = String::new();
        write_limit(&mut lines, plan, what, limit)?;
        out.push_str(&as_branch(limits, limit, lines));
        Ok(())
    })
}

fn subjects(list: &SubjectsPlan) -> String {
    let kinds = [
        ("network", list.addresses.len()),
        ("API key", list.api_keys.len()),
        ("user", list.users.len()),
    ];
    let kinds = kinds.into_iter().filter(|(_, count)| *count > 0);
    let mut parts: Vec<_> =
        kinds.map(|(kind, count)| Count(count as u64, kind).to_string()).collect();
    parts.extend(list.file.as_ref().map(|file| format!("the clients in {}", file.display())));
    parts.join(", ")
}

/// What happens to a request in which `identity` finds no client.
pub fn without_key(plan: &Plan) -> String {
    match plan.on_missing_key {
        OnMissingKey::Pass => "skips limits per client".to_owned(),
        OnMissingKey::Share => "shares one quota with all requests without a client".to_owned(),
        _ => format!("gets {} if a limit is per client", plan.missing_key_status.as_u16()),
    }
}

fn group(source: &GroupSource) -> String {
    match source {
        GroupSource::ApiKey { groups, .. } => {
            format!("listed for {}", Count(groups.len() as u64, "API key"))
        }
        GroupSource::Claim(name) => format!("the token\'s claim {name}"),
        GroupSource::Header(ValuePlan { parameter, .. }) => {
            format!("the {parameter} that its trusted proxies send")
        }
        GroupSource::Body(name) => format!("the body's field {name}"),
        GroupSource::Everyone => "the same for all requests".to_owned(),
        GroupSource::Parts(parts) => format!("a combination of {} parts", parts.len()),
    }
}

fn source(source: &IdentitySource) -> String {
    match source {
        IdentitySource::User(jwt) => {
            let keys = match &jwt.keys {
                KeyOrigin::Secret(_) => "a shared secret".to_owned(),
                KeyOrigin::Pem { file, algorithm } => {
                    format!("the {algorithm} key in {}", file.display())
                }
                KeyOrigin::JwksFile(file) => format!("the key set in {}", file.display()),
                KeyOrigin::JwksUrl(jwks) => format!(
                    "the key set at {} (refetched after {}, or if a key is missing, at most once \
                     per {})",
                    jwks.shown_url(),
                    span(jwks.max_age.into()),
                    span(jwks.min_refetch.into()),
                ),
            };
            let refused = match jwt.max_refused {
                Some(most) => format!("at most {most} refused tokens per minute and address"),
                None => "any number of refused tokens".to_owned(),
            };
            format!("the token's user, verified by {keys}; {refused}")
        }
        IdentitySource::ApiKey(keys) => {
            format!("the holder of one of {} API keys", keys.keys.len())
        }
        IdentitySource::Certificate => "the owner of the client certificate".to_owned(),
        IdentitySource::Value(ValuePlan { parameter, proxies: Some(_) }) => {
            format!("the {parameter} that its trusted proxies send")
        }
        IdentitySource::Value(ValuePlan { parameter, proxies: None }) => {
            format!("the {parameter} (forgeable: clients can write any value)")
        }
        IdentitySource::Ip { header, v4_prefix, v6_prefix, .. } => {
            let header = match header {
                None => "the address that connects".to_owned(),
                Some(ForwardingHeader::XForwardedFor) => forwarded("X-Forwarded-For"),
                Some(ForwardingHeader::Forwarded) => forwarded("Forwarded"),
                Some(ForwardingHeader::Single(name)) => forwarded(name.as_str()),
            };
            match v4_prefix {
                32 => format!("{header} (IPv6 by /{v6_prefix})"),
                _ => format!("{header} (IPv4 by /{v4_prefix}, IPv6 by /{v6_prefix})"),
            }
        }
    }
}

fn forwarded(header: &str) -> String {
    format!("the address in {header} that trusted proxies send")
}

fn store(store: &StorePlan) -> String {
    match store {
        StorePlan::Memory(Memory { max_keys, max_bytes }) => {
            format!("in memory, at most {max_keys} keys and {} MiB", max_bytes >> 20)
        }
        StorePlan::Redis(redis) => {
            let what = match &redis.topology {
                Topology::Single => "Redis",
                Topology::Cluster => "a Redis Cluster",
                Topology::Sentinel { .. } => "Redis behind Sentinel",
            };
            format!("in {what}, which answers within {}", span(redis.timeout.into()))
        }
    }
}

struct Listener<'a>(&'a Listen);

impl fmt::Display for Listener<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listen { address, tls, proxy_protocol, max_connections, .. } = self.0;
        let max_connections_per_address = self.0.max_connections_per_address;
        write!(f, "{address}")?;
        if let Some(tls) = tls {
            f.write_str(", TLS")?;
            match (&tls.client_ca, tls.is_client_optional) {
                (None, _) => {}
                (Some(_), false) => f.write_str(" with client certificates")?,
                (Some(_), true) => f.write_str(" with optional client certificates")?,
            }
            if let Some(sni) = &tls.sni {
                write!(f, ", {} certificates", 1 + sni.len())?;
            }
        }
        if proxy_protocol.is_some() {
            f.write_str(", PROXY protocol")?;
        }
        if let Some(most) = max_connections {
            write!(f, ", at most {most} connections")?;
        }
        if let Some(most) = max_connections_per_address {
            write!(f, ", at most {most} connections per address")?;
        }
        Ok(())
    }
}

/// "http://localhost:3000"
pub fn target(target: Option<&Target>) -> String {
    target.map_or_else(|| "for other proxies".to_owned(), |target| Where(target).to_string())
}

struct Where<'a>(&'a Target);

impl fmt::Display for Where<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { upstream, own_timeouts, .. } = self.0;
        let Upstream { servers, strip_prefix, request_headers, response_headers, .. } = upstream;
        for (index, address) in servers.addresses.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { " | " })?;
        }
        if servers.protocol == Protocol::Http2 {
            f.write_str(", HTTP/2")?;
        }
        if servers.balance == Balance::LeastBusy {
            f.write_str(", the least busy server")?;
        }
        if let Some(active) = &servers.active {
            write!(f, ", checked every {:?} at {}", active.interval, active.path)?;
        }
        if let Some(prefix) = strip_prefix {
            write!(f, ", without the prefix {prefix}")?;
        }
        for (what, edits) in [("request", request_headers), ("response", response_headers)] {
            if !edits.is_empty() {
                write!(f, ", {what} headers: {edits}")?;
            }
        }
        if let Some(most) = upstream.max_body {
            write!(f, ", bodies up to {most} bytes")?;
        }
        for (index, (key, timeout)) in own_timeouts.iter().enumerate() {
            write!(f, "{} {key} {timeout:?}", if index == 0 { ", timeouts:" } else { "," })?;
        }
        Ok(())
    }
}
