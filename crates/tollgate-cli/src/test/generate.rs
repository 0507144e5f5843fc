//! `tollgate init --test`: first tests for a file with limits.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use http::uri::Authority;
use regex_syntax::hir::{Class, Hir, HirKind};
use tollgate_config::plan::{
    ApiPlan, ForwardingHeader, IdentitySource, LimitPlan, Parameter, PathMatch, Plan, Route,
    StorePlan, Test, Whose,
};
use tollgate_config::{self as config, Source};
use tollgate_engine::PathPattern;
use tollgate_proxy::path::RequestPath;

use super::run_test;
use crate::worst::{self, Threats};

/// Writes tests that the file passes now and that fail after a change with another effect.
///
/// A test that the file does not pass becomes a comment.
pub(crate) fn generate(file: &Path, plan: &Plan, proxy: Option<IpAddr>) -> Result<String, String> {
    let is_shared = matches!(plan.store, StorePlan::Redis(_));
    let mut head = format!(
        "# Run it:  tollgate test limits.test.yaml\nlimits: {}\n",
        quoted(&file.display().to_string())
    );
    if is_shared {
        let _ = writeln!(head, "# The gateways share their quotas.\nreplicas: {REPLICAS}");
    }
    head.push_str("tests:\n");
    let mut out = head.clone();
    for tests in tests(plan, proxy)? {
        let passing = tests.iter().map(|test| Ok((test, passes(&format!("{head}{test}"), plan)?)));
        let passing = passing.collect::<Result<Vec<_>, String>>()?;
        if let Some((test, _)) = passing.iter().find(|(_, passes)| *passes) {
            out.push_str(test);
        } else if let Some((test, _)) = passing.first() {
            out.push_str("  # The limits do not pass this test:\n");
            for line in test.lines() {
                let _ = writeln!(out, "  #{}", &line[1..]);
            }
        }
    }
    Ok(out)
}

/// How many gateways share a store in tests.
const REPLICAS: NonZeroU32 = NonZeroU32::new(3).unwrap();

/// How long the store is lost in tests.
const OUTAGE: Duration = Duration::from_secs(10);

/// The tests, each with its alternatives.
fn tests(plan: &Plan, proxy: Option<IpAddr>) -> Result<Vec<Vec<String>>, String> {
    let clients = Clients::of(plan, proxy)?;
    let mut tests = Vec::new();
    for (limit, way) in ways(plan) {
        tests.push(limit_tests(limit, &way, &clients));
    }
    for exempt in &plan.exempt {
        tests.push(exempt_test(plan, exempt, &clients).into_iter().collect());
    }
    let is_shared = matches!(plan.store, StorePlan::Redis(_));
    let replicas = if is_shared { REPLICAS } else { NonZeroU32::MIN };
    let working = Threats { replicas, store_lost: None, failover: false };
    let lost = Threats { store_lost: Some(OUTAGE), ..working };
    let outage = format!(", storeLost: {}", humantime::format_duration(OUTAGE));
    let of_working = (working, "no schedule gets more through", "");
    let of_lost = (lost, "no more get through while Redis is lost", &*outage);
    for (threats, claim, more) in
        [Some(of_working), is_shared.then_some(of_lost)].into_iter().flatten()
    {
        for (policy, window, at_most) in worst::bounds(plan, threats)? {
            let name = format!("{policy}: {claim}");
            tests.push(vec![worst_test(&name, &policy, window, at_most, more)]);
        }
    }
    Ok(tests)
}

/// Whether a test file passes.
fn passes(text: &str, plan: &Plan) -> Result<bool, String> {
    let (file, report) = config::read_tests(&Source::new("generated", text));
    let file = file.ok_or_else(|| report.to_string())?;
    let passes = |test: &Test| match run_test(&file, test, plan, &|_: &Path| Err(ExitCode::FAILURE))
    {
        Ok((_, failures)) => failures.is_empty(),
        Err(_) => false,
    };
    Ok(file.tests.iter().all(passes))
}

fn worst_test(name: &str, policy: &str, window: Duration, at_most: u64, more: &str) -> String {
    let (name, policy) = (quoted(name), quoted(policy));
    let window = humantime::format_duration(window);
    let bound = format!("atMost: {at_most}, policy: {policy}, in: {window}{more}");
    format!("  - name: {name}\n    worst: {{{bound}}}\n")
}

/// A request that meets a limit.
#[derive(Clone)]
struct Way<'a> {
    host: Option<&'a str>,
    method: Method,
    path: String,
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.method != Method::GET {
            write!(f, ", method: {}", self.method)?;
        }
        write!(f, ", path: {}", quoted(&self.path))?;
        self.host.map_or(Ok(()), |host| write!(f, ", host: {}", quoted(host)))
    }
}

/// Each limit a single time, with a request that meets it.
fn ways(plan: &Plan) -> Vec<(&LimitPlan, Way<'_>)> {
    let mut ways: Vec<(&LimitPlan, Way<'_>)> = Vec::new();
    for route in &plan.routes {
        let mut all = Vec::new();
        for (number, api) in route.limits.apis.iter().enumerate() {
            let ApiPlan { methods, path, limit, .. } = api;
            let method =
                methods.iter().next().and_then(|it| it.parse().ok()).unwrap_or(Method::GET);
            let way = example(path).map(|path| way(route, method, path));
            all.extend(
                way.filter(|way| leads_to(plan, route, way, Some(number))).map(|it| (limit, it)),
            );
        }
        let paths = example(&route.path).into_iter().chain(["/", "/any"].map(str::to_owned));
        let mut free = paths.map(|path| way(route, Method::GET, path));
        let free = free.find(|way| leads_to(plan, route, way, None));
        if let Some(way) = free.or_else(|| all.first().map(|(_, way)| way.clone())) {
            let everywhere = route.limits.everywhere().map(|limit| (limit, way.clone()));
            all.splice(0..0, everywhere);
        }
        // Routes share the limits that they inherit.
        all.retain(|(limit, _)| !matches!(limit.whose, Whose::Group(_)));
        all.retain(|(limit, _)| !ways.iter().any(|(known, _)| known.name == limit.name));
        ways.append(&mut all);
    }
    ways
}

fn way(route: &Route, method: Method, path: String) -> Way<'_> {
    Way { host: route.host.as_deref(), method, path }
}

/// Whether a request reaches this route and meets its limits and this api's limits.
fn leads_to(plan: &Plan, route: &Route, way: &Way<'_>, api: Option<usize>) -> bool {
    let host = way.host.and_then(|host| host.parse::<Authority>().ok());
    let found = plan.route(host.as_ref(), &way.path).ok().flatten();
    let is_route = found.is_some_and(|found| std::ptr::eq(&plan.routes[found], route));
    let path = RequestPath { normal: way.path.as_str().into(), original: None };
    let is_api = route.limits.api(&way.method, &way.path).is_ok_and(|found| found == api);
    is_route && is_api && !plan.is_exempt(&path)
}

/// A path that matches.
fn example(paths: &PathMatch) -> Option<String> {
    let path = match paths {
        PathMatch::Pattern(PathPattern::Exact(path)) => path.to_string(),
        PathMatch::Pattern(PathPattern::Below(path)) => format!("{path}/any"),
        PathMatch::Regex(regex) => {
            let mut path = String::new();
            write_example(&mut path, &regex_syntax::parse(regex.as_str()).ok()?)?;
            path
        }
    };
    (path.starts_with('/') && paths.matches(&path)).then_some(path)
}

/// Writes a text that an expression matches, apart from its boundaries.
fn write_example(out: &mut String, expression: &Hir) -> Option<()> {
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => out.push_str(std::str::from_utf8(&literal.0).ok()?),
        HirKind::Class(Class::Unicode(class)) => {
            let has =
                |letter: &char| class.iter().any(|it| (it.start()..=it.end()).contains(letter));
            out.push(('a'..='z').chain('0'..='9').chain(' '..='~').find(has)?);
        }
        HirKind::Class(Class::Bytes(_)) => return None,
        HirKind::Repetition(repetition) => {
            (0..repetition.min).try_for_each(|_| write_example(out, &repetition.sub))?;
        }
        HirKind::Capture(capture) => write_example(out, &capture.sub)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write_example(out, part))?,
        HirKind::Alternation(parts) => write_example(out, parts.first()?)?,
    }
    Some(())
}

/// How tests identify clients.
enum Clients {
    Address,
    /// By a header that this proxy writes.
    Proxied(IpAddr, String),
    User,
    /// By a header that clients or a proxy write.
    Header(Option<IpAddr>, String),
}

/// Addresses of proxies in common networks.
const PROXIES: [&str; 5] = ["10.0.0.1", "127.0.0.1", "172.16.0.1", "192.168.0.1", "fc00::1"];

impl Clients {
    fn of(plan: &Plan, proxy: Option<IpAddr>) -> Result<Self, String> {
        let proxies = || proxy.into_iter().chain(PROXIES.iter().filter_map(|it| it.parse().ok()));
        for source in &plan.identity {
            match source {
                IdentitySource::User(_) => return Ok(Self::User),
                IdentitySource::Value(value) => {
                    let Parameter::Header(name) = &value.parameter else { continue };
                    let trusted = value.proxies.as_ref();
                    let proxy =
                        trusted.and_then(|trusted| proxies().find(|it| trusted.contains(*it)));
                    return Ok(Self::Header(proxy, name.to_string()));
                }
                IdentitySource::Ip { trusted_proxies, header, .. } => {
                    let name = match header {
                        None | Some(ForwardingHeader::XForwardedFor) => "X-Forwarded-For",
                        Some(ForwardingHeader::Forwarded) => "Forwarded",
                        Some(ForwardingHeader::Single(name)) => name.as_str(),
                    };
                    let trusted = proxies().find(|it| trusted_proxies.contains(*it)).or(proxy);
                    let proxied = |proxy| Self::Proxied(proxy, name.to_owned());
                    return Ok(trusted.map_or(Self::Address, proxied));
                }
                // Tests cannot know the keys and the certificates.
                IdentitySource::ApiKey(_) | IdentitySource::Certificate => {}
            }
        }
        Err("no client can be made up: write a test with one of your API keys, as in \
             `header: 'X-API-Key: …'` [TG0710]"
            .to_owned())
    }

    /// The keys of requests by the client with this number, or of as many clients.
    fn keys(&self, client: u32) -> String {
        match self {
            Self::Address => format!("client: 203.0.113.{client}"),
            Self::User => format!("user: user-{client}"),
            Self::Proxied(proxy, name) => {
                let value = if name == "Forwarded" { "for=" } else { "" };
                let line = quoted(&format!("{name}: {value}203.0.113.{client}"));
                format!("client: \"{proxy}\", header: {line}")
            }
            Self::Header(proxy, name) => {
                let proxy = proxy.map(|proxy| format!("client: \"{proxy}\", ")).unwrap_or_default();
                format!("{proxy}header: {}", quoted(&format!("{name}: client-{client}")))
            }
        }
    }

    /// The keys for a request by each of as many clients.
    fn many(&self, clients: u64) -> String {
        match self {
            Self::Address => format!("client: 198.18.0.1, clients: {clients}"),
            // Each address is in another network.
            Self::Proxied(proxy, name) => {
                let address = match name.as_str() {
                    "Forwarded" => "for=\\\"[2001:db8:{client}::1]\\\"",
                    _ => "2001:db8:{client}::1",
                };
                format!("client: \"{proxy}\", clients: {clients}, header: \"{name}: {address}\"")
            }
            Self::User => format!("user: \"user-{{client}}\", clients: {clients}"),
            Self::Header(..) => {
                let keys = self.keys(0).replace("client-0", "client-{client}");
                format!("{keys}, clients: {clients}")
            }
        }
    }
}

/// The limit's quota passes and the next request does not, but another client's does. Two windows
/// later, the client's next request passes. The alternative leaves out what happens later.
fn limit_tests(limit: &LimitPlan, way: &Way<'_>, clients: &Clients) -> Vec<String> {
    let cost = limit.costs.of(&way.method, &way.path).get();
    let policies = limit.quotas_in(None).filter(|_| limit.enforces() && cost > 0);
    let Some(policy) = policies.min_by_key(|policy| policy.capacity()) else { return Vec::new() };
    let (count, name) = (policy.capacity() / cost, policy.name());
    if count > MOST {
        return Vec::new();
    }
    let later = humantime::format_duration(Duration::from(policy.window()) * 2);
    let line = |who: &str, more: &str| format!("      - {{{who}{way}, {more}}}\n");
    let (one, another) = (clients.keys(1), clients.keys(2));
    let filled = match limit.whose {
        Whose::Client | Whose::Group(_) => {
            line(&one, &format!("count: {count}, expect: {{status: 200}}"))
        }
        Whose::Everybody => line(&clients.many(count), "expect: {status: 200}"),
    };
    let denied = format!("expect: {{status: 429, policy: {}}}", quoted(name));
    let mut text = format!(
        "  - name: {}\n    requests:\n{filled}{}",
        quoted(&format!("{name}: {count} pass, and the next is denied")),
        line(&one, &denied)
    );
    if limit.whose == Whose::Client {
        text.push_str(&line(&another, "expect: {status: 200}"));
    }
    vec![text.clone() + &line(&one, &format!("at: {later}, expect: {{status: 200}}")), text]
}

/// More requests than any limit allows pass.
fn exempt_test(plan: &Plan, exempt: &PathMatch, clients: &Clients) -> Option<String> {
    let path = example(exempt)?;
    let limits = plan.routes.iter().flat_map(|route| route.limits.all());
    let capacities = limits.flat_map(|limit| limit.quotas_in(None)).map(|policy| policy.capacity());
    let count = capacities.max()?.min(MOST) + 1;
    let (name, path) = (quoted(&format!("{path} is not limited")), quoted(&path));
    let who = clients.keys(1);
    Some(format!(
        "  - name: {name}\n    requests:\n      - {{{who}, path: {path}, count: {count}, expect: \
         {{status: 200}}}}\n"
    ))
}

/// More requests in a test would take too long.
const MOST: u64 = 9_999;

/// Text in JSON's quotes, which are also valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
