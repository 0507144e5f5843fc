//! Finds the limits for recorded and described requests. `replay` and `explain` read, route and
//! charge requests here with the server's functions.

use std::fmt;
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderValue, Request, Uri, Version};
use tollgate::access::{AccessLists, Listed};
use tollgate::denial::Reason;
use tollgate::key::{KeyError, RequestHead};
use tollgate::policy::Cost;
use tollgate_config::files;
use tollgate_config::plan::{
    IdentitySource, LimitPlan, Meeting, NoClient, Plan, Route, SettleBy, TenantNumbers,
    TenantSource, TenantTable, TenantsPlan,
};
use tollgate_engine::{Charges, Limits};
use tollgate_proxy::path::RequestPath;

use super::decide::client_identity::{ClientIdentity, Identity};
use super::decide::facts::Facts;
use super::decide::lists::lists;
use tollgate_proxy::{Fault, Meaning, admit};

/// A plan with its client identity, lists and limits.
#[derive(Debug)]
pub struct Planned {
    pub plan: Plan,
    identity: Identity,
    lists: Option<AccessLists>,
    pub has_users: bool,
    /// Each route's limits for each api, and last for requests that match no api.
    rules: Vec<Vec<Arc<Limits>>>,
    /// The tenants of each file; `None` for sources that commands do not ask.
    tenants: Vec<Option<TenantTable>>,
}

/// Where a limit's numbers come from, if they may be a tenant's own.
#[derive(Debug)]
pub struct Tenant<'a> {
    pub name: String,
    pub source: &'a TenantSource,
    pub numbers: TenantNumbers<'a>,
}

/// A request's target, host and user, beside its head.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// The target as the client sent it.
    pub target: &'a str,
    /// The host, unless it is among the headers.
    pub host: Option<&'a str>,
    pub user: User<'a>,
}

/// A user and a tier, instead of a token.
type User<'a> = Option<(&'a str, Option<usize>)>;

/// A request's client, and its host and path if `serve` accepts them.
#[derive(Debug)]
pub struct Read {
    pub client: ClientIdentity,
    pub meaning: Result<Meaning, Fault>,
}

/// The limits that a request meets on its route.
#[derive(Debug)]
pub struct Met<'a> {
    /// The route's number.
    pub route: usize,
    pub meeting: Meeting<'a>,
}

/// Why a request is answered before any limit.
#[derive(Debug)]
pub enum Refused<'a> {
    Fault(Fault),
    /// `OPTIONS *`, which works as a ping.
    Ping,
    /// The client reads its limits.
    Status,
    /// The lists cannot be checked, because the request has several keys or tokens.
    Ambiguous(&'a Route),
}

impl From<Fault> for Refused<'_> {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => {
                write!(f, "is answered with {}: {fault}", fault.status().as_u16())
            }
            Self::Ping => f.write_str("is answered with 204: `*` stands for the gateway itself"),
            Self::Status => f.write_str("reads the client's limits, and is not charged"),
            Self::Ambiguous(_) => f.write_str(&ambiguous()),
        }
    }
}

pub fn ambiguous() -> String {
    let status = Reason::AmbiguousKey.status().as_u16();
    format!("is answered with {status}: it has several keys or tokens")
}

impl Planned {
    /// Must be called within a runtime, because key sets start to fetch.
    pub fn new(plan: Plan) -> Result<Self, String> {
        let identity = Identity::for_command(&plan).map_err(|error| error.to_string())?;
        let lists = lists(&plan, &identity).map_err(|error| error.to_string())?;
        let is_user = |source: &IdentitySource| matches!(source, IdentitySource::User(_));
        let has_users = plan.identity.iter().any(is_user);
        let rules = |route: &Route| {
            let apis = (0..route.limits.apis.len()).map(Some).chain([None]);
            apis.map(|api| Arc::new(route.limits.rules(api, plan.tiers.len()))).collect()
        };
        let rules = plan.routes.iter().map(rules).collect();
        let tenants = plan.tenants.iter().map(files::known_tenants).collect::<Result<_, _>>()?;
        Ok(Self { plan, identity, lists, has_users, rules, tenants })
    }

    /// The request's tenant, if its numbers can replace those of this limit.
    pub fn tenant(
        &self,
        limit: &LimitPlan,
        client: &ClientIdentity,
        head: &RequestHead<'_>,
    ) -> Option<Tenant<'_>> {
        let number = limit.tenants?.tenants;
        let TenantsPlan { of, source, on_unknown, .. } = self.plan.tenants.get(number)?;
        self.identity.tenant(client, *of)?;
        let name = self.identity.tenant_name(client, *of, head).unwrap_or_default();
        let numbers = match self.tenants.get(number)?.as_ref().map(|table| table.get(&*name)) {
            None => TenantNumbers::Configured,
            Some(None) => TenantNumbers::Unknown(*on_unknown),
            Some(Some(quota)) => TenantNumbers::Known(quota),
        };
        Some(Tenant { name, source, numbers })
    }

    /// Reads a request, and brings it into the form that routes and limits see.
    pub fn read(&self, request: &mut Request<()>, sent: Sent<'_>) -> Read {
        let meaning = self.admit(request, sent.target, sent.host);
        Read { client: self.client(request, sent.user), meaning }
    }

    /// Whether the lists of clients have any effect.
    pub fn has_lists(&self) -> bool {
        self.lists.is_some()
    }

    /// Finds an admitted request's client.
    pub fn client(&self, request: &mut Request<()>, user: User<'_>) -> ClientIdentity {
        let head = RequestHead::of(request);
        let user = user.and_then(|(user, tier)| self.identity.user(user, tier, &head));
        let client = user.unwrap_or_else(|| self.identity.find(&head));
        if self.lists.is_some() {
            // The lists may contain users.
            request.extensions_mut().insert(Facts::new(client.clone()));
        }
        client
    }

    /// Brings a request into the form that routes see. If it has no headers, only its method, target
    /// and host matter.
    pub fn admit(
        &self,
        request: &mut Request<()>,
        target: &str,
        host: Option<&str>,
    ) -> Result<Meaning, Fault> {
        let target = target.parse::<Uri>();
        let is_target = target.is_ok();
        *request.uri_mut() = target.unwrap_or_default();
        if let Some(host) = host {
            let host = HeaderValue::from_str(host).map_err(|_| Fault::Host)?;
            request.headers_mut().insert(HOST, host);
        }
        // Only a request of HTTP/1.0 may have no host.
        let has_host = request.headers().contains_key(HOST);
        *request.version_mut() = if has_host { Version::HTTP_11 } else { Version::HTTP_10 };
        if is_target { admit(request, self.plan.paths) } else { Err(Fault::Head) }
    }

    /// Finds an admitted request's route and its limits there.
    pub fn meets(
        &self,
        head: &RequestHead<'_>,
        meaning: &Meaning,
        is_preflight: bool,
    ) -> Result<Met<'_>, Refused<'_>> {
        let original = meaning.original.as_ref().map(|original| original.path().into());
        let path = RequestPath { normal: head.uri.path().into(), original };
        if *path.normal == *"*" {
            return Err(Refused::Ping);
        }
        if !is_preflight && self.plan.is_status(&path.normal) {
            return Err(Refused::Status);
        }
        let number = self.plan.route(meaning.host.as_ref(), &path.normal).map_err(Fault::from)?;
        let number = number.ok_or(Fault::NoRoute)?;
        let route = &self.plan.routes[number];
        let listed = match self.lists.as_ref().map(|lists| lists.find(head)) {
            Some(Err(KeyError::Ambiguous)) => return Err(Refused::Ambiguous(route)),
            // A recorded request may have no address.
            None | Some(Err(_)) => Listed::Neither,
            Some(Ok(listed)) => listed,
        };
        let meeting = self.plan.meets(&route.limits, listed, head.method, &path, is_preflight);
        Ok(Met { route: number, meeting: meeting.map_err(Fault::from)? })
    }

    /// Returns the request's limits and its charges to them. `usage` returns the cost under a
    /// budget for language models, if it is known.
    pub fn charges(
        &self,
        head: &RequestHead<'_>,
        route: usize,
        api: Option<usize>,
        client: &ClientIdentity,
        usage: impl Fn(SettleBy) -> Option<Cost>,
    ) -> Result<(&Arc<Limits>, Charges), NoClient> {
        let limits = &self.plan.routes[route].limits;
        let rules = &self.rules[route][api.unwrap_or(limits.apis.len())];
        let cost = |limit: &LimitPlan| match limit.usage() {
            // Neither a log nor a description has a body.
            _ if self.plan.reads_body(limit) => None,
            None => Some(limit.costs.of(head.method, head.uri.path())),
            Some(settle) => usage(settle),
        };
        let subject = |whose| client.subject_of(whose);
        let tenant = |limit: &LimitPlan| {
            let tenant = self.tenant(limit, client, head);
            tenant.map_or(TenantNumbers::Configured, |tenant| tenant.numbers)
        };
        let charges = self.plan.charges(limits, api, rules, subject, client.tier, tenant, cost)?;
        Ok((rules, charges))
    }
}
