use super::limits::{Api, Policy};
use super::path::Path;
use super::target::Target;
use super::tls::TlsFiles;
use super::value_types::{OnError, Proxies, Strategy, Timeout, Units, WatchedFile};
use super::window::Window;
use crate::file::format;
use crate::yaml::typed::{
    Flag, Hidden, List, OneOrMore, Short, Time, Values, Whole, durations, section, words,
};
use tollgate_proxy::path::{Ambiguous, Forwarded};

section! {
    /// The listener for operators.
    #[derive(PartialEq, Eq)]
    values Admin = "admin" short address {
        /// The listen address.
        default address: format::Address = "127.0.0.1:8081",
        /// The admin addresses of other gateways. The live page shows their state too, and their
        /// pages may read the state of this gateway. The list may include this gateway.
        optional peers: Values<List<format::Peer>>,
    }

    /// Decisions over HTTP for nginx `auth_request`, Traefik, Caddy, HAProxy and Envoy `ext_authz`.
    /// See [fronts](fronts.md).
    keys ForwardAuth = "forwardAuth" {
        /// Where the proxies connect.
        default listen: OneOrMore<Short<format::Address, Listen>> = "127.0.0.1:8082",
        /// The proxies that may send checks. Their headers describe the request, so clients must
        /// not be able to connect from these addresses.
        required trusted_proxies: Proxies,
    }

    /// Envoy's Rate Limit Service: gRPC, `envoy.service.ratelimit.v3`. See [fronts](fronts.md).
    keys RateLimitService = "rateLimitService" {
        /// Where Envoy connects. Every client that can connect may call the service.
        default listen: OneOrMore<Short<format::Address, Listen>> = "127.0.0.1:8083",
        /// Files with domains and descriptors in the format of envoyproxy/ratelimit, also within
        /// ConfigMaps of Kubernetes. The gateway reloads changed files.
        required config: OneOrMore<WatchedFile>,
        /// Whether several files may contain descriptors of the same domain. A descriptor still
        /// must not be in two files.
        default merge_domains: Flag = "false",
        /// The headers that Envoy adds to responses.
        implied response_headers: ResponseHeaders,
        /// Whether responses have dynamic metadata, which Envoy's access log and filters can read:
        /// the domain, the descriptors, and `metadata` of the rules within their limits.
        default dynamic_metadata: Flag = "false",
    }

    /// Decisions over HTTP with JSON, for programs in any language. See
    /// [other languages](how-to/other-languages.md).
    keys DecisionApi = "decisionApi" either [wait queue] {
        /// Where programs connect. With `socket`, there is no default.
        default listen: OneOrMore<Short<format::Address, Listen>> = "127.0.0.1:8084",
        /// The path of a Unix socket where programs on this machine connect. Its file belongs to the
        /// gateway's user and group, and only they can connect.
        optional socket: format::File,
        /// The token that programs send as `Authorization: Bearer …`. Without it, every program that can
        /// connect may call the API.
        optional token: Hidden<format::BearerToken>,
        /// The policies. Programs choose the key and the cost of each charge.
        required policies: List<DecisionPolicy>,
        /// The longest wait that programs may ask for, within this gateway.
        optional wait: Time,
        /// The longest wait that programs may ask for, in the store's queue, in one order over all
        /// gateways.
        optional queue: Time,
        /// The longest block of a key. It adds a penalty, named after the first policy, to all decisions.
        optional longest_block: Time,
    }

    /// A policy of the decision API.
    keys DecisionPolicy = "decisionApi.policies[]" {
        /// The policy's unique name.
        required identifier: format::Identifier,
        /// The number of units per window.
        required limit: Units,
        group window: Window,
        /// The algorithm. Default: `rateLimiter.strategy`. A leaky_bucket is a meter here.
        optional strategy: Strategy,
        /// How the policy treats requests while the store is unavailable. Default:
        /// `rateLimiter.onStoreError`.
        optional on_store_error: OnError,
    }

    /// Headers for clients.
    #[derive(PartialEq, Eq)]
    values ResponseHeaders = "rateLimitService.responseHeaders" {
        /// Whether Envoy adds these headers and `retry-after`.
        default enabled: Flag = "true",
        /// The header with the number of requests per unit.
        default limit: format::Header = "ratelimit-limit"
            where enabled = ["true"]: "no header is sent",
        /// The header with the number of remaining requests.
        default remaining: format::Header = "ratelimit-remaining"
            where enabled = ["true"]: "no header is sent",
        /// The header with the seconds until the quota resets.
        default reset: format::Header = "ratelimit-reset"
            where enabled = ["true"]: "no header is sent",
    }

    /// An address that clients connect to.
    values Listen = "listen[]" short address {
        /// The listen address.
        required address: format::Address,
        /// Accepts TLS connections, with HTTP/2 and HTTP/1.1.
        optional tls: TlsFiles,
        /// Load balancers that start each connection with a PROXY protocol header. Other
        /// connections, and connections without this header, are closed.
        optional proxy_protocol: Proxies,
        /// The maximum number of connections. Further connections wait in the system's queue.
        /// Default: 20000, or fewer if the limit on open files is lower. A number above that limit
        /// is an error at startup.
        optional max_connections: Whole<1, 1_000_000, usize>,
        /// The maximum number of connections per client address (IPv6: per /64). Further
        /// connections are closed. `trustedProxies` are exempt. Default: a quarter of all
        /// connections, and at least 16.
        optional max_connections_per_address: Whole<1, 1_000_000, usize>,
    }

    /// Requests with a separate target. A route without `global`, `client` and `apis` uses these
    /// keys of `rateLimiter` and shares their quotas.
    keys Route = "routes[]" {
        /// A unique name. The route's own `client` is the policy `NAME/client`, and its `global` is
        /// `NAME/global`.
        required name: format::Identifier,
        /// Matches requests to this host only.
        optional host: format::Host,
        /// Matches requests to these paths only.
        default path: Path = "/*",
        /// Where the route's requests are sent. The path remains unchanged unless `stripPrefix` is
        /// set. Required unless `forwardAuth` is set.
        optional target: Target,
        /// Replaces `rateLimiter.global`.
        optional global: Policy,
        /// Replaces `rateLimiter.client`.
        optional client: Policy,
        /// Replaces `rateLimiter.apis`.
        optional apis: List<Api>,
    }

    /// The gateway normalizes each path before it matches routes and limits.
    keys Paths = "paths" {
        /// How to treat `%2F`, `%5C` and broken escapes, which servers interpret in different ways.
        /// Such paths are never exempt, and `%00` always gets 400.
        default ambiguous: AmbiguousPaths = "reject",
        /// Which spelling of the path the target receives.
        default forward: ForwardedPath = "original",
    }

    /// Timeouts of connections, requests and the shutdown. A target can replace the first seven; see
    /// [`target.timeouts`](#targettimeouts).
    #[derive(PartialEq, Eq)]
    values Timeouts = "timeouts" {
        /// The time to connect to the target, including TLS.
        default connect: Timeout = "5s",
        /// The time from the end of a request to the head of the target's response.
        default response: Timeout = "60s",
        /// The time between two parts of a body, in either direction.
        default idle: Timeout = "60s",
        /// The idle time of an upgraded connection (WebSocket).
        default tunnel: Timeout = "1h",
        /// The idle time after which a connection to the target is closed.
        default pool: Timeout = "30s",
        /// The age after which a connection to the target gets no more requests, so new servers
        /// behind the same name get their share. Each connection closes up to a fifth earlier.
        default connection_age: Timeout = "5m",
        /// The time after which the name of the target is looked up again. New connections use all
        /// its addresses in turn. If the lookup fails, the last addresses remain.
        default address_age: Timeout = "10s",
        /// The time from the first byte of a request head to its last byte.
        default request_header: Timeout = "10s",
        /// The idle time between two requests of a client connection.
        default keep_alive: Timeout = "75s",
        /// How long listeners accept new connections after SIGTERM while `/readyz` already returns
        /// 503. Set the time that your load balancer or Kubernetes needs to notice. It does not
        /// apply to Ctrl-C.
        default drain_delay: DrainDelay = "0s",
        /// The time between the close of the listeners and the close of all remaining connections.
        default drain: Timeout = "30s",
    }
}

durations! {
    DrainDelay: 0 to 600_000, "the sender of the signal waits for this time and then for `drain`";
}

words! {
    AmbiguousPaths -> Ambiguous {
        /// Rejects such requests with 400.
        "reject" => Ambiguous::Refuse,
        /// Forwards such paths.
        "keep" => Ambiguous::Keep,
    }

    ForwardedPath -> Forwarded {
        /// The client's spelling. If servers could find another resource there, because of `..` for
        /// example, the target receives the normalized path.
        "original" => Forwarded::Original,
        /// Always the normalized path.
        "normalized" => Forwarded::Normalized,
    }
}
