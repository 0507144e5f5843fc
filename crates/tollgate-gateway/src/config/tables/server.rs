//! Where to listen and where to forward to.

use super::super::format;
use super::super::spec::{Section, Shape, default, optional, required};
use super::limits::{API, POLICY};
use super::target::TARGET;
use super::{NETWORKS, TEXT, text};

pub(in super::super) static ADMIN: Section = Section {
    name: "admin",
    doc: "Where operators look.",
    fields: &[
        default("address", text(format::ADDRESS), "127.0.0.1:8081", "The address."),
        optional(
            "peers",
            Shape::List(&text(format::PEER)),
            "Admin addresses of other gateways: the live page shows what happens there too, and their pages may read what happens here. This one may be among them.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const LISTEN_ANY: Shape = Shape::Either(SECTION_OR_LIST);

// Constants of their own, because up to Rust 1.88 what is borrowed within a call does not
// outlive it.
const SECTION_OR_LIST: &[Shape] =
    &[text(format::ADDRESS), Shape::Section(&LISTEN), Shape::List(LISTENER)];
const LISTENER: &Shape = &Shape::Either(ADDRESS_OR_SECTION);
const ADDRESS_OR_SECTION: &[Shape] = &[text(format::ADDRESS), Shape::Section(&LISTEN)];

pub(super) const FORWARD_AUTH: Section = Section {
    name: "forwardAuth",
    doc: "Decides for other proxies over HTTP: nginx `auth_request`, Traefik, Caddy, HAProxy, Envoy `ext_authz`. See [fronts](fronts.md).",
    fields: &[
        default(
            "listen",
            LISTEN_ANY,
            "127.0.0.1:8082",
            "Where the proxies connect: an address, a section, or a list of both.",
        ),
        required(
            "trustedProxies",
            NETWORKS,
            "The proxies that may ask. Their headers describe the request, so no client may connect from these addresses.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const RATE_LIMIT_SERVICE: Section = Section {
    name: "rateLimitService",
    doc: "Envoy's Rate Limit Service: gRPC, `envoy.service.ratelimit.v3`. See [fronts](fronts.md).",
    fields: &[
        default(
            "listen",
            LISTEN_ANY,
            "127.0.0.1:8083",
            "Where Envoy connects: an address, a section, or a list of both. Every client that can connect may ask.",
        ),
        required(
            "config",
            Shape::Either(&[TEXT, Shape::List(&TEXT)]),
            "Files with domains and descriptors, as envoyproxy/ratelimit reads them. They are read again when they change.",
        ),
    ],
    either: &[],
    others: None,
};

static LISTEN: Section = Section {
    name: "listen[]",
    doc: "An address that clients connect to.",
    fields: &[
        required("address", text(format::ADDRESS), "The address."),
        optional("tls", Shape::Section(&TLS), "Speaks TLS, with HTTP/2 and HTTP/1.1."),
        optional(
            "proxyProtocol",
            NETWORKS,
            "Balancers that begin each connection with a PROXY protocol header. Connections from others, and without the header, are refused.",
        ),
        optional(
            "maxConnections",
            CONNECTIONS,
            "The most connections at a time. Others wait in the system's queue until one ends. Without it, 20000, or as many as the limit of open files allows; a number above that limit is an error at the start.",
        ),
        optional(
            "maxConnectionsPerAddress",
            CONNECTIONS,
            "The most connections of one client address, or of one IPv6 /64 network. More are closed. Without it, a quarter of all connections, and at least 16. It does not hold for `trustedProxies`.",
        ),
    ],
    either: &[],
    others: None,
};

const CONNECTIONS: Shape = Shape::Whole { min: 1, max: 1_000_000 };

pub(super) const TLS: Section = Section {
    name: "listen[].tls",
    doc: "The certificate of a listener.",
    fields: &[
        required(
            "certificate",
            TEXT,
            "A PEM file with the chain, the server's own certificate first.",
        ),
        required("key", TEXT, "A PEM file with the private key."),
    ],
    either: &[],
    others: None,
};

pub(super) const ROUTE: Section = Section {
    name: "routes[]",
    doc: "Requests with a target of their own. A route without `global`, `client` or `apis` takes these from `rateLimiter`, and shares the quotas.",
    fields: &[
        required(
            "name",
            text(format::IDENTIFIER),
            "The name, unique. The route's own `client` is the policy `NAME/client`, its `global` is `NAME/global`.",
        ),
        optional("host", text(format::HOST), "Only requests to this host."),
        default("path", PATH, "/*", "Only requests to these paths."),
        optional(
            "target",
            TARGET,
            "Where they go. The path stays as it is, except for `stripPrefix`. Required, except where `forwardAuth` decides for another proxy.",
        ),
        optional("global", Shape::Section(&POLICY), "In place of `rateLimiter.global`."),
        optional("client", Shape::Section(&POLICY), "In place of `rateLimiter.client`."),
        optional("apis", Shape::List(&Shape::Section(&API)), "In place of `rateLimiter.apis`."),
    ],
    either: &[],
    others: None,
};

/// A path, or a section that says how it is meant.
pub(super) const PATH: Shape = Shape::Either(&[text(format::PATH), Shape::Section(&PATH_SECTION)]);

pub(super) const PATH_SECTION: Section = Section {
    name: "path",
    doc: "Which paths. A text alone is `/exactly/this` or, with `/*` at its end, everything below (`/static/*` is `/static`, `/static/` and `/static/a`). Paths are matched in their normal form and without the query.",
    fields: &[
        default(
            "expression",
            Shape::Word(&[
                ("plain", "Exactly this path."),
                ("regex", "A regular expression; without `^` and `$` it may match in the middle."),
            ]),
            "plain",
            "How `value` is meant.",
        ),
        required("value", TEXT, "The path or the expression."),
    ],
    either: &[],
    others: None,
};

pub(super) const PATHS: Section = Section {
    name: "paths",
    doc: "Paths are brought into their normal form, matched, and forwarded in it.",
    fields: &[default(
        "ambiguous",
        Shape::Word(&[
            ("reject", "They are answered with 400."),
            ("keep", "They stay as they are."),
        ]),
        "reject",
        "The treatment of `%2F`, `%5C` and broken escapes, which servers read in different ways. Such paths are never exempt, and `%00` is always answered with 400.",
    )],
    either: &[],
    others: None,
};

pub(super) const TIMEOUTS: Section = Section {
    name: "timeouts",
    doc: "How long things may take.",
    fields: &[
        default("connect", Shape::Span, "5s", "Connecting to the target, TLS included."),
        default(
            "response",
            Shape::Span,
            "60s",
            "From the end of a request, once connected, to the head of the target's response.",
        ),
        default("idle", Shape::Span, "60s", "Between two pieces of a body, in either direction."),
        default(
            "tunnel",
            Shape::Span,
            "1h",
            "Without a byte on an upgraded connection (WebSocket).",
        ),
        default("pool", Shape::Span, "30s", "How long an unused connection to the target is kept."),
        default(
            "requestHeader",
            Shape::Span,
            "10s",
            "From the first byte of a request to the end of its head.",
        ),
        default("keepAlive", Shape::Span, "75s", "Between two requests of a client's connection."),
        default("drain", Shape::Span, "30s", "From the signal to stop until connections are cut."),
    ],
    either: &[],
    others: None,
};
