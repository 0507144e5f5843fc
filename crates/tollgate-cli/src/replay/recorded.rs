//! Decides a logged request by the same plan as `serve`: route, identity, lists, tier, limits and
//! costs.
//!
//! A log lacks some information about requests. [`ASSUMPTIONS`] lists what the replay assumes
//! instead.

use std::borrow::Cow;
use std::hash::RandomState;
use std::net::SocketAddr;

use http::header::HeaderName;
use http::{HeaderValue, Method, Request, StatusCode};
use smallvec::SmallVec;
use tollgate::access::{AccessLists, Listed};
use tollgate::key::{
    ClientIp, Key, KeySource as _, RequestHead, Subject, SubjectKind, TrustedProxies, UnixPeer,
};
use tollgate::limit::OnExceeded;
use tollgate::policy::Cost;
use tollgate::store::{Micros, StoreError};
use tollgate_config::path::{RequestPath, check_characters};
use tollgate_config::plan::{
    ApiPlan, IdentitySource, LimitPlan, Meeting, NoClient, Plan, PlannedCharge, Route, SettleBy,
    Statuses, Whose,
};
use tollgate_llm::{Models, Usage};
use tollgate_replay::log::{Record, Tokens, Visible};
use tollgate_replay::{Answer, Ask, Bounds, Client, Instant, Replay, Report, Request as Recording};

use tollgate_gateway::proxy::{check_method, is_host_and_port};
use tollgate_gateway::serve::{ClientIdentity, Facts, Identity, client_ip, lists};

use super::client_name::Name;

/// The replay's assumptions about information that logs lack.
pub(super) const ASSUMPTIONS: [&str; 9] = [
    "the address in the log is the connection's; forwarding headers count if the log has them",
    "a user in the log has a valid token; tokens and API keys in logged headers are \
     verified as of today",
    "a line without a host matches only routes without hosts",
    "an OPTIONS request is a CORS preflight",
    "a response without a duration finishes immediately",
    "a status is known when the response finishes; without a status, or with 499, the charge is \
     final",
    "costs that responses state in a header or a trailer are not corrected",
    "only the number of waiting requests is limited, not their bytes",
    "no client repeats a request because it was denied",
];

/// The route in reports for lines without a request.
pub(super) const NOT_HTTP: &str = "(not HTTP)";

pub(super) struct Recorded {
    plan: Plan,
    identity: Identity,
    lists: Option<AccessLists>,
    has_users: bool,
    /// A single request, reused for every line.
    request: Request<()>,
    replay: Replay,
    hide: Option<RandomState>,
    /// Requests without a client, for which client limits have no key.
    pub(super) without_client: u64,
    /// Requests with `X-Forwarded-For` although their peer counts as the client.
    pub(super) not_forwarded: u64,
    peer: ClientIp,
    /// How many bits of IPv4 and IPv6 addresses count.
    prefixes: (u8, u8),
    /// Key sets start to fetch if there is a runtime. This runtime never runs them.
    _runtime: tokio::runtime::Runtime,
}

enum Met<'a> {
    /// No limit. The name is the route or the reason.
    Free(&'a str),
    Forbidden(&'a str),
    Limited {
        route: &'a Route,
        api: Option<usize>,
        path: RequestPath<'a>,
    },
}

impl Recorded {
    /// `hide` is the secret of the hashes that replace client names.
    pub(super) fn new(
        plan: Plan,
        bounds: Bounds,
        hide: Option<RandomState>,
    ) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let entered = runtime.enter();
        let identity = Identity::for_command(&plan).map_err(|error| error.to_string())?;
        let lists = lists(&plan, &identity).map_err(|error| error.to_string())?;
        drop(entered);
        let is_user = |source: &IdentitySource| matches!(source, IdentitySource::User(_));
        let prefixes = |source: &IdentitySource| match source {
            IdentitySource::Ip { v4_prefix, v6_prefix, .. } => Some((*v4_prefix, *v6_prefix)),
            _ => None,
        };
        let prefixes = plan.identity.iter().find_map(prefixes).unwrap_or((32, 64));
        let peer = client_ip(&TrustedProxies::none(), None, prefixes.0, prefixes.1);
        let peer = peer.map_err(|error| error.to_string())?;
        let bounds = Bounds { waiting: plan.waiting.0, ..bounds };
        let mut request = Request::new(());
        // Only lines without an address have this peer, with which the other lists still work.
        request.extensions_mut().insert(UnixPeer);
        Ok(Self {
            has_users: plan.identity.iter().any(is_user),
            plan,
            identity,
            lists,
            request,
            replay: Replay::within(bounds),
            hide,
            without_client: 0,
            not_forwarded: 0,
            peer,
            prefixes,
            _runtime: runtime,
        })
    }

    pub(super) fn decide(&mut self, record: &Record<'_>) -> Result<Answer, StoreError> {
        let found = self.describe(record);
        let subject = found.subject();
        let client = subject.as_ref().map(Option::as_ref).map_err(|error| *error);
        let subject = client.ok().flatten();
        self.note_proxy(subject, record);
        let Self { plan, lists, request: described, replay, hide, prefixes, .. } = self;
        let head = RequestHead::of(described);
        let met = met(plan, lists.as_ref(), &head, record);
        let prefixes = *prefixes;
        let name = Name { subject, record, hide: hide.as_ref(), prefixes };
        let named = subject.map(|subject| Client { key: &subject.key, name: &name });
        let duration = record.duration.unwrap_or_default();
        let mut request =
            Recording { at: record.at, client: named, route: "", asks: &[], duration };
        let (route, api, path) = match &met {
            Met::Free(route) => {
                request.route = route;
                return replay.request(&request);
            }
            Met::Forbidden(route) => {
                request.route = route;
                return replay.forbid(&request).map(|()| Answer::Denied);
            }
            Met::Limited { route, api, path } => (*route, *api, &*path.normal),
        };
        request.route = &route.name;
        self.without_client += u64::from(subject.is_none());
        let mut asks = SmallVec::new();
        let api = api.and_then(|api| route.limits.apis.get(api));
        let of_api = api.into_iter().flat_map(ApiPlan::limits);
        let models = api.and_then(|api| api.llm.as_ref()).map(|llm| &llm.models);
        for limit in route.limits.everywhere().chain(of_api) {
            let cost = match limit.usage() {
                None => limit.costs.of(head.method, path),
                Some(settle) => match usage(record, models, settle) {
                    Some(cost) => cost,
                    // Without tokens in the log, this limit cannot be replayed.
                    None => continue,
                },
            };
            match plan.key(limit, client) {
                Ok(Some(key)) => {
                    append(&mut asks, limit, found.tier, key, cost, record);
                }
                Ok(None) => {}
                Err(NoClient::Missing | NoClient::Ambiguous) => {
                    return replay.forbid(&request).map(|()| Answer::Denied);
                }
            }
        }
        request.asks = &asks;
        replay.request(&request)
    }

    pub(super) fn resolved(&mut self) -> impl Iterator<Item = (u64, Answer)> + '_ {
        self.replay.resolved()
    }

    /// Names the client, and describes the request.
    pub(super) fn in_words(&mut self, record: &Record<'_>) -> (String, String) {
        let found = self.describe(record);
        let subject = found.subject().ok().flatten();
        let (hide, prefixes) = (self.hide.as_ref(), self.prefixes);
        let client = Name { subject: subject.as_ref(), record, hide, prefixes }.to_string();
        let target = if hide.is_some() { "(path hidden)" } else { record.target };
        let Record { file, line, at, method, .. } = *record;
        let (at, method, target) = (Instant(at), Visible(method), Visible(target));
        let request = format!("line {line} of {file}: {at} {method} {target} of {client}");
        (client, request)
    }

    /// Returns the client and the path if limits charge the request. Only such requests show which
    /// limits fit.
    pub(super) fn charged<'r>(
        &'r mut self,
        record: &'r Record<'r>,
    ) -> Option<(Option<Subject>, Cow<'r, str>)> {
        let found = self.describe(record);
        let subject = found.subject().ok().flatten();
        self.note_proxy(subject.as_ref(), record);
        let head = RequestHead::of(&self.request);
        let Met::Limited { path, .. } = met(&self.plan, self.lists.as_ref(), &head, record) else {
            return None;
        };
        Some((subject, path.normal))
    }

    fn note_proxy(&mut self, subject: Option<&Subject>, record: &Record<'_>) {
        // Envoy logs the header after it has appended its peer.
        let is_forwarded = |(name, value): &(&str, &str)| {
            name.eq_ignore_ascii_case("x-forwarded-for")
                && value.trim().parse().ok() != record.address
        };
        if let Some(Subject { kind: SubjectKind::Ip, key }) = subject
            && record.headers.iter().any(is_forwarded)
            && let Ok(Some(peer)) = self.peer.subject(&RequestHead::of(&self.request))
        {
            self.not_forwarded += u64::from(peer.key == *key);
        }
    }

    pub(super) fn finish(&mut self) -> Result<Report, StoreError> {
        self.replay.finish()
    }

    fn describe(&mut self, record: &Record<'_>) -> ClientIdentity {
        let request = &mut self.request;
        *request.method_mut() = Method::from_bytes(record.method.as_bytes()).unwrap_or_default();
        request.headers_mut().clear();
        for (name, value) in &record.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                request.headers_mut().append(name, value);
            }
        }
        let extensions = request.extensions_mut();
        match (record.address, extensions.get_mut::<SocketAddr>()) {
            // In place, because an insertion allocates.
            (Some(address), Some(known)) => known.set_ip(address),
            (Some(address), None) => drop(extensions.insert(SocketAddr::new(address, 0))),
            (None, _) => drop(extensions.remove::<SocketAddr>()),
        }
        let user = record.user.filter(|_| self.has_users);
        let tier = |tier: &str| self.plan.tiers.iter().position(|name| name == tier);
        let user = user.and_then(|user| self.identity.user(user, record.tier.and_then(tier)));
        let is_listed = self.lists.is_some();
        let client = user.unwrap_or_else(|| self.identity.find(&RequestHead::of(&self.request)));
        if is_listed {
            self.request.extensions_mut().insert(Facts::new(client.clone()));
        }
        client
    }
}

/// The limits that a recorded request matches.
fn met<'a>(
    plan: &'a Plan,
    lists: Option<&AccessLists>,
    head: &RequestHead<'_>,
    record: &Record<'a>,
) -> Met<'a> {
    if record.method.is_empty() {
        return Met::Free(NOT_HTTP);
    }
    let (host, path) = parts(record);
    // `serve` rejects these requests before any limit, see `admit`.
    if check_method(head.method).is_err() {
        return Met::Free("(bad method)");
    }
    let Ok(host) = host.map(str::parse).transpose() else { return Met::Free("(bad host)") };
    if host.as_ref().is_some_and(|host| !is_host_and_port(host)) {
        return Met::Free("(bad host)");
    }
    let path = check_characters(record.target).and_then(|()| plan.paths.read(path));
    let Ok(path) = path else { return Met::Free("(bad path)") };
    let route = match plan.route(host.as_ref(), &path.normal) {
        Ok(Some(route)) => &plan.routes[route],
        Ok(None) => return Met::Free("(no route)"),
        Err(_) => return Met::Free("(bad path)"),
    };
    let listed = lists.map_or(Ok(Listed::Neither), |lists| lists.find(head));
    let listed = listed.unwrap_or(Listed::Neither);
    let is_preflight = *head.method == Method::OPTIONS;
    match plan.meets(&route.limits, listed, head.method, &path, is_preflight) {
        Ok(Meeting::Limits { api }) => Met::Limited { route, api, path },
        // The preflight limit is per minute and address, and too high to matter in a report.
        Ok(Meeting::Unlimited(_) | Meeting::Preflight(_)) => Met::Free(&route.name),
        Ok(Meeting::Blocked) => Met::Forbidden(&route.name),
        Err(_) => Met::Free("(bad path)"),
    }
}

fn parts<'a>(record: &Record<'a>) -> (Option<&'a str>, &'a str) {
    let target = record.target.split(['?', '#']).next().unwrap_or_default();
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    match absolute {
        None => (record.host, target),
        Some(rest) => match rest.find('/') {
            Some(slash) => (Some(&rest[..slash]), &rest[slash..]),
            None => (Some(rest), "/"),
        },
    }
}

/// The logged tokens' cost.
fn usage(record: &Record<'_>, models: Option<&Models>, settle: SettleBy) -> Option<Cost> {
    let Tokens { model, input, cached_input, output } = record.tokens?;
    let cached_input = cached_input.min(input);
    let mut usage = Usage::new(input - cached_input, output);
    usage.cached_input = cached_input;
    settle.cost_of(models?.get(model), &usage)
}

/// A recorded request's charges to a limit.
fn append<'a>(
    asks: &mut SmallVec<[Ask<'a>; 4]>,
    limit: &'a LimitPlan,
    tier: Option<usize>,
    key: &'a Key,
    cost: Cost,
    record: &Record<'_>,
) {
    let waits = match limit.excess {
        OnExceeded::Wait { max } if limit.enforce => Some(Micros::from(max)),
        _ => None,
    };
    let failures = limit.penalty.as_ref().and_then(|penalty| penalty.failures.as_deref());
    let is_strike = failures.is_some_and(|failures| contain(failures, record.status));
    for PlannedCharge { policy, cost, enforce } in limit.charges(tier, cost) {
        let (waits, actual) = if policy.is_penalty() {
            // Charging one more unit than reserved counts as a strike.
            (None, is_strike.then_some(Cost::new(2)))
        } else if policy.is_concurrency() {
            (waits, None)
        } else {
            (waits, actual(limit, record))
        };
        let of_client = limit.whose == Whose::Client;
        asks.push(Ask { enforce, of_client, waits, actual, ..Ask::new(policy, key, cost) });
    }
}

fn actual(limit: &LimitPlan, record: &Record<'_>) -> Option<Cost> {
    // If the client left before the response, the charge is final.
    let is_known = !matches!(record.status, 0 | 499);
    if let Some(counts) = &limit.counts
        && is_known
        && !contain(counts, record.status)
    {
        return Some(Cost::ZERO);
    }
    let reserve = limit.reserve.as_ref()?;
    if record.duration.is_some_and(|duration| duration >= Micros::from(reserve.lapse)) {
        return None;
    }
    match reserve.settle {
        SettleBy::Bytes(unit) => Some(Cost::new(record.bytes.div_ceil(unit))),
        SettleBy::Header | SettleBy::Trailer | SettleBy::Tokens | SettleBy::Money => None,
    }
}

/// False for a request without a status, because its outcome is unknown.
fn contain(statuses: &[Statuses], status: u16) -> bool {
    let status = StatusCode::from_u16(status);
    status.is_ok_and(|status| statuses.iter().any(|it| it.contain(status)))
}
