//! The keys of the configuration file. The reader, the JSON Schema and
//! docs/configuration-reference.md are generated from these declarations.
//!
//! | file | sections |
//! |---|---|
//! | `server.rs` | where to listen and where to forward to |
//! | `limits.rs` | policies: quotas, and the requests that they are for |
//! | `levels.rs` | levels above clients, such as teams |
//! | `window.rs` | windows and bursts |
//! | `path.rs` | path patterns |
//! | `llm.rs` | budgets for language models |
//! | `options.rs` | policy options |
//! | `identity.rs` | the client whose quota a request uses, and the lists of clients |
//! | `tenants.rs` | tenants with their own numbers |
//! | `target.rs` | targets, and changes to requests and responses |
//! | `tls.rs` | certificates |
//! | `store.rs` | where quotas are stored |
//! | `answers.rs` | headers and denials |
//! | `telemetry.rs` | logs and traces |
//! | `test_file.rs` | the file of `tollgate test` |
//! | `value_types.rs` | values that several sections use |

mod answers;
mod identity;
mod levels;
mod limits;
mod llm;
mod options;
mod path;
mod server;
mod store;
mod target;
mod telemetry;
mod tenants;
mod test_file;
mod tls;
mod value_types;
mod window;

pub use self::answers::Headers;
pub(super) use self::answers::Response;
pub(super) use self::identity::{
    ApiKey, ApiKeys, ClientKey, Identity, IdentityWord, Jwt, MissingStatus, MissingWord, Subjects,
};
pub(super) use self::levels::{GroupKey, Level, LimitLevels, LlmLevel};
pub(super) use self::limits::{Api, Costs, Policy, Rules, Tier, Tiers};
pub(super) use self::llm::{Llm, ModelPrice};
pub(super) use self::options::{Concurrency, Penalty, PlainQuota};
pub use self::options::{CountOnly, ForgiveOn, Waiting};
pub(super) use self::path::{Path, PathSection};
pub use self::server::{Admin, Listen, ResponseHeaders, Timeouts};
pub(super) use self::server::{
    DecisionApi, DecisionPolicy, ForwardAuth, Paths, RateLimitService, Route,
};
pub use self::store::Memory;
pub(super) use self::store::{Redis, Store};
pub use self::target::HealthCheck;
pub(super) use self::target::{HeaderEdits, Target, TargetSection};
pub use self::telemetry::{AccessLogFormat, AccessLogPlan, LogFormat, LogPlan, TracingPlan};
pub(super) use self::tenants::{
    Tenant, TenantOrUnlimited, Tenants, TenantsFile, TenantsHttp, TenantsRedis,
};
pub use self::test_file::{Expect, FaultAt, Requests, Test, TestFile, WindowBound, WorstBound};
pub use self::tls::{CertificateFiles, TargetTlsFiles, TlsFiles};
pub(super) use self::window::Window;

use self::levels::Levels;
use self::value_types::{OnError, Proxies, Strategy};
use crate::file::format;
use crate::yaml::spec::Section;
use crate::yaml::typed::{Either, Flag, List, OneOrMore, Short, Whole, section};

/// The table of the file.
pub fn root() -> &'static Section {
    File::table()
}

/// The table of a file with tenants.
pub fn tenants_file() -> &'static Section {
    TenantsFile::table()
}

/// The table of a test file.
pub fn test_file() -> &'static Section {
    TestFile::table()
}

section! {
    /// The top level of the file.
    keys File = "The file" {
        /// Contains the entire configuration.
        required rate_limiter: RateLimiter,
        /// The same as `rateLimiter.target`. Write only one of the two.
        optional target: Target,
    }

    /// Listeners, targets, identities and limits.
    keys RateLimiter = "rateLimiter" {
        /// Where clients connect.
        default listen: OneOrMore<Short<format::Address, Listen>> = "0.0.0.0:8080",
        /// The address for health checks, state, metrics and the live page. No public listener serves
        /// them. Beyond loopback, everything except health checks needs the token.
        default admin: Short<format::Address, Admin> = "127.0.0.1:8081",
        /// Lets another proxy call the gateway for decisions. With a `target`, the gateway forwards
        /// requests too; otherwise it does not open `listen`.
        optional forward_auth: ForwardAuth,
        /// Lets Envoy call the gateway for decisions over gRPC. The rules are in separate files.
        optional rate_limit_service: RateLimitService,
        /// Lets programs in any language call the gateway for decisions, over HTTP with JSON.
        optional decision_api: DecisionApi,
        /// The target of all requests that match no route.
        optional target: Target,
        /// Other targets by host and path. The first match applies. A request without a match gets
        /// 404 if there is no `target`.
        optional routes: List<Route>,
        /// The algorithm of all policies without their own `strategy`.
        default strategy: Strategy = "sliding_window_counter",
        /// One quota for all clients together.
        optional global: Policy,
        /// One quota per client, over all paths.
        optional client: Policy,
        /// Additional quotas for some requests. The first entry that matches applies together with
        /// `client` and `global`: all three are charged, or the request is denied.
        optional apis: List<Api>,
        /// Budgets of each client for language models, in requests, tokens and money. They apply on
        /// all routes, in addition to `client` and `global` and before `apis`.
        optional llm: Llm,
        /// How the gateway identifies a client. In a list, the first entry that finds a client
        /// applies.
        default identity: OneOrMore<Short<IdentityWord, Identity>> = "ip",
        /// How to treat a request in which `identity` finds no client.
        default on_missing_key: Either<MissingWord, MissingStatus> = "deny",
        /// The proxies in front of the gateway. The gateway trusts their X-Forwarded-For.
        optional trusted_proxies: Proxies,
        /// The tokens that are valid for `identity: user`.
        optional jwt: Jwt,
        /// The API keys that are valid for `identity: apiKey`, as a list or as a section.
        optional api_keys: Short<List<ApiKey>, ApiKeys>,
        /// The levels above clients, such as teams and organisations, and how the gateway finds the
        /// group of a request. `client`, `apis` and `llm` set the quotas.
        optional levels: Levels,
        /// Quotas that replace the quota of `client` for some clients. `apiKeys` or a claim of the
        /// token assigns a client to a tier.
        optional tiers: Tiers,
        /// Each tenant's own numbers, which replace the quota of `client` or of a level: from a file,
        /// another service or Redis. A list has an entry for each level.
        optional tenants: OneOrMore<Tenants>,
        /// The request costs for all policies without their own `costs`. By default every request
        /// costs 1.
        optional costs: Costs,
        /// Paths that no limit applies to, such as health checks and static files. The gateway
        /// forwards them without a call to the store.
        optional exempt: List<Path>,
        /// The number of CORS preflights per minute and client address (IPv6: per /64). Preflights
        /// use no quota, so the policy `cors/preflights` limits them wherever other requests have a
        /// limit. `charged` treats preflights like other requests, and `unlimited` forwards all
        /// preflights.
        default preflights: format::Preflights = "1000",
        /// The paths of gRPC services, such as `/pkg.Greeter/*`. A denied gRPC call to these paths
        /// gets a gRPC status with HTTP status 200. All other denials have an HTTP status.
        optional grpc: List<format::Path>,
        /// The blocklist. These clients get 403 on every path, even if they are also in `allow`.
        optional deny: Subjects,
        /// The allowlist. No limit applies to these clients.
        optional allow: Subjects,
        /// Bounds on the requests that wait at the same time within this gateway, because of `excess`.
        implied waiting: Waiting,
        /// How a policy treats requests while the store is unavailable.
        default on_store_error: OnError = "local",
        /// How a policy treats a request that was rejected before Redis was called, because Redis
        /// could not have answered before the timeout. Default: the value of `onStoreError`.
        optional shed: OnError,
        /// Makes all policies count without denying any request. Allowed requests are charged as
        /// usual.
        default shadow: Flag = "false",
        /// Where quotas are stored.
        default store: Either<format::Store, Store> = "memory",
        /// The path at which clients read their limits, such as `/rate-limit`, with GET or HEAD. The
        /// gateway answers these requests itself and charges nothing. By default the target gets
        /// them.
        optional status_path: format::Path,
        /// The rate limit headers in responses.
        implied headers: Headers,
        /// The content of denials.
        optional response: Response,
        /// How to treat paths that servers interpret in different ways.
        implied paths: Paths,
        /// Timeouts of connections, requests and the shutdown.
        implied timeouts: Timeouts,
        /// The maximum size of a request body, for targets without their own `maxBodyBytes`.
        optional max_body_bytes: Whole<0, { u64::MAX }>,
        /// The maximum number of upgraded connections (WebSockets). Further upgrades get 503.
        default max_tunnels: Whole<0, 1_000_000, usize> = "10000",
        /// Format and level of the log.
        implied log: LogPlan,
        /// Writes a line for each request.
        optional access_log: AccessLogPlan,
        /// Sends traces to a collector. By default the gateway forwards trace headers unchanged.
        /// This key needs a build with the feature `otlp`.
        optional tracing: TracingPlan,
    }
}
