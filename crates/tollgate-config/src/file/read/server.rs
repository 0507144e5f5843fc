use std::net::SocketAddr;

use tollgate::key::TrustedProxies;

use crate::code;
use crate::file::tables::{File, RateLimiter};
use crate::files::{self, FileError};
use crate::plan::{Front, Listen, RateLimitsPlan};
use crate::rate_limits::read_rate_limit_files;
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Location, values};

pub(super) fn forward_auth(limiter: &RateLimiter) -> Checked<TrustedProxies> {
    match limiter.forward_auth.get()? {
        Some(section) => section.trusted_proxies.value(),
        None => Ok(TrustedProxies::none()),
    }
}

pub(super) fn rate_limits(limiter: &RateLimiter) -> Checked<Option<RateLimitsPlan>> {
    let Some(service) = limiter.rate_limit_service.get()? else { return Ok(None) };
    let files = values(service.config.get()?)?;
    let merges_domains = service.merge_domains.value()?;
    let named = files.clone();
    service.config.location().check_with(move || {
        let errors = read_rate_limit_files(&named, merges_domains).err().unwrap_or_default();
        errors.into_iter().map(|error| {
            let what = format!("{}: {}", error.file.display(), error.what);
            FileError { what, ..error }
        })
    });
    Ok(Some(RateLimitsPlan {
        files,
        on_store_error: limiter.on_store_error.value()?,
        shadow: limiter.shadow.value()?,
        merges_domains,
        response_headers: service.response_headers.value()?,
        dynamic_metadata: service.dynamic_metadata.value()?,
    }))
}

/// Reports keys about requests that the gateway does not see because it only answers Envoy or
/// programs.
pub(super) fn check_only_rate_limits(root: &File, limiter: &RateLimiter) {
    let forwards = root.has_target(limiter) || limiter.listen.is_set();
    let fronts = [
        (
            limiter.rate_limit_service.is_set(),
            "rateLimitService",
            "a file of `rateLimitService.config`",
        ),
        (limiter.decision_api.is_set(), "decisionApi", "`decisionApi.policies`"),
    ];
    let front = fronts.into_iter().find(|(is_set, ..)| *is_set);
    let Some((_, front, place)) = front.filter(|_| !limiter.forward_auth.is_set() && !forwards)
    else {
        return;
    };
    let applies =
        |key: &str| OF_FRONTS.contains(&key) || key == "strategy" && limiter.decision_api.is_set();
    for (key, name) in limiter.info.keys.iter().filter(|(key, _)| !applies(key)) {
        name.error(
            code::OTHER_RULES,
            format!("`{key}` has no effect on `{front}`, which has its own rules"),
            format!(
                "write the rule into {place}; or add `target` or `forwardAuth`, to which this key \
                 applies"
            ),
        );
    }
}

/// The keys that apply to these fronts, and `routes`, which is an error without a target.
const OF_FRONTS: [&str; 10] = [
    "admin",
    "decisionApi",
    "rateLimitService",
    "routes",
    "onStoreError",
    "shadow",
    "store",
    "timeouts",
    "log",
    "tracing",
];

/// The valid listeners. An invalid listener is reported, so there is no plan.
pub(super) fn listeners(root: &File, limiter: &RateLimiter) -> Vec<(Front, Listen)> {
    let is_proxy = root.has_target(limiter) || limiter.listen.is_set() || !limiter.has_fronts();
    let forward_auth = limiter.forward_auth.there().map(|section| &section.listen);
    let rate_limits = limiter.rate_limit_service.there().map(|section| &section.listen);
    // A socket replaces the default address.
    let decision_api = limiter.decision_api.there();
    let decision_api = decision_api.filter(|it| it.listen.is_set() || !it.socket.is_set());
    let decision_api = decision_api.map(|section| &section.listen);
    let mut all = Vec::new();
    for (front, listeners) in [
        (Front::Proxy, is_proxy.then_some(&limiter.listen)),
        (Front::ForwardAuth, forward_auth),
        (Front::RateLimitService, rate_limits),
        (Front::DecisionApi, decision_api),
    ] {
        let Some(listeners) = listeners else { continue };
        for item in listeners.get().into_iter().flatten() {
            let Ok(listen) = item.get() else { continue };
            if let Some(tls) = listen.tls.clone() {
                item.location.check_with(move || files::tls(&tls).err());
            }
            // Port 0 is a different free port each time.
            if listen.address.port() != 0 && listeners.is_set() {
                check_overlap(listen.address, &all, &item.location);
            }
            all.push((front, listen.clone()));
        }
    }
    all
}

fn check_overlap(addr: SocketAddr, all: &[(Front, Listen)], location: &Location) {
    let addresses = all.iter().map(|(_, listen)| listen.address);
    let same_port = addresses.filter(|other| other.port() == addr.port());
    for other in same_port {
        let holds = |all: &SocketAddr, one: &SocketAddr| {
            all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
        };
        let (all, one) = if holds(&addr, &other) { (addr, other) } else { (other, addr) };
        if addr == other {
            location.error(code::SAME_ADDRESS, "this address is listed twice", "remove one");
        } else if holds(&all, &one) && all.is_ipv4() == one.is_ipv4() {
            let what = format!("`{all}` already includes `{one}`");
            location.error(code::SAME_ADDRESS, what, "remove one");
        } else if holds(&all, &one) {
            location.warn(
                code::SAME_ADDRESS,
                format!("on most systems `{all}` includes every IPv4 address, such as `{one}`"),
                "remove the IPv4 address, unless this system separates them",
            );
        }
    }
}

pub(super) fn check_admin(
    admin: SocketAddr,
    has_token: bool,
    listen: &[(Front, Listen)],
    limiter: &RateLimiter,
) {
    let clashes = |(_, public): &(Front, Listen)| {
        let ip = public.address.ip();
        public.address.port() == admin.port()
            && admin.port() != 0
            && (ip == admin.ip() || ip.is_unspecified() || admin.ip().is_unspecified())
    };
    if listen.iter().any(clashes) {
        let is_set = limiter.admin.is_set();
        if is_set { limiter.admin.location() } else { limiter.listen.location() }.error(
            code::ADMIN_ADDRESS,
            format!("the admin address {admin} is also a public address"),
            "give it its own port",
        );
    } else if !has_token && !admin.ip().is_loopback() {
        limiter.admin.warn(
            code::ADMIN_TOKEN,
            "beyond loopback, the admin address answers only /healthz and /readyz without the \
             token",
            "set TOLLGATE_ADMIN_TOKEN where `tollgate serve` runs, or use 127.0.0.1",
        );
    }
}
