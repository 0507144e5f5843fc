use super::super::{format, spec, typed};
use super::{Api, Policy, Target};
use crate::proxy::path::Ambiguous;
use typed::{Either, List, OneOrMore, Time, Whole, Written, section, words};

/// A path, or a section that tells how the path is meant.
pub(in crate::config) type Path = Either<Written<format::Path>, PathSection>;

section! {
    /// Where operators look.
    Admin = "admin" {
        /// The address.
        default address: format::Address = "127.0.0.1:8081",
        /// Admin addresses of other gateways: the live page shows what happens there too, and their
        /// pages may read what happens here. This one may be among them.
        optional peers: List<format::Peer>,
    }

    /// Decides for other proxies over HTTP: nginx `auth_request`, Traefik, Caddy, HAProxy, Envoy
    /// `ext_authz`. See [fronts](fronts.md).
    ForwardAuth = "forwardAuth" {
        /// Where the proxies connect: an address, a section, or a list of both.
        default listen: OneOrMore<Either<format::Address, Listen>> = "127.0.0.1:8082",
        /// The proxies that may ask. Their headers describe the request, so no client may connect
        /// from these addresses.
        required trusted_proxies: List<format::Network>,
    }

    /// Envoy's Rate Limit Service: gRPC, `envoy.service.ratelimit.v3`. See [fronts](fronts.md).
    RateLimitService = "rateLimitService" {
        /// Where Envoy connects: an address, a section, or a list of both. Every client that can
        /// connect may ask.
        default listen: OneOrMore<Either<format::Address, Listen>> = "127.0.0.1:8083",
        /// Files with domains and descriptors, as envoyproxy/ratelimit reads them. They are read
        /// again when they change.
        required config: OneOrMore<format::Text>,
    }

    /// An address that clients connect to.
    Listen = "listen[]" {
        /// The address.
        required address: format::Address,
        /// Speaks TLS, with HTTP/2 and HTTP/1.1.
        optional tls: Tls,
        /// Balancers that begin each connection with a PROXY protocol header. Connections from
        /// others, and without the header, are refused.
        optional proxy_protocol: List<format::Network>,
        /// The most connections at a time. Others wait in the system's queue until one ends.
        /// Without it, 20000, or as many as the limit of open files allows; a number above that
        /// limit is an error at the start.
        optional max_connections: Whole<1, 1_000_000, usize>,
        /// The most connections of one client address, or of one IPv6 /64 network. More are closed.
        /// Without it, a quarter of all connections, and at least 16. It does not hold for
        /// `trustedProxies`.
        optional max_connections_per_address: Whole<1, 1_000_000, usize>,
    }

    /// The certificate of a listener.
    Tls = "listen[].tls" {
        /// A PEM file with the chain, the server's own certificate first.
        required certificate: format::Text,
        /// A PEM file with the private key.
        required key: format::Text,
        /// A PEM file with certificate authorities. Clients must then have a certificate that these
        /// authorities have signed.
        optional client_ca as "clientCa": format::Text,
    }

    /// Requests with a target of their own. A route without `global`, `client` or `apis` takes
    /// these from `rateLimiter`, and shares the quotas.
    Route = "routes[]" {
        /// The name, unique. The route's own `client` is the policy `NAME/client`, its `global` is
        /// `NAME/global`.
        required name: format::Identifier,
        /// Only requests to this host.
        optional host: format::Host,
        /// Only requests to these paths.
        default path: Path = "/*",
        /// Where they go. The path stays as it is, except for `stripPrefix`. Required, except where
        /// `forwardAuth` decides for another proxy.
        optional target: Target,
        /// In place of `rateLimiter.global`.
        optional global: Policy,
        /// In place of `rateLimiter.client`.
        optional client: Policy,
        /// In place of `rateLimiter.apis`.
        optional apis: List<Api>,
    }

    /// Which paths. A text alone is `/exactly/this` or, with `/*` at its end, everything below
    /// (`/static/*` is `/static`, `/static/` and `/static/a`). Paths are matched in their normal
    /// form and without the query.
    PathSection = "path" {
        /// How `value` is meant.
        default expression: PathForm = "plain",
        /// The path or the expression.
        required value: Written<format::Text>,
    }

    /// Paths are brought into their normal form, matched, and forwarded in it.
    Paths = "paths" {
        /// The treatment of `%2F`, `%5C` and broken escapes, which servers read in different ways.
        /// Such paths are never exempt, and `%00` is always answered with 400.
        default ambiguous: AmbiguousPaths = "reject",
    }

    /// How long things may take.
    Timeouts = "timeouts" {
        /// Connecting to the target, TLS included.
        default connect: Time = "5s",
        /// From the end of a request, once connected, to the head of the target's response.
        default response: Time = "60s",
        /// Between two pieces of a body, in either direction.
        default idle: Time = "60s",
        /// Without a byte on an upgraded connection (WebSocket).
        default tunnel: Time = "1h",
        /// How long an unused connection to the target is kept.
        default pool: Time = "30s",
        /// From the first byte of a request to the end of its head.
        default request_header: Time = "10s",
        /// Between two requests of a client's connection.
        default keep_alive: Time = "75s",
        /// How long listeners accept new connections after SIGTERM, while `/readyz` is already 503:
        /// as long as a balancer or Kubernetes takes to notice. Not after Ctrl-C.
        default drain_delay: Time = "0s",
        /// From the time when listeners close until connections are cut.
        default drain: Time = "30s",
    }
}

words! {
    PathForm -> bool {
        /// Exactly this path.
        "plain" => false,
        /// A regular expression; without `^` and `$` it may match in the middle.
        "regex" => true,
    }

    AmbiguousPaths -> Ambiguous {
        /// They are answered with 400.
        "reject" => Ambiguous::Refuse,
        /// They stay as they are.
        "keep" => Ambiguous::Keep,
    }
}
