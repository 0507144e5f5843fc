//! What the values of a file mean together.
//!
//! Everything is read even where something is wrong, so that all problems are told at
//! once. What cannot be made without a value that is wrong is left out silently: the value
//! is told already.

mod beside;
mod costs;
mod identity;
mod limits;
mod paths;
mod policy;
mod quotas;
mod routes;
mod server;
mod settling;
mod store;
mod subjects;
mod target;
mod telemetry;
mod tokens;
mod unmatched;
mod values;

use http::StatusCode;
use tollgate::denial::{Members, Reason};
use tollgate::{HeaderOptions, OnMissingKey};

use super::problem::Problems;
use super::view::View;
use crate::plan::{PathRules, Plan, StorePlan};
use crate::proxy::path::Ambiguous;

/// What is the same for all policies.
struct Shared<'a> {
    /// `rateLimiter`.
    limiter: View<'a>,
    /// Whether the store can fail.
    can_fail: bool,
    /// Whether keys of different clients may be on different servers.
    is_cluster: bool,
    /// Whether requests wait in the queue of an api.
    an_api_queues: bool,
}

/// The plan; `None` where something that it needs is wrong.
pub(super) fn plan(root: &View<'_>, problems: &mut Problems) -> Option<Plan> {
    let limiter = root.view("rateLimiter")?;
    let store = store::store(&limiter, problems);
    let is_cluster = store.as_ref().is_some_and(StorePlan::is_cluster);
    let can_fail = !matches!(store, Some(StorePlan::Memory { .. }));
    let an_api_queues = policy::an_api_queues(&limiter);
    let shared = Shared { limiter: limiter.clone(), can_fail, is_cluster, an_api_queues };

    let tiers = tiers(&limiter, problems)?;
    let mut names = policy::Names::default();
    let limits = limits::limits(&shared, &mut names, problems);
    let routes = routes::routes(root, &shared, &limits, &mut names, problems);
    let identity = identity::identity(&limiter, &tiers, problems);
    let reject_ambiguous = ambiguous(&limiter);
    let exempt = paths::exempt(&limiter, reject_ambiguous == Some(false), problems);
    let exempt_preflights = limiter.flag("exemptPreflights");
    let server = server::server(root, &limiter, problems);
    let headers = headers(&limiter);
    let members = members(&limiter);
    let lists = subjects::lists(&limiter, identity.as_ref().map(|it| &*it.chain), problems);
    let waiting = waiting(&limiter);
    let on_missing_key = on_missing_key(&limiter, problems, identity.as_ref());
    let log = telemetry::log(&limiter);
    let access_log = telemetry::access_log(&limiter);
    let tracing = telemetry::tracing(&limiter, problems);

    // Where it is not known, less is known not to match.
    match reject_ambiguous {
        Some(true) => unmatched::warn(Ambiguous::Refuse, problems),
        _ => unmatched::warn(Ambiguous::Keep, problems),
    }

    let identity = identity?;
    let server = server?;
    let (deny, allow) = lists?;
    let (on_missing_key, missing_key_status) = on_missing_key?;
    Some(Plan {
        listen: server.listen,
        forward_auth: server.forward_auth,
        rate_limits: server.rate_limits,
        admin: server.admin,
        admin_peers: server.admin_peers,
        timeouts: server.timeouts,
        max_tunnels: server.max_tunnels,
        trusted_proxies: identity.proxies,
        paths: PathRules { reject_ambiguous: reject_ambiguous? },
        routes: routes?,
        exempt: exempt?,
        exempt_preflights: exempt_preflights?,
        identity: identity.chain,
        on_missing_key,
        missing_key_status,
        tiers,
        deny,
        allow,
        waiting: waiting?,
        store: store?,
        headers: headers?,
        members: members?,
        log: log?,
        access_log: access_log?,
        tracing: tracing?,
    })
}

/// The names of the tiers.
fn tiers(limiter: &View<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let Some(view) = limiter.view("tiers") else {
        return Some(Vec::new());
    };
    let names: Vec<_> = view.others().iter().map(|(name, _)| (*name).to_owned()).collect();
    if names.len() > MOST_TIERS {
        problems.error(
            limiter.place_of_key("tiers"),
            format!("{} tiers are more than {MOST_TIERS}", names.len()),
            "clients of a tier share its numbers, not its quota: a few tiers do for all of them",
        );
        return None;
    }
    Some(names)
}

/// Each of them has a policy for each route and api.
const MOST_TIERS: usize = 64;

/// What becomes of a request in which nobody is found, and the status if that is refusing it.
fn on_missing_key(
    limiter: &View<'_>,
    problems: &mut Problems,
    identity: Option<&identity::Identity>,
) -> Option<(OnMissingKey, StatusCode)> {
    if limiter.has("onMissingKey") && identity.is_some_and(identity::Identity::always_finds) {
        problems.warn(
            limiter.place_of_key("onMissingKey"),
            "`onMissingKey` has no effect: every request has an address",
            "remove it, or take `ip` out of `identity`",
        );
    }
    if let Some(section) = limiter.view("onMissingKey") {
        let status = section.whole("deny").and_then(|status| u16::try_from(status).ok())?;
        let status = StatusCode::from_u16(status).ok()?;
        if status == StatusCode::TOO_MANY_REQUESTS {
            problems.error(
                section.place_of("deny"),
                "429 says that waiting helps, which it does not where nobody knows who asks",
                "write 401 or 403",
            );
            return None;
        }
        return Some((OnMissingKey::Deny, status));
    }
    let on_missing_key = match limiter.text("onMissingKey")? {
        "pass" => OnMissingKey::Pass,
        "share" => OnMissingKey::Share,
        _ => OnMissingKey::Deny,
    };
    Some((on_missing_key, Reason::MissingKey.status()))
}

fn ambiguous(limiter: &View<'_>) -> Option<bool> {
    let Some(paths) = limiter.view("paths") else {
        return Some(!limiter.has("paths"));
    };
    Some(paths.text("ambiguous")? == "reject")
}

/// How many requests may wait at once, and how many bytes of them.
fn waiting(limiter: &View<'_>) -> Option<(usize, usize)> {
    let (requests, megabytes) = match limiter.view("waiting") {
        Some(view) => (view.whole("requests")?, view.whole("megabytes")?),
        None if limiter.has("waiting") => return None,
        None => (1_024, 64),
    };
    Some((usize::try_from(requests).ok()?, usize::try_from(megabytes << 20).ok()?))
}

fn headers(limiter: &View<'_>) -> Option<HeaderOptions> {
    let headers = HeaderOptions::all();
    let Some(view) = limiter.view("headers") else {
        return Some(headers);
    };
    let headers = headers.ratelimit(view.flag("rateLimit")?);
    let headers = headers.x_ratelimit(view.flag("xRateLimit")?);
    Some(headers.retry_jitter(view.span("retryJitter")?))
}

fn members(limiter: &View<'_>) -> Option<Members> {
    let mut members = Members::new();
    let Some(view) = limiter.view("response").and_then(|view| view.view("members")) else {
        return Some(members);
    };
    for (name, item) in view.others() {
        members = members.with(name, item.text()?).ok()?;
    }
    Some(members)
}
