//! Decides a logged request by the same plan as `serve`: route, identity, lists, tier, limits and
//! costs.
//!
//! A log lacks some information about requests. [`ASSUMPTIONS`] lists what the replay assumes
//! instead.

use std::hash::RandomState;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, Request, StatusCode};
use smallvec::SmallVec;
use tollgate::denial::Reason;
use tollgate::key::{
    ClientIp, KeySource as _, RequestHead, Subject, SubjectKind, TrustedProxies, UnixPeer,
};
use tollgate::store::StoreError;
use tollgate_config::plan::{IdentitySource, Meeting, NoClient, Plan};
use tollgate_engine::{Charges, Limits};
use tollgate_gateway::serve::{Met, Planned, Read, Refused, client_ip};
use tollgate_proxy::{Fault, Meaning};
use tollgate_replay::log::{Record, Visible};
use tollgate_replay::{
    Answer, Bounds, Client, Fleet, Instant, Replay, Report, Request as Recording, Resolved,
};

use super::client_name::Name;
use super::corrections::{correction, corrects, usage};
use super::targets::{Place, Targets, describe};

/// The replay's assumptions about information that logs lack.
pub(super) const ASSUMPTIONS: [&str; 12] = [
    "the address in the log is the connection's; forwarding headers count if the log has them",
    "a user in the log has a valid token; tokens and API keys in logged headers are \
     verified as of today",
    "a line without the claim, the API key or the header of a level's group is not limited by \
     that level",
    "no line has a body, so limits by a field of the body do not apply",
    "tenants in a file have their numbers of today; other sources of `tenants` are not asked, so \
     the configured quotas apply",
    "a line without a host matches only routes without hosts",
    "an OPTIONS request is a CORS preflight",
    "a response without a duration finishes immediately",
    "a status is known when the response finishes; without a status, or with 499, the charge is \
     final",
    "costs that responses state in a header or a trailer are not corrected, and a success that a \
     header or a body shows forgives no charges",
    "only the number of waiting requests is limited, not their bytes",
    "no client repeats a request because it was denied",
];

/// The route in reports for lines without a request.
pub(super) const NOT_HTTP: &str = "(not HTTP)";

pub(crate) struct Recorded {
    planned: Planned,
    no_limits: Arc<Limits>,
    /// A single request, reused for every line.
    pub(super) request: Request<()>,
    pub(super) targets: Targets,
    /// Whether responses may correct charges, for each route.
    corrects: Vec<bool>,
    pub(crate) replay: Replay,
    hide: Option<RandomState>,
    /// Requests without a client, for which client limits have no key.
    pub(super) without_client: u64,
    /// Requests with `X-Forwarded-For` although their peer counts as the client.
    pub(super) not_forwarded: u64,
    peer: ClientIp,
    /// How many bits of IPv4 and IPv6 addresses count.
    prefixes: (u8, u8),
    /// Key sets start to fetch if there is a runtime. This runtime never runs them.
    runtime: tokio::runtime::Runtime,
}

/// A decision on a request.
pub(crate) struct Decided<'a> {
    pub(crate) answer: Answer,
    /// The client, if known.
    pub(crate) subject: Option<&'a Subject>,
    /// The status, if the request is answered before any limit.
    pub(crate) refused: Option<StatusCode>,
    pub(crate) limits: &'a Limits,
    pub(crate) charges: &'a Charges,
}

/// What happens to a recorded request before its charges.
enum Found<'a> {
    /// No limit. The name is the route or the reason.
    Free(&'a str, Option<StatusCode>),
    Forbidden(&'a str, Reason),
    Limited {
        /// The route's number.
        route: usize,
        api: Option<usize>,
    },
}

impl Recorded {
    /// `hide` is the secret of the hashes that replace client names.
    pub(super) fn new(
        plan: Plan,
        bounds: Bounds,
        hide: Option<RandomState>,
    ) -> Result<Self, String> {
        Ok(Self { hide, ..Self::in_fleet(plan, &Fleet::default(), bounds)? })
    }

    /// For requests to a simulated fleet.
    pub(crate) fn in_fleet(plan: Plan, fleet: &Fleet, bounds: Bounds) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let entered = runtime.enter();
        let planned = Planned::new(plan)?;
        drop(entered);
        let plan = &planned.plan;
        let corrects = plan.routes.iter().map(corrects).collect();
        let prefixes = |source: &IdentitySource| match source {
            IdentitySource::Ip { v4_prefix, v6_prefix, .. } => Some((*v4_prefix, *v6_prefix)),
            _ => None,
        };
        let prefixes = plan.identity.iter().find_map(prefixes).unwrap_or((32, 64));
        let peer = client_ip(&TrustedProxies::none(), None, prefixes.0, prefixes.1);
        let peer = peer.map_err(|error| error.to_string())?;
        let bounds = Bounds { waiting: plan.waiting.requests, ..bounds };
        let replay = Replay::with_fleet(fleet, bounds).map_err(|error| error.to_string())?;
        let mut request = Request::new(());
        // Only lines without an address have this peer, with which the other lists still work.
        request.extensions_mut().insert(UnixPeer);
        Ok(Self {
            planned,
            no_limits: Arc::new(Limits::new([])),
            request,
            targets: Targets::new(),
            corrects,
            replay,
            hide: None,
            without_client: 0,
            not_forwarded: 0,
            peer,
            prefixes,
            runtime,
        })
    }

    /// Loads another plan. Used units remain.
    pub(crate) fn reload(&mut self, plan: Plan) -> Result<(), String> {
        let _entered = self.runtime.enter();
        self.planned = Planned::new(plan)?;
        self.targets = Targets::new();
        self.corrects = self.planned.plan.routes.iter().map(corrects).collect();
        Ok(())
    }

    pub(super) fn decide(&mut self, record: &Record<'_>) -> Result<Answer, StoreError> {
        self.decide_on(record, 0, |decided| decided.answer)
    }

    /// Decides a request on one of the fleet's processes.
    pub(crate) fn decide_on<R>(
        &mut self,
        record: &Record<'_>,
        replica: usize,
        see: impl FnOnce(Decided<'_>) -> R,
    ) -> Result<R, StoreError> {
        let place = self.targets.place(record);
        let (Read { client, meaning }, limited) = self.read_at(place, record);
        let subject = client.subject().ok().flatten();
        let subject = subject.as_ref();
        self.note_proxy(subject, record);
        let Self { planned, no_limits, request: described, targets, .. } = self;
        let Self { corrects, replay, hide, .. } = self;
        let head = RequestHead::of(described);
        let found = match limited {
            Some((route, api)) => Found::Limited { route, api },
            None => find(planned, &head, meaning, record),
        };
        if let (Found::Limited { route, api }, Some(place), None, false) =
            (&found, place, limited, planned.has_lists())
        {
            targets.set_limited(place, record, (*route, *api));
        }
        let name = Name { subject, record, hide: hide.as_ref(), prefixes: self.prefixes };
        let named = subject.map(|subject| Client { key: &subject.key, name: &name });
        let duration = record.duration.unwrap_or_default();
        let request = Recording::new(record.at, no_limits, Charges::default()).lasting(duration);
        let mut request = Recording { client: named, replica, ..request };
        let none = Charges::default();
        let early = |answer, refused| Decided {
            answer,
            subject,
            refused,
            limits: no_limits,
            charges: &none,
        };
        let forbid = |replay: &mut Replay, request: &Recording<'_>, status| {
            replay.forbid(request).map(|()| early(Answer::Denied, Some(status)))
        };
        let (number, api) = match found {
            Found::Free(route, refused) => {
                let answer = replay.request(&mut request.by(route))?;
                return Ok(see(early(answer, refused)));
            }
            Found::Forbidden(route, reason) => {
                return forbid(replay, &request.by(route), reason.status()).map(see);
            }
            Found::Limited { route, api } => (route, api),
        };
        let route = &planned.plan.routes[number];
        request.route = &route.name;
        self.without_client += u64::from(subject.is_none());
        let llm = api.and_then(|api| route.limits.apis.get(api)).and_then(|api| api.llm.as_ref());
        let models = llm.map(|llm| &llm.models);
        // Without tokens in the log, their limits cannot be replayed.
        let usage = |settle| usage(record, models, settle);
        let (limits, charges) = match planned.charges(&head, number, api, &client, usage) {
            Ok(charged) => charged,
            Err(NoClient::Missing) => {
                return forbid(replay, &request, planned.plan.missing_key_status).map(see);
            }
            Err(NoClient::Ambiguous) => {
                return forbid(replay, &request, Reason::AmbiguousKey.status()).map(see);
            }
            Err(NoClient::UnknownTenant) => {
                return forbid(replay, &request, Reason::MissingKey.status()).map(see);
            }
        };
        let mut corrections = SmallVec::<[_; 4]>::new();
        // Most routes need no look at each limit.
        if corrects[number] {
            // Stepping through these nested iterators would take longer than the decision.
            route.limits.charges(api).for_each(|(number, limit, charge)| {
                corrections.extend(correction(limit, charge, record).map(|it| (number, it)));
            });
        }
        let mut request = Recording { limits, charges, corrections: &corrections, ..request };
        let answer = replay.request(&mut request)?;
        Ok(see(Decided { answer, subject, refused: None, limits, charges: &request.charges }))
    }

    pub(crate) fn resolved(&mut self) -> impl Iterator<Item = Resolved> + '_ {
        self.replay.resolved()
    }

    /// Names the client, and describes the request.
    pub(super) fn in_words(&mut self, record: &Record<'_>) -> (String, String) {
        let subject = self.read(record).client.subject().ok().flatten();
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
        record: &Record<'_>,
    ) -> Option<(Option<Subject>, &'r str)> {
        let Read { client, meaning } = self.read(record);
        let subject = client.subject().ok().flatten();
        self.note_proxy(subject.as_ref(), record);
        let head = RequestHead::of(&self.request);
        let found = find(&self.planned, &head, meaning, record);
        matches!(found, Found::Limited { .. }).then(|| (subject, self.request.uri().path()))
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

    pub(super) fn read(&mut self, record: &Record<'_>) -> Read {
        self.read_at(self.targets.place(record), record).0
    }

    /// Reads a request, and returns the limits that it meets, if they are known.
    fn read_at(
        &mut self,
        place: Option<Place>,
        record: &Record<'_>,
    ) -> (Read, Option<(usize, Option<usize>)>) {
        let Self { request, planned, targets, .. } = self;
        request.headers_mut().clear();
        let known = place.and_then(|place| targets.get(place, record));
        let limited = known.and_then(|known| known.limited);
        let known = known.map(|known| known.describe(request));
        let meaning = known.unwrap_or_else(|| {
            describe(request, record);
            let meaning = planned.admit(request, record.target, record.host);
            if let Some(place) = place {
                targets.note(place, record, request, &meaning);
            }
            meaning
        });
        let extensions = request.extensions_mut();
        match (record.address, extensions.get_mut::<SocketAddr>()) {
            // In place, because an insertion allocates.
            (Some(address), Some(known)) => known.set_ip(address),
            (Some(address), None) => drop(extensions.insert(SocketAddr::new(address, 0))),
            (None, _) => drop(extensions.remove::<SocketAddr>()),
        }
        let tier = |tier: &str| planned.plan.tiers.iter().position(|name| name == tier);
        let user = record.user.filter(|_| planned.has_users);
        let user = user.map(|user| (user, record.tier.and_then(tier)));
        let client = planned.client(request, user);
        (Read { client, meaning }, limited)
    }
}

/// The limits that a recorded request matches.
fn find<'a>(
    planned: &'a Planned,
    head: &RequestHead<'_>,
    meaning: Result<Meaning, Fault>,
    record: &Record<'_>,
) -> Found<'a> {
    if record.method.is_empty() {
        return Found::Free(NOT_HTTP, None);
    }
    let is_preflight = *head.method == Method::OPTIONS;
    let met = meaning.map_err(Refused::from);
    let met = met.and_then(|meaning| planned.meets(head, &meaning, is_preflight));
    let name = |route: usize| &*planned.plan.routes[route].name;
    match met {
        Ok(Met { route, meeting: Meeting::Limits { api } }) => Found::Limited { route, api },
        // The preflight limit is per minute and address, and too high to matter in a report.
        Ok(Met { route, meeting: Meeting::Unlimited(_) | Meeting::Preflight(_) }) => {
            Found::Free(name(route), None)
        }
        Ok(Met { route, meeting: Meeting::Blocked }) => {
            Found::Forbidden(name(route), Reason::DeniedSubject)
        }
        Err(Refused::Ambiguous(route)) => Found::Forbidden(&route.name, Reason::AmbiguousKey),
        Err(Refused::Status) => Found::Free("(the client's limits)", Some(StatusCode::OK)),
        Err(Refused::Ping) => Found::Free("(no route)", Some(StatusCode::NO_CONTENT)),
        Err(Refused::Fault(fault)) => {
            let name = match fault {
                Fault::Connect | Fault::Trace => "(bad method)",
                Fault::Host => "(bad host)",
                Fault::NoRoute => "(no route)",
                _ => "(bad path)",
            };
            Found::Free(name, Some(fault.status()))
        }
    }
}
