//! The keys of the configuration file. The reader, the schema and the documentation are made from
//! these declarations.
//!
//! | file | sections |
//! |---|---|
//! | `server.rs` | where to listen and where to forward to |
//! | `limits.rs` | policies: quotas, and the requests that they are for |
//! | `beside.rs` | the rest of a policy |
//! | `identity.rs` | the client whose quota a request uses, and the lists of clients |
//! | `target.rs` | targets, and changes to requests on the way |
//! | `store.rs` | where quotas are kept |
//! | `answers.rs` | headers and denials |
//! | `telemetry.rs` | logs and traces |

mod answers;
mod beside;
mod identity;
mod limits;
mod server;
mod store;
mod target;
mod telemetry;

pub(super) use self::answers::{Headers, Response};
pub(super) use self::beside::{Bandwidth, Concurrency, CountOnly, Penalty, Waiting};
pub(super) use self::identity::{
    ApiKey, ApiKeys, ClientKey, Identity, IdentityWord, Jwt, MissingStatus, MissingWord, Subjects,
};
pub(super) use self::limits::{Api, Costs, Policy, Rules, Tier, Tiers, Window};
pub(super) use self::server::{
    Admin, ForwardAuth, Listen, Path, PathSection, Paths, RateLimitService, Route, Timeouts,
};
pub(super) use self::store::{Redis, Store};
pub(super) use self::target::{HeaderEdits, Target, TargetSection};
pub(super) use self::telemetry::{AccessLog, Log, Tracing};

use tollgate::OnStoreError;
use tollgate::policy::{Algorithm, LeakyMode, Refill, Resolution};

use super::spec::{self, Section};
use super::{format, typed};
use typed::{Either, Flag, List, OneOrMore, Whole, section, words};

/// The table of the file.
pub fn root() -> &'static Section {
    File::table()
}

section! {
    /// The root has one key of its own.
    File = "The file" {
        /// Everything.
        required rate_limiter: RateLimiter,
        /// The same as `rateLimiter.target`, which may stand here too.
        optional target: Target,
    }

    /// Where to listen, where to forward to, whose quota a request uses, and the limits.
    RateLimiter = "rateLimiter" {
        /// Where clients connect: an address, a section, or a list of both.
        default listen: OneOrMore<Either<format::Address, Listen>> = "0.0.0.0:8080",
        /// Where health, state, metrics and a live page are served: an address, or a section. Never
        /// on a public listener. Beyond loopback all but health needs the token.
        default admin: Either<format::Address, Admin> = "127.0.0.1:8081",
        /// Decides for another proxy instead of forwarding, or besides. Without a target the
        /// gateway listens at no `listen`.
        optional forward_auth: ForwardAuth,
        /// Decides for Envoy over gRPC, by rules in files of their own.
        optional rate_limit_service: RateLimitService,
        /// Where requests go that no route takes.
        optional target: Target,
        /// Other targets, by host and path; the first that matches. Without a match and without
        /// `target` the answer is 404.
        optional routes: List<Route>,
        /// The algorithm of the policies that name none.
        default strategy: Strategy = "sliding_window_counter",
        /// One quota that everybody shares.
        optional global: Policy,
        /// A quota for each client, over everything.
        optional client: Policy,
        /// Quotas for some requests, over and above those of `client` and `global`: the first that
        /// matches, all or none of the three.
        optional apis: List<Api>,
        /// The client whose quota a request uses: a word, a section, or a list; the first entry
        /// that finds a client counts.
        default identity: OneOrMore<Either<IdentityWord, Identity>> = "ip",
        /// Decides about a request in which `identity` finds no client.
        default on_missing_key: Either<MissingWord, MissingStatus> = "deny",
        /// The proxies in front: whose X-Forwarded-For is believed. `private` is a keyword one has
        /// to write.
        optional trusted_proxies: List<format::Network>,
        /// Which tokens to believe, for `identity: user`.
        optional jwt: Jwt,
        /// Which API keys to believe, for `identity: apiKey`: a list of keys, or a section.
        optional api_keys: Either<List<ApiKey>, ApiKeys>,
        /// Other quotas in place of `client`'s, by name; who is in one is said in `apiKeys` or by a
        /// claim of the token.
        optional tiers: Tiers,
        /// The costs of requests, for policies without their own. Without this key every request
        /// costs 1.
        optional costs: Costs,
        /// Paths that are forwarded without asking the store: health checks, static files.
        optional exempt: List<Path>,
        /// How many CORS preflights a client address (IPv6: a /64) may send per minute. They use no
        /// quota, but any client can send them, so the policy `cors/preflights` limits them wherever
        /// other requests have a limit. `charged` limits them like other requests, and `unlimited`
        /// forwards all preflights.
        default preflights: format::Preflights = "1000",
        /// The paths of gRPC services, such as `/pkg.Greeter/*`: a denied gRPC call there gets a gRPC
        /// status with HTTP status 200. All other denials have an HTTP status.
        optional grpc: List<format::Path>,
        /// The blocklist: these clients are rejected with 403 on every path, also if `allow` has
        /// them.
        optional deny: Subjects,
        /// The allowlist: no limit applies to these clients.
        optional allow: Subjects,
        /// How many requests may wait at once for policies with `excess: {wait: …}`.
        implied waiting: Waiting,
        /// How a policy treats requests while the store cannot decide.
        default on_store_error: OnError = "local",
        /// How a policy treats a request that was refused before it was sent to Redis, because no
        /// answer could come in time. Without it, as `onStoreError`.
        optional shed: OnError,
        /// Every policy only watches: it never blocks and is charged for what passes.
        default shadow: Flag = "false",
        /// Where quotas are kept.
        default store: Either<format::Store, Store> = "memory",
        /// Which fields tell clients where they stand.
        implied headers: Headers,
        /// The content of denials.
        optional response: Response,
        /// Decides about paths with more than one reading.
        implied paths: Paths,
        /// How long things may take.
        implied timeouts: Timeouts,
        /// The most upgraded connections (WebSockets) at a time. Who asks for a further one gets
        /// 503.
        default max_tunnels: Whole<0, 1_000_000, usize> = "10000",
        /// The content and format of the log.
        implied log: Log,
        /// A line for each request.
        optional access_log: AccessLog,
        /// Where spans of requests and decisions are sent; without it, trace headers pass as they
        /// are. It needs a build with the feature `otlp`.
        optional tracing: Tracing,
    }
}

words! {
    OnError -> OnStoreError {
        /// Requests pass unlimited.
        "open" => OnStoreError::Open,
        /// Requests are refused with 503.
        "closed" => OnStoreError::Closed,
        /// This process decides with a part of the quota; see `store.redis.localShare`.
        "local" => OnStoreError::Local,
    }

    Strategy -> Algorithm {
        /// `limit` in each window: minutes, hours, or the days of a `calendar`.
        "fixed_window_counter" => Algorithm::FixedWindowCounter,
        /// `limit` in any window; exact.
        "sliding_window_log" => Algorithm::SlidingWindowLog { resolution: Resolution::Auto },
        /// This window and a share of the one before.
        "sliding_window_counter" => Algorithm::SlidingWindowCounter,
        /// A burst at once, then `limit` per window.
        "token_bucket" => Algorithm::TokenBucket { refill: Refill::Greedy },
        /// A queue that leaves at an even rate.
        "leaky_bucket" => Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    }
}

type Units = Whole<1, { tollgate::Policy::MAX_LIMIT }>;

type AtOnce = Whole<1, 10_000>;
