//! The keys of the configuration file, from which the reader, the schema and the documentation
//! are made.
//!
//! | file | sections |
//! |---|---|
//! | `server.rs` | where to listen and where to forward to |
//! | `limits.rs` | policies: quotas, and which requests they are about |
//! | `beside.rs` | what a policy may have besides its quota |
//! | `identity.rs` | whose quota a request uses, and who is listed |
//! | `store.rs` | where quotas are kept |
//! | `answers.rs` | what clients are told |
//! | `telemetry.rs` | what those who run it are told |

macro_rules! policy_fields {
    ($($first:expr),* ; $limit:expr ; $($last:expr),*) => {
        &[
            $($first,)*
            $limit,
            optional("window", Shape::Span, "How long the limit holds for: `500ms`, `60s`, `1h`."),
            optional("windowSeconds", Shape::Whole { min: 1, max: MAX_SECONDS }, "The same in seconds."),
            optional("refillSeconds", Shape::Whole { min: 1, max: MAX_SECONDS }, "The time in which `limit` units are refilled (token_bucket) or drain (leaky_bucket); in place of the window, and without effect on other algorithms."),
            CALENDAR,
            TIME_ZONE,
            optional("burst", UNITS, "The most units at once, for token_bucket and leaky_bucket. Without it, the limit."),
            $($last,)*
        ]
    };
}

mod answers;
mod beside;
mod identity;
mod limits;
mod server;
mod store;
mod target;
mod telemetry;

use self::answers::{HEADERS, RESPONSE};
pub(super) use self::beside::CONCURRENCY;
use self::beside::WAITING;
use self::identity::{API_KEY, API_KEYS, IDENTITY_ANY, JWT, MISSING, MISSING_STATUS, SUBJECTS};
use self::limits::{API, COSTS, POLICY, TIERS};
use self::server::{
    ADMIN, FORWARD_AUTH, LISTEN_ANY, PATH, PATHS, RATE_LIMIT_SERVICE, ROUTE, TIMEOUTS,
};
use self::store::STORE;
use self::target::TARGET;
pub(super) use self::target::{prefix, server};
use self::telemetry::{ACCESS_LOG, LOG, TRACING};
use super::format;
use super::spec::{Format, Section, Shape, default, optional, required};

/// The file.
pub static ROOT: Section = Section {
    name: "The file",
    doc: "The root has one key of its own.",
    fields: &[
        required("rateLimiter", Shape::Section(&RATE_LIMITER), "Everything."),
        optional("target", TARGET, "The same as `rateLimiter.target`, which may stand here too."),
    ],
    either: &[],
    others: None,
};

pub(super) static RATE_LIMITER: Section = Section {
    name: "rateLimiter",
    doc: "Where to listen, where to forward to, whose quota a request uses, and the limits.",
    fields: &[
        default(
            "listen",
            LISTEN_ANY,
            "0.0.0.0:8080",
            "Where clients connect: an address, a section, or a list of both.",
        ),
        default(
            "admin",
            Shape::Either(&[text(format::ADDRESS), Shape::Section(&ADMIN)]),
            "127.0.0.1:8081",
            "Where health, state, metrics and a live page are served: an address, or a section. Never on a public listener. Beyond loopback all but health needs the token.",
        ),
        optional(
            "forwardAuth",
            Shape::Section(&FORWARD_AUTH),
            "Decides for another proxy instead of forwarding, or besides. Without a target the gateway listens at no `listen`.",
        ),
        optional(
            "rateLimitService",
            Shape::Section(&RATE_LIMIT_SERVICE),
            "Decides for Envoy over gRPC, by rules in files of their own.",
        ),
        optional("target", TARGET, "Where requests go that no route takes."),
        optional(
            "routes",
            Shape::List(&Shape::Section(&ROUTE)),
            "Other targets, by host and path; the first that matches. Without a match and without `target` the answer is 404.",
        ),
        default(
            "strategy",
            STRATEGY,
            "sliding_window_counter",
            "The algorithm of the policies that name none.",
        ),
        optional("global", Shape::Section(&POLICY), "One quota that everybody shares."),
        optional("client", Shape::Section(&POLICY), "A quota for each client, over everything."),
        optional(
            "apis",
            Shape::List(&Shape::Section(&API)),
            "Quotas for some requests, over and above those of `client` and `global`: the first that matches, all or none of the three.",
        ),
        default(
            "identity",
            IDENTITY_ANY,
            "ip",
            "The client whose quota a request uses: a word, a section, or a list; the first entry that finds a client counts.",
        ),
        default(
            "onMissingKey",
            Shape::Either(&[Shape::Word(MISSING), Shape::Section(&MISSING_STATUS)]),
            "deny",
            "Decides about a request in which `identity` finds no client.",
        ),
        optional(
            "trustedProxies",
            NETWORKS,
            "The proxies in front: whose X-Forwarded-For is believed. `private` is a keyword one has to write.",
        ),
        optional("jwt", Shape::Section(&JWT), "Which tokens to believe, for `identity: user`."),
        optional(
            "apiKeys",
            Shape::Either(&[Shape::List(&Shape::Section(&API_KEY)), Shape::Section(&API_KEYS)]),
            "Which API keys to believe, for `identity: apiKey`: a list of keys, or a section.",
        ),
        optional(
            "tiers",
            Shape::Section(&TIERS),
            "Other quotas in place of `client`'s, by name; who is in one is said in `apiKeys` or by a claim of the token.",
        ),
        optional(
            "costs",
            Shape::Section(&COSTS),
            "The costs of requests, for policies without their own. Without this key every request costs 1.",
        ),
        optional(
            "exempt",
            Shape::List(&PATH),
            "Paths that are forwarded without asking the store: health checks, static files.",
        ),
        default(
            "exemptPreflights",
            Shape::Flag,
            "true",
            "Forwards CORS preflights without asking the store. Any client can send them; `false` limits them like other requests.",
        ),
        optional(
            "deny",
            Shape::Section(&SUBJECTS),
            "The blocklist: these clients are rejected with 403 on every path, also if `allow` has them.",
        ),
        optional(
            "allow",
            Shape::Section(&SUBJECTS),
            "The allowlist: no limit applies to these clients.",
        ),
        optional(
            "waiting",
            Shape::Section(&WAITING),
            "How many requests may wait at once for policies with `excess: {wait: …}`.",
        ),
        default(
            "onStoreError",
            Shape::Word(ON_STORE_ERROR),
            "local",
            "How a policy treats requests while the store cannot decide.",
        ),
        optional(
            "shed",
            Shape::Word(ON_STORE_ERROR),
            "How a policy treats a request that was refused before it was sent to Redis, because no answer could come in time. Without it, as `onStoreError`.",
        ),
        default(
            "shadow",
            Shape::Flag,
            "false",
            "Every policy only watches: it never blocks and is charged for what passes.",
        ),
        default(
            "store",
            Shape::Either(&[text(format::STORE), Shape::Section(&STORE)]),
            "memory",
            "Where quotas are kept.",
        ),
        optional(
            "headers",
            Shape::Section(&HEADERS),
            "Which fields tell clients where they stand.",
        ),
        optional("response", Shape::Section(&RESPONSE), "The content of denials."),
        optional(
            "paths",
            Shape::Section(&PATHS),
            "Decides about paths with more than one reading.",
        ),
        optional("timeouts", Shape::Section(&TIMEOUTS), "How long things may take."),
        default(
            "maxTunnels",
            Shape::Whole { min: 0, max: 1_000_000 },
            "10000",
            "The most upgraded connections (WebSockets) at a time. Who asks for a further one gets 503.",
        ),
        optional("log", Shape::Section(&LOG), "The content and format of the log."),
        optional("accessLog", Shape::Section(&ACCESS_LOG), "A line for each request."),
        optional(
            "tracing",
            Shape::Section(&TRACING),
            "Where spans of requests and decisions are sent; without it, trace headers pass as they are. It needs a build with the feature `otlp`.",
        ),
    ],
    either: &[],
    others: None,
};

const ON_STORE_ERROR: &[(&str, &str)] = &[
    ("open", "Requests pass unlimited."),
    ("closed", "Requests are refused with 503."),
    ("local", "This process decides with a part of the quota; see `store.redis.localShare`."),
];

const TEXT: Shape = text(format::TEXT);

const fn text(format: Format) -> Shape {
    Shape::Text(format)
}

const NETWORKS: Shape = Shape::List(&text(format::NETWORK));

const STRATEGY: Shape = Shape::Word(&[
    (
        "fixed_window_counter",
        "`limit` in each window: minutes, hours, or the days of a `calendar`.",
    ),
    ("sliding_window_log", "`limit` in any window; exact."),
    ("sliding_window_counter", "This window and a share of the one before."),
    ("token_bucket", "A burst at once, then `limit` per window."),
    ("leaky_bucket", "A queue that leaves at an even rate."),
]);

const UNITS: Shape = Shape::Whole { min: 1, max: MAX_UNITS };

/// As a policy has it.
const MAX_UNITS: u64 = tollgate::Policy::MAX_LIMIT;

/// 400 days, the longest window of a policy.
const MAX_SECONDS: u64 = 400 * 86_400;

/// As a policy of requests in flight has it.
const MOST_AT_ONCE: u64 = 10_000;

/// As a penalty has them.
const MOST_STRIKES: u64 = 1_000;

const MOST_FACTOR: u64 = 1_000_000;
