use std::net::SocketAddr;
use std::path::PathBuf;

use tollgate::key::TrustedProxies;

use super::super::format;
use super::super::named_files::{FileContents, NamedFiles};
use super::super::place::Place;
use super::super::problem::Checked;
use super::super::tables::{self, File, RateLimiter};
use super::super::typed::{Item, Key, Location, Setting, Short, all, values};
use super::identity::networks;
use crate::plan::{CertificateFiles, Front, Listen, RateLimitsPlan, Timeouts, TlsFiles, upstream};

pub(super) fn forward_auth(limiter: &RateLimiter) -> Checked<TrustedProxies> {
    match limiter.forward_auth.get()? {
        Some(section) => networks(section.trusted_proxies.get()?),
        None => Ok(TrustedProxies::none()),
    }
}

pub(super) fn rate_limits(limiter: &RateLimiter) -> Checked<Option<RateLimitsPlan>> {
    let Some(service) = limiter.rate_limit_service.get()? else { return Ok(None) };
    let items = service.config.get()?;
    let files = values(items)?;
    let merges_domains = service.merge_domains.value()?;
    let places = items.iter().map(|item| item.location.place.clone());
    service.info.location.names_all(NamedFiles {
        files: files.iter().cloned().zip(places).collect(),
        contents: FileContents::RateLimits(files.clone(), merges_domains),
    });
    let (on_store_error, shadow) = (limiter.on_store_error.value()?, limiter.shadow.value()?);
    let headers = service.response_headers.get()?;
    let names = [headers.limit.value()?, headers.remaining.value()?, headers.reset.value()?];
    Ok(Some(RateLimitsPlan {
        files,
        on_store_error,
        shadow,
        merges_domains,
        response_headers: headers.enabled.value()?.then_some(names),
        dynamic_metadata: service.dynamic_metadata.value()?,
    }))
}

/// Lists these keys. It names all keys, so that a new key does not compile until it is in either
/// list.
macro_rules! settings {
    ($limiter:ident { $($key:ident),*; except $($other:ident),* }) => {{
        let RateLimiter { $($key,)* $($other: _),* } = $limiter;
        let keys: Vec<&Setting> = vec![$($key),*];
        keys
    }};
}

/// Reports keys about requests that the gateway does not see because it only answers Envoy.
pub(super) fn check_only_rate_limits(root: &File, limiter: &RateLimiter) {
    let forwards = root.has_target(limiter) || limiter.listen.is_set();
    if !limiter.rate_limit_service.is_set() || limiter.forward_auth.is_set() || forwards {
        return;
    }
    let keys = settings!(limiter {
        strategy, global, client, apis, llm, identity, on_missing_key, trusted_proxies, jwt,
        api_keys, tiers, costs, exempt, preflights, grpc, deny, allow, waiting, shed, headers,
        response, paths, max_body_bytes, max_tunnels, access_log;
        except info, listen, admin, forward_auth, rate_limit_service, target, routes,
        on_store_error, shadow, store, timeouts, log, tracing
    });
    for key in keys.into_iter().filter(|key| key.is_set()) {
        key.name().error(
            format!("`{}` has no effect on `rateLimitService`, which has its own rules", key.key),
            "write the rule into a file of `rateLimitService.config`; or add `target` or \
             `forwardAuth`, to which this key applies",
        );
    }
}

type Listeners = Key<Vec<Item<Short<format::Address, tables::Listen>>>>;

pub(super) fn listeners(root: &File, limiter: &RateLimiter) -> Checked<Vec<Listen>> {
    let mut all = Vec::new();
    let mut outcome = Ok(());
    if root.has_target(limiter) || limiter.listen.is_set() || !limiter.has_fronts() {
        outcome = listen(&limiter.listen, Front::Proxy, &mut all);
    }
    let fronts = [
        (Front::ForwardAuth, limiter.forward_auth.get().map(|it| it.as_ref().map(|it| &it.listen))),
        (
            Front::RateLimitService,
            limiter.rate_limit_service.get().map(|it| it.as_ref().map(|it| &it.listen)),
        ),
    ];
    for (front, section) in fronts {
        outcome = match section {
            Ok(Some(section)) => listen(section, front, &mut all).and(outcome),
            Ok(None) => outcome,
            Err(reported) => Err(reported),
        };
    }
    outcome.map(|()| all)
}

fn listen(listeners: &Listeners, front: Front, all: &mut Vec<Listen>) -> Checked<()> {
    let mut outcome = Ok(());
    for item in listeners.get()? {
        let listen = item.get().and_then(|section| listener_of(section, front));
        match listen {
            Ok(listen) => {
                // Port 0 is a different free port each time.
                if listen.addr.port() != 0 && listeners.is_set() {
                    check_overlap(listen.addr, all, &item.location);
                }
                all.push(listen);
            }
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome
}

fn check_overlap(addr: SocketAddr, all: &[Listen], location: &Location) {
    let same_port = all.iter().map(|it| it.addr).filter(|other| other.port() == addr.port());
    for other in same_port {
        let holds = |all: &SocketAddr, one: &SocketAddr| {
            all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
        };
        let (all, one) = if holds(&addr, &other) { (addr, other) } else { (other, addr) };
        if addr == other {
            location.error("this address is listed twice", "remove one");
        } else if holds(&all, &one) && all.is_ipv4() == one.is_ipv4() {
            let what = format!("`{all}` already includes `{one}`");
            location.error(what, "remove one");
        } else if holds(&all, &one) {
            location.warn(
                format!("on most systems `{all}` includes every IPv4 address, such as `{one}`"),
                "remove the IPv4 address, unless this system separates them",
            );
        }
    }
}

fn listener_of(section: &tables::Listen, front: Front) -> Checked<Listen> {
    let tls = section.tls.get()?.as_deref().map(tls).transpose()?;
    let proxy_protocol = section.proxy_protocol.get()?.as_deref().map(networks).transpose()?;
    Ok(Listen {
        addr: section.address.value()?,
        front,
        tls,
        proxy_protocol,
        max_connections: section.max_connections.value()?,
        max_connections_per_address: section.max_connections_per_address.value()?,
    })
}

fn tls(section: &tables::Tls) -> Checked<TlsFiles> {
    let mut named = Vec::new();
    let default = certificate(&section.certificate, &section.key, &mut named);
    let others = all(section.sni.items()?, |item| {
        let section = item.get()?;
        certificate(&section.certificate, &section.key, &mut named)
    });
    let files = TlsFiles {
        default: default?,
        others: others?,
        client_ca: section.client_ca.value()?,
        is_client_optional: section.client_certificate.value()?,
    };
    let client_ca = files.client_ca.clone();
    named.extend(client_ca.map(|file| (file, section.client_ca.location().place)));
    let contents = FileContents::Tls(files.clone());
    section.info.location.names_all(NamedFiles { files: named, contents });
    Ok(files)
}

pub(super) fn certificate(
    certificate: &Key<PathBuf>,
    key: &Key<PathBuf>,
    named: &mut Vec<(PathBuf, Place)>,
) -> Checked<CertificateFiles> {
    let files = CertificateFiles { certificate: certificate.value()?, key: key.value()? };
    named.push((files.certificate.clone(), certificate.location().place));
    named.push((files.key.clone(), key.location().place));
    Ok(files)
}

pub(super) fn check_admin(admin: SocketAddr, listen: &[Listen], limiter: &RateLimiter) {
    let clashes = |public: &Listen| {
        let ip = public.addr.ip();
        public.addr.port() == admin.port()
            && admin.port() != 0
            && (ip == admin.ip() || ip.is_unspecified() || admin.ip().is_unspecified())
    };
    if listen.iter().any(clashes) {
        let is_set = limiter.admin.is_set();
        if is_set { limiter.admin.location() } else { limiter.listen.location() }.error(
            format!("the admin address {admin} is also a public address"),
            "give it its own port",
        );
    } else if !admin.ip().is_loopback() {
        limiter.admin.warn(
            "beyond loopback, the admin address answers only /healthz and /readyz without the \
             token",
            "set TOLLGATE_ADMIN_TOKEN where `tollgate serve` runs, or use 127.0.0.1",
        );
    }
}

pub(super) fn timeouts(limiter: &RateLimiter) -> Checked<Timeouts> {
    let keys = limiter.timeouts.get()?;
    Ok(Timeouts {
        upstream: upstream::Timeouts {
            response: keys.response.value()?,
            body: keys.idle.value()?,
            tunnel: keys.tunnel.value()?,
        },
        request_header: keys.request_header.value()?,
        keep_alive: keys.keep_alive.value()?,
        drain_delay: keys.drain_delay.value()?,
        drain: keys.drain.value()?,
    })
}
