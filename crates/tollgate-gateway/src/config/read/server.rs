//! Where to listen, and how long things may take.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::OnStoreError;
use tollgate::key::TrustedProxies;

use super::super::files::NamedFile;
use super::super::problem::Problems;
use super::super::spec::Section;
use super::super::tables::RATE_LIMITER;
use super::super::view::{Item, View, default_of};
use super::identity::networks;
use super::routes;
use crate::plan::{Front, Listen, RateLimitsPlan, Timeouts, TlsFiles};

/// What the process itself needs.
pub(super) struct Server {
    pub(super) listen: Vec<Listen>,
    pub(super) forward_auth: TrustedProxies,
    pub(super) rate_limits: Option<RateLimitsPlan>,
    pub(super) admin: SocketAddr,
    pub(super) admin_peers: Vec<String>,
    pub(super) timeouts: Timeouts,
    pub(super) max_tunnels: usize,
}

pub(super) fn server(
    root: &View<'_>,
    limiter: &View<'_>,
    problems: &mut Problems,
) -> Option<Server> {
    let listen = listeners(root, limiter, problems);
    let forward_auth = match limiter.item(Front::ForwardAuth.name()) {
        Some(item) => item.view().and_then(|view| networks(&view)),
        None => Some(TrustedProxies::none()),
    };
    let admin = admin(limiter);
    if let (Some((admin, _)), Some(listen)) = (&admin, &listen) {
        let admin = *admin;
        check_admin(admin, listen, limiter, problems);
    }
    let timeouts = timeouts(limiter, problems);
    let max_tunnels = limiter.whole("maxTunnels")?.try_into().ok()?;
    let (admin, admin_peers) = admin?;
    let rate_limits = match limiter.item(Front::RateLimitService.name()) {
        Some(item) => Some(rate_limits(limiter, &item.view()?, problems)?),
        None => None,
    };
    Some(Server {
        rate_limits,
        listen: listen?,
        forward_auth: forward_auth?,
        admin,
        admin_peers,
        timeouts: timeouts?,
        max_tunnels,
    })
}

/// Where it is, and where its peers are.
fn admin(limiter: &View<'_>) -> Option<(SocketAddr, Vec<String>)> {
    match limiter.view("admin") {
        Some(view) => {
            let peers = view.items("peers");
            let peers = peers.iter().map(|peer| peer.text().map(str::to_owned));
            Some((view.text("address")?.parse().ok()?, peers.collect::<Option<_>>()?))
        }
        None => Some((limiter.text("admin")?.parse().ok()?, Vec::new())),
    }
}

fn rate_limits(
    limiter: &View<'_>,
    view: &View<'_>,
    problems: &mut Problems,
) -> Option<RateLimitsPlan> {
    let mut files = Vec::new();
    for item in view.items("config") {
        let file = PathBuf::from(item.text()?);
        problems.names(NamedFile::RateLimits { file: file.clone(), place: item.place() });
        files.push(file);
    }
    let on_store_error = match limiter.text("onStoreError")? {
        "open" => OnStoreError::Open,
        "closed" => OnStoreError::Closed,
        _ => OnStoreError::Local,
    };
    Some(RateLimitsPlan { files, on_store_error })
}

/// Those of clients, and those of other proxies.
fn listeners(root: &View<'_>, limiter: &View<'_>, problems: &mut Problems) -> Option<Vec<Listen>> {
    let mut all = Vec::new();
    let mut is_whole = true;
    if routes::has_target(root, limiter) || limiter.has("listen") || !has_fronts(limiter) {
        is_whole &= listen(limiter, Front::Proxy, &mut all, problems);
    }
    for front in FRONTS {
        match limiter.item(front.name()).map(|item| item.view()) {
            Some(Some(view)) => is_whole &= listen(&view, front, &mut all, problems),
            Some(None) => is_whole = false,
            None => {}
        }
    }
    is_whole.then_some(all)
}

/// Whether the gateway decides for other proxies.
pub(super) fn has_fronts(limiter: &View<'_>) -> bool {
    FRONTS.iter().any(|front| limiter.has(front.name()))
}

const FRONTS: [Front; 2] = [Front::ForwardAuth, Front::RateLimitService];

/// Adds the listeners of a section. Returns whether all could be read.
fn listen(
    section: &View<'_>,
    front: Front,
    all: &mut Vec<Listen>,
    problems: &mut Problems,
) -> bool {
    let plain = |addr| Listen {
        addr,
        front,
        tls: None,
        proxy_protocol: None,
        max_connections: None,
        max_connections_per_address: None,
    };
    if !section.has("listen") {
        let addr = section.text("listen").and_then(|text| text.parse().ok());
        all.extend(addr.map(plain));
        return addr.is_some();
    }
    let mut is_whole = true;
    for item in section.items("listen") {
        let listen = match item.view() {
            Some(view) => listener(&view, front, problems),
            None => item.text().and_then(|text| text.parse().ok()).map(plain),
        };
        let Some(listen) = listen else {
            is_whole = false;
            continue;
        };
        // Port 0 is a free one, another each time.
        if listen.addr.port() != 0 {
            check_overlap(listen.addr, all, &item, problems);
        }
        all.push(listen);
    }
    is_whole
}

/// Nobody can listen where somebody does already.
fn check_overlap(addr: SocketAddr, all: &[Listen], item: &Item<'_>, problems: &mut Problems) {
    let same_port = all.iter().map(|it| it.addr).filter(|other| other.port() == addr.port());
    for other in same_port {
        let holds = |all: &SocketAddr, one: &SocketAddr| {
            all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
        };
        let (all, one) = if holds(&addr, &other) { (addr, other) } else { (other, addr) };
        if addr == other {
            problems.error(item.place(), "this address stands here twice", "remove one");
        } else if holds(&all, &one) && all.is_ipv4() == one.is_ipv4() {
            let what = format!("`{all}` is every address, and `{one}` is one of them");
            problems.error(item.place(), what, "remove one");
        } else if holds(&all, &one) {
            problems.warn(
                item.place(),
                format!("on most systems `{all}` is every IPv4 address too, and so `{one}`"),
                "remove the IPv4 address, unless this system keeps the two apart",
            );
        }
    }
}

fn listener(view: &View<'_>, front: Front, problems: &mut Problems) -> Option<Listen> {
    let tls = match view.item("tls") {
        Some(item) => {
            let view = item.view()?;
            let file = |key: &str| view.text(key).map(PathBuf::from);
            let files = TlsFiles { certificate: file("certificate")?, key: file("key")? };
            problems.names(NamedFile::Tls {
                files: files.clone(),
                certificate: view.place_of("certificate"),
                key: view.place_of("key"),
            });
            Some(files)
        }
        None => None,
    };
    let proxy_protocol = match view.item("proxyProtocol") {
        Some(item) => {
            let items = item.items();
            let texts = items.iter().map(Item::text).collect::<Option<Vec<_>>>()?;
            Some(TrustedProxies::parse(texts).ok()?)
        }
        None => None,
    };
    let whole = |key: &str| match view.has(key) {
        true => view.whole(key)?.try_into().ok().map(Some),
        false => Some(None),
    };
    Some(Listen {
        addr: view.text("address")?.parse().ok()?,
        front,
        tls,
        proxy_protocol,
        max_connections: whole("maxConnections")?,
        max_connections_per_address: whole("maxConnectionsPerAddress")?,
    })
}

fn check_admin(admin: SocketAddr, listen: &[Listen], limiter: &View<'_>, problems: &mut Problems) {
    let clashes = |public: &Listen| {
        let ip = public.addr.ip();
        public.addr.port() == admin.port()
            && admin.port() != 0
            && (ip == admin.ip() || ip.is_unspecified() || admin.ip().is_unspecified())
    };
    if listen.iter().any(clashes) {
        let place = limiter.place_of(if limiter.has("admin") { "admin" } else { "listen" });
        problems.error(
            place,
            format!("the admin address {admin} is one that clients connect to"),
            "give it a port of its own",
        );
    } else if !admin.ip().is_loopback() {
        problems.warn(
            limiter.place_of("admin"),
            "beyond loopback, the admin address answers only /healthz and /readyz without the token",
            "set TOLLGATE_ADMIN_TOKEN where `tollgate serve` runs, or use 127.0.0.1",
        );
    }
}

fn timeouts(limiter: &View<'_>, problems: &mut Problems) -> Option<Timeouts> {
    let view = match limiter.item("timeouts") {
        Some(item) => Some(item.view()?),
        None => None,
    };
    let mut span = |key: &'static str| {
        let span = match &view {
            Some(view) => view.span(key),
            None => super::super::format::span(default_of(section()?, key)?).ok(),
        }?;
        if !(SHORTEST..=LONGEST).contains(&span) {
            let place = view.as_ref()?.place_of(key);
            let what = format!("a timeout of {span:?} is outside 1 ms to 24 h");
            problems.error(place, what, "no timeout at all would let connections pile up");
            return None;
        }
        Some(span)
    };
    let spans = [
        span("connect"),
        span("response"),
        span("idle"),
        span("tunnel"),
        span("pool"),
        span("requestHeader"),
        span("keepAlive"),
        span("drain"),
    ];
    let [connect, response, idle, tunnel, pool, request_header, keep_alive, drain] = spans;
    Some(Timeouts {
        connect: connect?,
        response: response?,
        idle: idle?,
        tunnel: tunnel?,
        pool: pool?,
        request_header: request_header?,
        keep_alive: keep_alive?,
        drain: drain?,
    })
}

fn section() -> Option<&'static Section> {
    match &RATE_LIMITER.field("timeouts")?.shape {
        super::super::spec::Shape::Section(section) => Some(section),
        _ => None,
    }
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(86_400);
