//! `tollgate explain`: a described request's limits, and their decisions at this moment.

mod tenant;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request};
use tollgate::Store;
use tollgate::denial::Reason;
use tollgate::key::{KeyError, RequestHead, SubjectFormat, SubjectFormatter};
use tollgate::policy::Cost;
use tollgate::store::{Charge, Decision, Micros, Outcome, Timestamp, Verdict};
use tollgate_config::check;
use tollgate_config::format::header_line;
use tollgate_config::plan::{
    LimitPlan, Meeting, NoClient, Plan, Route, SettleBy, StorePlan, Unlimited, Whose,
};
use tollgate_engine::{AppliedLimit, Charges, Forecast, Limits, Mode};
use tollgate_gateway::serve::{
    ClientIdentity, Met, Planned, Read, Refused, Sent, ambiguous, connect,
};
use tollgate_replay::Instant;

use self::tenant::{policies, write_tenant};

/// A request described by command line options.
#[derive(Clone, Debug, clap::Args)]
pub struct Described {
    /// The method
    #[arg(long, default_value = "GET")]
    method: Method,
    /// The path as a client would send it, with its query
    #[arg(long, default_value = "/")]
    path: String,
    /// The request's host
    #[arg(long)]
    host: Option<String>,
    /// The client's address
    #[arg(long, default_value = "127.0.0.1")]
    ip: IpAddr,
    /// A header, for example `X-API-Key: …`; may be repeated
    #[arg(long, value_name = "FIELD: VALUE", value_parser = header_line)]
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
    fn request(&self) -> Result<Request<()>, String> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        request.headers_mut().extend(self.header.iter().cloned());
        if let Some(host) = &self.host {
            let wrong = |_| {
                format!(
                    "`{host}` is not a host; write it as shop.example or shop.example:8080 [TG0710]"
                )
            };
            host.parse::<Authority>().map_err(wrong)?;
        }
        request.extensions_mut().insert(SocketAddr::new(self.ip, 0));
        Ok(request)
    }

    fn user(&self, planned: &Planned) -> Result<Option<(&str, Option<usize>)>, String> {
        let Some(user) = self.user.as_deref() else { return Ok(None) };
        if user.is_empty() {
            return Err("`--user` is empty [TG0710]".to_owned());
        }
        if !planned.has_users {
            return Err("`identity` has no users: leave out `--user` [TG0710]".to_owned());
        }
        let tier = self.tier.as_ref().map(|name| {
            let tier = planned.plan.tiers.iter().position(|tier| tier == name);
            tier.ok_or_else(|| format!("there is no tier `{}` [TG0125]", name.escape_debug()))
        });
        Ok(Some((user, tier.transpose()?)))
    }
}

/// Describes the decision for the request, one sentence per line. The request is not charged.
pub fn explain(plan: &Plan, described: &Described, out: &mut String) -> Result<(), String> {
    let _ = writeln!(out, "{} {} from {}", described.method, described.path, described.ip);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let planned = runtime.block_on(async { Planned::new(plan.clone()) })?;
    let mut request = described.request()?;
    let (target, host) = (&*described.path, described.host.as_deref());
    let sent = Sent { target, host, user: described.user(&planned)? };
    let Read { client, meaning } = planned.read(&mut request, sent);
    let head = RequestHead::of(&request);
    let met = meaning.map_err(Refused::from);
    let met = met.and_then(|meaning| planned.meets(&head, &meaning, head.is_preflight()));
    let Met { route: number, meeting } = match met {
        Ok(met) => met,
        Err(refused) => return end(out, &refused.to_string()),
    };
    let route = &planned.plan.routes[number];
    let _ = writeln!(out, "goes to route {}, {}", route.name, check::target(route.target.as_ref()));
    let api = match meeting {
        Meeting::Blocked => return end(out, "is answered with 403: a list denies it"),
        Meeting::Unlimited(Unlimited::Allowlist) => {
            return end(out, "is not limited: a list allows it");
        }
        Meeting::Unlimited(Unlimited::Exempt) => {
            return end(out, "is not limited: the path is exempt");
        }
        Meeting::Unlimited(Unlimited::Preflight) => {
            return end(out, "is not limited: it is a CORS preflight");
        }
        Meeting::Preflight(limit) => {
            let amount = limit.policy().map(check::amount).unwrap_or_default();
            return end(out, &format!("is a CORS preflight: {amount} per client address"));
        }
        Meeting::Unlimited(Unlimited::NoLimit) => None,
        Meeting::Limits { api } => api,
    };
    write_client(out, plan, &client)?;
    write_groups(out, plan, &client);
    let are_all_decided = write_limits(out, &planned, route, api, &head, &client);
    // The tokens are not known before the request's body, so only this one is certain.
    let charges = planned.charges(&head, number, api, &client, |_| Some(Cost::ONE));
    let mut limits = match charges {
        Ok((rules, charges)) => Charged { rules: Limits::clone(rules), charges },
        Err(NoClient::Missing) => {
            let status = plan.missing_key_status.as_u16();
            return end(out, &format!("is answered with {status}: it has no client"));
        }
        Err(NoClient::Ambiguous) => return end(out, &ambiguous()),
        Err(NoClient::UnknownTenant) => {
            let status = Reason::MissingKey.status().as_u16();
            return end(out, &format!("is answered with {status}: its tenant is unknown"));
        }
    };
    if limits.charges.is_empty() {
        let other = if are_all_decided { "" } else { "other " };
        return end(out, &format!("  no {other}limit applies"));
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
                limits.override_by(&store).await?;
                store.decide(&limits.queries()).await.map_err(|error| error.to_string())
            })?;
            write_verdict(out, limits, &verdict);
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
    /// Applies operators' overrides.
    async fn override_by(&mut self, store: &impl Store) -> Result<(), String> {
        let Some(overrides) = store.overrides() else { return Ok(()) };
        overrides.refresh().await.map_err(|error| error.to_string())?;
        self.rules = self.rules.clone().overridden_by(Some(overrides), |_, _, _| Box::new(()));
        self.rules.apply_overrides(self.charges.iter_mut());
        Ok(())
    }

    /// For each charge, the request's own cost and then the other costs.
    fn queries(&self) -> Vec<Charge<'_>> {
        let costs = |applied: &AppliedLimit| [applied.cost].into_iter().chain(COSTS.map(Cost::new));
        let query = |applied, cost| Charge { cost, ..Forecast::question(&self.rules, applied) };
        let each = self.charges.iter().flat_map(|it| costs(it).map(move |cost| (it, cost)));
        each.map(|(applied, cost)| query(applied, cost)).collect()
    }
}

fn write_client(out: &mut String, plan: &Plan, client: &ClientIdentity) -> Result<(), String> {
    let subject = match client.subject() {
        Ok(Some(subject)) => subject,
        Ok(None) => return end(out, &format!("has no client: it {}", check::without_key(plan))),
        Err(KeyError::Ambiguous) => return end(out, "has several keys or tokens"),
        Err(error) => return Err(error.to_string()),
    };
    let tier = client.tier.and_then(|tier| plan.tiers.get(tier));
    let tier = tier.map_or_else(|| "no tier".to_owned(), |tier| format!("tier {tier}"));
    end(out, &format!("counts for its {}, in {tier}", subject.kind.as_str()))
}

fn write_groups(out: &mut String, plan: &Plan, client: &ClientIdentity) {
    let formatter = SubjectFormatter::new(SubjectFormat::Clear);
    for (number, level) in plan.levels.iter().enumerate().filter(|(_, it)| !it.is_combined()) {
        let name = &level.name;
        let _ = match client.subject_of(Whose::Group(number)) {
            Ok(Some(group)) => {
                writeln!(out, "its {name} is {}", formatter.format(&group.key, group.kind))
            }
            Ok(None) if level.reads_body(&plan.levels) => {
                writeln!(out, "its {name} is in the body")
            }
            Ok(None) => writeln!(out, "has no {name}"),
            Err(_) => writeln!(out, "has several values for its {name}"),
        };
    }
}

/// Returns whether all limits are decided without the body.
fn write_limits(
    out: &mut String,
    planned: &Planned,
    route: &Route,
    api: Option<usize>,
    head: &RequestHead<'_>,
    client: &ClientIdentity,
) -> bool {
    let everywhere = route.limits.everywhere().map(|limit| ("every request".to_owned(), limit));
    let of_api = api.and_then(|api| route.limits.apis.get(api));
    let of_api = of_api.into_iter().flat_map(|api| {
        api.limits().map(move |limit| (format!("{} {}", api.methods, api.path), limit))
    });
    let all: Vec<_> = everywhere.chain(of_api).collect();
    let limits: Vec<_> = all.iter().map(|(_, limit)| *limit).collect();
    let mut are_all_decided = true;
    for (what, limit) in all {
        let mut lines = String::new();
        let _ = check::write_limit(&mut lines, &planned.plan, &what, limit);
        are_all_decided &= write_use(&mut lines, planned, limit, head, client);
        out.push_str(&check::as_branch(&limits, limit, lines));
    }
    are_all_decided
}

/// Writes what the request takes of a limit. Returns whether it is decided without the body.
fn write_use(
    out: &mut String,
    planned: &Planned,
    limit: &LimitPlan,
    head: &RequestHead<'_>,
    client: &ClientIdentity,
) -> bool {
    let plan = &planned.plan;
    let tenant = planned.tenant(limit, client, head);
    if let Some(tenant) = &tenant {
        write_tenant(out, plan, tenant);
    }
    let policies = policies(limit, client.tier, tenant.as_ref());
    if limit.policy().is_some() && policies.is_empty() {
        let which = if tenant.is_some() { "to this tenant" } else { "in this tier" };
        let _ = writeln!(out, "    which does not apply {which}");
    }
    if plan.reads_body(limit) {
        let _ = writeln!(out, "    which is not decided here, because it depends on the body");
        return false;
    }
    if let (Whose::Group(level), Ok(None)) = (limit.whose, client.subject_of(limit.whose)) {
        let level = plan.levels.get(level).map_or("group", |level| &level.name);
        let _ = writeln!(out, "    which does not apply: the request has no {level}");
        return true;
    }
    let cost = limit.costs.of(head.method, head.uri.path());
    for policy in &policies {
        let amount = check::amount_of(limit, policy);
        let takes = match limit.usage() {
            Some(SettleBy::Money) => "the price of its tokens".to_owned(),
            Some(_) => "its tokens".to_owned(),
            None => cost.get().to_string(),
        };
        let _ = writeln!(out, "    of {amount} this request takes {takes}");
    }
    true
}

fn write_verdict(out: &mut String, limits: Charged, verdict: &Verdict) {
    let at = verdict.decided_at();
    let _ = writeln!(out, "now, {}:", Instant(at));
    let (mut own, mut exceeded) = (Vec::new(), Vec::new());
    let decisions = verdict.decisions().chunks(1 + COSTS.len());
    for (applied, decisions) in limits.charges.iter().zip(decisions) {
        let blocked = applied.own.as_ref().and_then(|own| own.blocked_until);
        let blocked = blocked.map(|until| until.since(at));
        let decided = |it: &Decision| blocked.map_or(*it, |left| it.blocked_for(left));
        let decisions: Vec<_> = decisions.iter().map(decided).collect();
        let Some((this, others)) = decisions.split_first() else { continue };
        let (policy, mode) = (limits.rules.policy(applied), limits.rules.of(applied).mode);
        own.push(*this);
        if mode == Mode::Annotate && !this.allows() {
            exceeded.push(policy.name().to_owned());
        }
        let (name, passes) = (policy.name(), when(this, at));
        if policy.is_penalty() {
            let _ = writeln!(out, "  {name}: requests pass {passes}");
            continue;
        }
        let (left, most) = (this.remaining, this.limit);
        let _ = write!(out, "  {name}: {left} of {most} left; this request {passes}");
        // A concurrency limit counts one permit for each request, regardless of its cost.
        if !policy.is_concurrency() {
            let others = COSTS.iter().zip(others);
            let others = others.map(|(cost, decision)| format!("{cost} {}", when(decision, at)));
            let _ = write!(out, "; a cost of {}", others.collect::<Vec<_>>().join(", "));
        }
        out.push('\n');
    }
    let forecast = Forecast::new(&limits.rules, limits.charges, &Verdict::new(true, at, own));
    let time = |time: Micros| humantime::format_duration(time.into());
    let _ = match forecast {
        Forecast::Pass(Micros::ZERO) => write!(out, "it would pass"),
        Forecast::Pass(delay) => write!(out, "it would pass after {}", time(delay)),
        Forecast::Wait(max) => write!(out, "it would wait up to {}", time(max)),
        Forecast::Reject => write!(out, "it would be denied"),
    };
    let _ = match &*exceeded {
        [] => writeln!(out),
        names => writeln!(out, ", beyond the quota of {}", names.join(", ")),
    };
}

/// Formats as "now", "at 2026-11-22T00:00:00.000000Z", "never" or "unknown".
fn when(decision: &Decision, at: Timestamp) -> String {
    match decision.outcome {
        Outcome::Deny { retry_after } => format!("at {}", Instant(at + retry_after)),
        Outcome::ExceedsCapacity => "never".to_owned(),
        Outcome::Undecided => "unknown".to_owned(),
        Outcome::Allow { .. } | Outcome::WouldAllow => "now".to_owned(),
    }
}
