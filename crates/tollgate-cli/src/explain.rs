//! `tollgate explain`: a described request's limits, and their decisions at this moment.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use tollgate::Store;
use tollgate::access::Listed;
use tollgate::denial::Reason;
use tollgate::key::{KeyError, RequestHead};
use tollgate::policy::Cost;
use tollgate::store::{Charge, Decision, Outcome, Timestamp, Verdict};
use tollgate_config::check;
use tollgate_config::path::check_characters;
use tollgate_config::plan::{
    LimitPlan, Meeting, NoClient, Plan, Route, SettleBy, StorePlan, Unlimited,
};
use tollgate_engine::{AppliedLimit, Charges, Limits, Mode};

use tollgate_gateway::serve::{ClientIdentity, Facts, Identity, connect, lists};

/// A request described by command line options.
#[derive(Clone, Debug, clap::Args)]
pub struct Described {
    /// The method
    #[arg(long, default_value = "GET")]
    method: Method,
    /// The path as a client would send it
    #[arg(long, default_value = "/")]
    path: String,
    /// The request's host
    #[arg(long)]
    host: Option<String>,
    /// The client's address
    #[arg(long, default_value = "127.0.0.1")]
    ip: IpAddr,
    /// A header, for example `X-API-Key: …`; may be repeated
    #[arg(long, value_name = "FIELD: VALUE", value_parser = field)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// The user, instead of a token
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The user's tier
    #[arg(long, requires = "user")]
    tier: Option<String>,
    /// Do not read the store: show which limits apply, without their decisions
    #[arg(long)]
    dry: bool,
}

impl Described {
    fn request(&self, path: &str) -> Result<Request<()>, String> {
        let path: PathAndQuery = path.parse().map_err(|_| "the path is invalid".to_owned())?;
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from(path);
        request.headers_mut().extend(self.header.iter().cloned());
        if let Some(host) = &self.host {
            let wrong =
                || format!("`{host}` is not a host; write it as shop.example or shop.example:8080");
            host.parse::<Authority>().map_err(|_| wrong())?;
            let host = HeaderValue::try_from(host).map_err(|_| wrong())?;
            request.headers_mut().insert(HOST, host);
        }
        request.extensions_mut().insert(SocketAddr::new(self.ip, 0));
        Ok(request)
    }
}

/// Describes the decision for the request, one sentence per line. The request is not charged.
pub fn explain(plan: &Plan, described: &Described, out: &mut String) -> Result<(), String> {
    let _ = writeln!(out, "{} {} from {}", described.method, described.path, described.ip);
    let path = described.path.split('?').next().unwrap_or_default();
    let sent = check_characters(&described.path).and_then(|()| plan.paths.read(path));
    let sent = match sent {
        Ok(path) => path,
        Err(fault) => return end(out, &format!("is answered with 400: {fault}")),
    };
    let path = &*sent.normal;
    let host = described.host.as_ref().and_then(|host| host.parse().ok());
    let route = match plan.route(host.as_ref(), path) {
        Ok(Some(route)) => &plan.routes[route],
        Ok(None) => return end(out, "is answered with 404: no route matches it"),
        Err(fault) => return end(out, &format!("is answered with 400: {fault}")),
    };
    let _ = writeln!(out, "goes to route {}, {}", route.name, check::target(route.target.as_ref()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    // Fetching key sets needs a runtime.
    let client = runtime.block_on(async { FoundClient::find(plan, described, path) })?;
    let is_preflight = RequestHead::of(&described.request(path)?).is_preflight();
    let limits = &route.limits;
    let api = match plan.meets(limits, client.listed, &described.method, &sent, is_preflight) {
        Err(fault) => return end(out, &format!("is answered with 400: {fault}")),
        Ok(Meeting::Blocked) => return end(out, "is answered with 403: a list denies it"),
        Ok(Meeting::Unlimited(Unlimited::Allowlist)) => {
            return end(out, "is not limited: a list allows it");
        }
        Ok(Meeting::Unlimited(Unlimited::Exempt)) => {
            return end(out, "is not limited: the path is exempt");
        }
        Ok(Meeting::Unlimited(Unlimited::Preflight)) => {
            return end(out, "is not limited: it is a CORS preflight");
        }
        Ok(Meeting::Preflight(limit)) => {
            let amount = limit.policy().map(check::amount).unwrap_or_default();
            return end(out, &format!("is a CORS preflight: {amount} per client address"));
        }
        Ok(Meeting::Unlimited(Unlimited::NoLimit)) => None,
        Ok(Meeting::Limits { api }) => api,
    };
    let _ = writeln!(out, "{}", client.in_words(plan));
    let limits = match self::limits(plan, route, api, described, path, &client, out) {
        Ok(limits) => limits,
        Err(NoClient::Missing) => {
            let status = plan.missing_key_status.as_u16();
            return end(out, &format!("is answered with {status}: it has no client"));
        }
        Err(NoClient::Ambiguous) => {
            let status = Reason::AmbiguousKey.status().as_u16();
            return end(out, &format!("is answered with {status}: it has several keys or tokens"));
        }
    };
    if limits.charges.is_empty() {
        return end(out, "  no limit applies");
    }
    match &plan.store {
        _ if described.dry => {}
        StorePlan::Memory(_) => {
            let _ = writeln!(
                out,
                "the serving process has the counts in memory: see GET http://{}/status at its \
                 admin address",
                plan.admin.address
            );
        }
        StorePlan::Redis(redis) => {
            let verdict = runtime.block_on(async {
                let store = connect(redis)?;
                let connected = tokio::time::timeout(PATIENCE, store.connected());
                connected.await.map_err(|_| {
                    format!(
                        "there is no connection to Redis after {PATIENCE:?}; check `store.redis`, \
                         or do not read it (`--dry`)"
                    )
                })?;
                store.decide(&limits.queries()).await.map_err(|error| error.to_string())
            })?;
            write_verdict(out, &limits, &verdict);
        }
    }
    Ok(())
}

fn end(out: &mut String, sentence: &str) -> Result<(), String> {
    let _ = writeln!(out, "{sentence}");
    Ok(())
}

/// Long enough for any connection that can succeed.
const PATIENCE: Duration = Duration::from_secs(5);
const COSTS: [u64; 4] = [1, 3, 5, 10];

/// A request's limits and its charges to them.
struct Charged {
    rules: Limits,
    charges: Charges,
}

impl Charged {
    /// For each charge, the request's own cost and then the other costs.
    fn queries(&self) -> Vec<Charge<'_>> {
        let costs = |applied: &AppliedLimit| [applied.cost].into_iter().chain(COSTS.map(Cost::new));
        let query = |applied, cost| Charge { cost, ..self.rules.charge(applied) }.dry();
        let each = self.charges.iter().flat_map(|it| costs(it).map(move |cost| (it, cost)));
        each.map(|(applied, cost)| query(applied, cost)).collect()
    }
}

struct FoundClient {
    identity: ClientIdentity,
    listed: Listed,
}

impl FoundClient {
    /// Must be called within a runtime.
    fn find(plan: &Plan, described: &Described, path: &str) -> Result<Self, String> {
        let identity = Identity::for_command(plan).map_err(|error| error.to_string())?;
        let mut request = described.request(path)?;
        let client = match described.user.as_deref() {
            None => identity.find(&RequestHead::of(&request)),
            Some("") => return Err("`--user` is empty".to_owned()),
            Some(user) => {
                let tier = described.tier.as_ref().map(|name| {
                    let tier = plan.tiers.iter().position(|tier| tier == name);
                    tier.ok_or_else(|| format!("there is no tier `{}`", name.escape_debug()))
                });
                let client = identity.user(user, tier.transpose()?);
                client.ok_or("`identity` has no users: leave out `--user`")?
            }
        };
        // For the lists, which may contain users.
        request.extensions_mut().insert(Facts::new(client.clone()));
        let lists = lists(plan, &identity).map_err(|error| error.to_string())?;
        let listed =
            lists.map_or(Ok(Listed::Neither), |lists| lists.find(&RequestHead::of(&request)));
        let listed = listed.map_err(|error| error.to_string())?;
        match client.subject() {
            Ok(_) | Err(KeyError::Ambiguous) => Ok(Self { identity: client, listed }),
            Err(error) => Err(error.to_string()),
        }
    }

    fn in_words(&self, plan: &Plan) -> String {
        let subject = match self.identity.subject() {
            Ok(Some(subject)) => subject,
            Ok(None) => return format!("has no client: it {}", check::without_key(plan)),
            Err(_) => return "has several keys or tokens".to_owned(),
        };
        let tier = self.identity.tier.and_then(|tier| plan.tiers.get(tier));
        let tier = tier.map_or_else(|| "no tier".to_owned(), |tier| format!("tier {tier}"));
        format!("counts for its {}, in {tier}", subject.kind.as_str())
    }
}

fn limits(
    plan: &Plan,
    route: &Route,
    api: Option<usize>,
    described: &Described,
    path: &str,
    client: &FoundClient,
    out: &mut String,
) -> Result<Charged, NoClient> {
    let (subject, tier) = (client.identity.subject(), client.identity.tier);
    let subject = subject.as_ref().map(Option::as_ref).map_err(|error| *error);
    let everywhere = route.limits.everywhere().map(|limit| ("every request".to_owned(), limit));
    let of_api = api.and_then(|api| route.limits.apis.get(api));
    let of_api = of_api.into_iter().flat_map(|api| {
        api.limits().map(move |limit| (format!("{} {}", api.methods, api.path), limit))
    });
    for (what, limit) in everywhere.chain(of_api) {
        let _ = check::write_limit(out, plan, &what, limit);
        if limit.policy().is_some() && limit.quotas_in(tier).next().is_none() {
            let _ = writeln!(out, "    which does not apply in this tier");
        }
        let cost = limit.costs.of(&described.method, path);
        for policy in limit.quotas_in(tier) {
            let amount = check::amount_of(limit, policy);
            let takes = match limit.usage() {
                Some(SettleBy::Money) => "the price of its tokens".to_owned(),
                Some(_) => "its tokens".to_owned(),
                None => cost.get().to_string(),
            };
            let _ = writeln!(out, "    of {amount} this request takes {takes}");
        }
    }
    let rules = route.limits.rules(api, plan.tiers.len());
    let cost = |limit: &LimitPlan| Some(limit.costs.of(&described.method, path));
    let charges = plan.charges(&route.limits, api, &rules, subject, tier, cost)?;
    Ok(Charged { rules, charges })
}

fn write_verdict(out: &mut String, limits: &Charged, verdict: &Verdict) {
    let at = verdict.decided_at();
    let _ = writeln!(out, "now, {}:", instant(at));
    let (mut passes, mut exceeded) = (true, Vec::new());
    let decisions = verdict.decisions().chunks(1 + COSTS.len());
    for (applied, decisions) in limits.charges.iter().zip(decisions) {
        let Some((this, others)) = decisions.split_first() else { continue };
        let (policy, mode) = (limits.rules.policy(applied), limits.rules.of(applied).mode);
        passes &= !mode.enforces() || this.allows();
        if mode == Mode::Annotate && !this.allows() {
            exceeded.push(policy.name());
        }
        if policy.is_penalty() {
            let _ = writeln!(out, "  {}: requests pass {}", policy.name(), when(this, at));
            continue;
        }
        if policy.is_concurrency() {
            // A concurrency limit counts one permit for each request, regardless of its cost.
            let (left, most) = (this.remaining, this.limit);
            let when = when(this, at);
            let name = policy.name();
            let _ = writeln!(out, "  {name}: {left} of {most} left; this request {when}");
            continue;
        }
        let others: Vec<_> = COSTS
            .iter()
            .zip(others)
            .map(|(cost, decision)| format!("{cost} {}", when(decision, at)))
            .collect();
        let _ = writeln!(
            out,
            "  {}: {} of {} left; this request {}; a cost of {}",
            policy.name(),
            this.remaining,
            this.limit,
            when(this, at),
            others.join(", ")
        );
    }
    let _ = match (passes, &*exceeded) {
        (true, []) => writeln!(out, "it would pass"),
        (true, names) => writeln!(out, "it would pass, beyond the quota of {}", names.join(", ")),
        (false, _) => writeln!(out, "it would be denied"),
    };
}

/// Formats as "now", "at 2026-11-22T00:00:00.000000Z", "never" or "unknown".
fn when(decision: &Decision, at: Timestamp) -> String {
    match decision.outcome {
        Outcome::Deny { retry_after } => format!("at {}", instant(at + retry_after)),
        Outcome::ExceedsCapacity => "never".to_owned(),
        Outcome::Undecided => "unknown".to_owned(),
        Outcome::Allow { .. } | Outcome::WouldAllow => "now".to_owned(),
    }
}

fn instant(at: Timestamp) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(at.as_micros()))
}

fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as `Field: value`")?;
    let name = HeaderName::try_from(name.trim()).map_err(|error| error.to_string())?;
    let value = HeaderValue::try_from(value.trim()).map_err(|error| error.to_string())?;
    Ok((name, value))
}
