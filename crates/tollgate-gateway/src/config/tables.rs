//! The keys of the configuration file.

use tollgate::denial::Members;

use super::format;
use super::spec::{Field, Format, Others, Section, Shape, default, optional, required};

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
            "Where clients connect: an address, or a list of addresses and sections.",
        ),
        default(
            "admin",
            Shape::Either(&[text(format::ADDRESS), Shape::Section(&ADMIN)]),
            "127.0.0.1:8081",
            "Where health, state, metrics and a live page are served: an address, or a section. Never on a public listener.",
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
            "Whose quota a request uses: a word, a section, or a list of them, of which the first that finds somebody counts.",
        ),
        default(
            "onMissingKey",
            Shape::Word(MISSING),
            "deny",
            "What becomes of a request in which `identity` finds nobody.",
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
            "What requests take, where a policy does not say it. Without it every request costs 1.",
        ),
        optional(
            "exempt",
            Shape::List(&PATH),
            "Paths that are forwarded without asking the store: health checks, static files.",
        ),
        optional(
            "deny",
            Shape::Section(&SUBJECTS),
            "Who is refused with 403, whatever the path and whatever else is said of him.",
        ),
        optional("allow", Shape::Section(&SUBJECTS), "Whom no limit holds for."),
        optional(
            "waiting",
            Shape::Section(&WAITING),
            "How many requests may wait at once for policies with `excess: {wait: …}`.",
        ),
        default(
            "onStoreError",
            Shape::Word(ON_STORE_ERROR),
            "open",
            "What a policy does while the store cannot decide.",
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
        optional("response", Shape::Section(&RESPONSE), "What denials say."),
        optional(
            "paths",
            Shape::Section(&PATHS),
            "What becomes of paths with more than one reading.",
        ),
        optional("timeouts", Shape::Section(&TIMEOUTS), "How long things may take."),
        default(
            "maxTunnels",
            Shape::Whole { min: 0, max: 1_000_000 },
            "10000",
            "The most upgraded connections (WebSockets) at a time. Who asks for a further one gets 503.",
        ),
        optional("log", Shape::Section(&LOG), "What the log says, and how."),
        optional(
            "tracing",
            Shape::Section(&TRACING),
            "Where spans of requests and decisions are sent; without it, trace headers pass as they are. It needs a build with the feature `otlp`.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) static ADMIN: Section = Section {
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

const LISTEN_ANY: Shape = Shape::Either(&[
    text(format::ADDRESS),
    Shape::List(&Shape::Either(&[text(format::ADDRESS), Shape::Section(&LISTEN)])),
]);

pub(super) static LISTEN: Section = Section {
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
        default(
            "maxConnections",
            Shape::Whole { min: 1, max: 1_000_000 },
            "20000",
            "The most connections at a time. Others wait in the system's queue until one ends; meanwhile connections between two requests are kept for a second only. An address alone has the default.",
        ),
    ],
    either: &[],
    others: None,
};

const TLS: Section = Section {
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

const TARGET: Shape = Shape::Either(&[text(format::TARGET), Shape::Section(&TARGET_SECTION)]);

const TARGET_SECTION: Section = Section {
    name: "target",
    doc: "Where requests are forwarded to: the URL alone, or a section.",
    fields: &[
        required(
            "url",
            text(format::TARGET),
            "The URL. A path in it stands before that of each request.",
        ),
        default(
            "protocol",
            Shape::Word(&[
                ("http1", "HTTP/1.1."),
                ("http2", "HTTP/2; without TLS by prior knowledge, as gRPC wants it."),
            ]),
            "http1",
            "What is spoken there.",
        ),
        default(
            "preserveHost",
            Shape::Flag,
            "true",
            "Whether the target sees the `Host` that the client asked for, or its own.",
        ),
    ],
    either: &[],
    others: None,
};

const ROUTE: Section = Section {
    name: "routes[]",
    doc: "Requests with a target of their own. What a route does not say of `global`, `client` and `apis` it has from `rateLimiter`, and shares the quotas.",
    fields: &[
        required(
            "name",
            text(format::IDENTIFIER),
            "The name, unique. The route's own `client` is the policy `NAME/client`, its `global` is `NAME/global`.",
        ),
        optional("host", text(format::HOST), "Only requests to this host."),
        default("path", PATH, "/*", "Only requests to these paths."),
        required("target", TARGET, "Where they go. The path stays as it is."),
        optional("global", Shape::Section(&POLICY), "In place of `rateLimiter.global`."),
        optional("client", Shape::Section(&POLICY), "In place of `rateLimiter.client`."),
        optional("apis", Shape::List(&Shape::Section(&API)), "In place of `rateLimiter.apis`."),
    ],
    either: &[],
    others: None,
};

/// A path, or a section that says how it is meant.
const PATH: Shape = Shape::Either(&[text(format::PATH), Shape::Section(&PATH_SECTION)]);

const PATH_SECTION: Section = Section {
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

macro_rules! policy_fields {
    ($($first:expr),* ; $limit:expr ; $($last:expr),*) => {
        &[
            $($first,)*
            $limit,
            optional("window", Shape::Span, "How long the limit holds for: `500ms`, `60s`, `1h`."),
            optional("windowSeconds", Shape::Whole { min: 1, max: MAX_SECONDS }, "The same in seconds."),
            optional("refillSeconds", Shape::Whole { min: 1, max: MAX_SECONDS }, "The time in which `limit` units come back (token_bucket) or drain (leaky_bucket); in place of the window, and without effect on other algorithms."),
            CALENDAR,
            TIME_ZONE,
            optional("burst", UNITS, "The most units at once, for token_bucket and leaky_bucket. Without it, the limit."),
            $($last,)*
        ]
    };
}

const LIMIT: Field =
    required("limit", UNITS, "Units per window; a request costs 1 unless `costs` says otherwise.");

const CALENDAR: Field = optional(
    "calendar",
    Shape::Word(&[
        ("day", "From midnight to midnight."),
        ("week", "From Monday to Monday."),
        ("month", "From the first to the first."),
    ]),
    "What the limit holds for, by the clocks of `timeZone`, in place of the window; for fixed_window_counter alone.",
);
const TIME_ZONE: Field = optional(
    "timeZone",
    text(format::TIME_ZONE),
    "Whose days, weeks or months `calendar` means: `Europe/Berlin`. Without it, `UTC`.",
);
const STRATEGY_FIELD: Field =
    optional("strategy", STRATEGY, "The algorithm. Without it, `rateLimiter.strategy`.");
const REFILL: Field = default(
    "refill",
    Shape::Word(&[
        ("greedy", "Continuously."),
        (
            "interval",
            "All at once, at the end of each window; the first begins with the first request.",
        ),
    ]),
    "greedy",
    "How the tokens of a token_bucket come back.",
);
const MODE: Field = default(
    "mode",
    Shape::Word(&[
        ("queue", "The request waits until the work before it has drained."),
        ("meter", "The request passes at once; the bucket only measures."),
    ]),
    "queue",
    "What a leaky_bucket does with a request that finds room.",
);
const MAX_WAIT: Field = optional(
    "maxWait",
    Shape::Span,
    "The longest wait in the queue of a leaky_bucket; who would wait longer is denied.",
);
const RESOLUTION: Field = default(
    "resolution",
    Shape::Word(&[
        ("auto", "`exact` up to a limit of 1000, `thousandth` above."),
        ("exact", "Every microsecond; at most a limit of 100000."),
        ("thousandth", "A thousandth of the window, rounded up: at most 1001 entries a key."),
    ]),
    "auto",
    "How finely a sliding_window_log keeps instants.",
);
const EXPIRE: Field = optional(
    "expireSeconds",
    Shape::Whole { min: 0, max: u64::MAX },
    "Accepted for the sake of older files, and without effect: what is kept of a client expires by itself.",
);
const COSTS_FIELD: Field = optional(
    "costs",
    Shape::Section(&COSTS),
    "What requests take here, in place of `rateLimiter.costs`.",
);
const STORE_ERROR_FIELD: Field = optional(
    "onStoreError",
    Shape::Word(ON_STORE_ERROR),
    "What the policy does while the store cannot decide. Without it, `rateLimiter.onStoreError`.",
);
const SHADOW_FIELD: Field =
    optional("shadow", Shape::Flag, "The policy only watches. Without it, `rateLimiter.shadow`.");

const EXCESS_FIELD: Field = default(
    "excess",
    Shape::Either(&[text(format::EXCESS), Shape::Section(&EXCESS)]),
    "reject",
    "What becomes of a request that the policy denies: `reject`, or `{wait: 30s}`.",
);
const COUNT_ONLY_FIELD: Field = optional(
    "countOnly",
    Shape::Section(&COUNT_ONLY),
    "Counts some responses alone. Every request is charged before it is forwarded, and what does not count is given back.",
);
const RESERVE_FIELD: Field = optional(
    "reserve",
    Shape::Section(&RESERVE),
    "What a request costs is known only afterwards: an estimate is charged first and corrected then.",
);
const ALSO: Field = optional(
    "also",
    Shape::List(&Shape::Section(&BANDWIDTH)),
    "Further quotas that hold at the same time, with the same algorithm: a request needs room in all of them. The second is the policy `NAME/2`, and so on.",
);

const CONCURRENCY_FIELD: Field = optional(
    "concurrency",
    Shape::Section(&CONCURRENCY),
    "How many requests may be under way at once, besides the limit: the policy `NAME/inflight`.",
);
const PENALTY_FIELD: Field = optional(
    "penalty",
    Shape::Section(&PENALTY),
    "Blocks whoever does not stop, for longer each time: the policy `NAME/penalty`.",
);
const LEASE_FIELD: Field = optional(
    "lease",
    Shape::Section(&LEASE),
    "Gateways that share a Redis take units in blocks and spend them without asking it.",
);

const BANDWIDTH: Section = Section {
    name: "also[]",
    doc: "A quota beside another one.",
    fields: policy_fields!(; LIMIT; ),
    either: &[&["window", "windowSeconds", "calendar"]],
    others: None,
};

const EXCESS: Section = Section {
    name: "excess",
    doc: "What is denied waits until it passes.",
    fields: &[required(
        "wait",
        Shape::Span,
        "The longest wait. Who would wait longer is refused at once.",
    )],
    either: &[],
    others: None,
};

const COUNT_ONLY: Section = Section {
    name: "countOnly",
    doc: "Which responses count. Whatever has no response, because the client leaves, counts.",
    fields: &[required(
        "status",
        Shape::Either(&[text(format::STATUS), Shape::List(&text(format::STATUS))]),
        "Which statuses: `401`, `2xx`, or a list.",
    )],
    either: &[],
    others: None,
};

const RESERVE: Section = Section {
    name: "reserve",
    doc: "An estimate that is corrected. What was too much comes back; what was too little is charged as of now, up to one whole quota beyond the limit.",
    fields: &[
        optional("units", UNITS, "The estimate for every request. Without it, what `costs` says."),
        default(
            "settle",
            Shape::Word(&[
                ("header", "The field `x-tollgate-cost` of the response, a whole number of units."),
                (
                    "body",
                    "The same field among the trailers of the body, or the bytes of the body; see `bytesPerUnit`.",
                ),
            ]),
            "header",
            "What says what a request has cost. The field does not reach the client.",
        ),
        optional(
            "bytesPerUnit",
            Shape::Whole { min: 1, max: MAX_UNITS },
            "With `settle: body`, the response costs a unit for so many bytes, and for each part of it.",
        ),
        default(
            "lapse",
            Shape::Span,
            "1h",
            "How long after the decision it may be corrected; afterwards the estimate stands. At most an hour.",
        ),
    ],
    either: &[],
    others: None,
};

const CONCURRENCY: Section = Section {
    name: "concurrency",
    doc: "How many requests may be under way at once, in each tier the same. One counts until the end of its response, or until its client leaves; an upgraded connection until it is upgraded. `excess` holds for it too.",
    fields: &[
        required("max", Shape::Whole { min: 1, max: MOST_AT_ONCE }, "The most at once."),
        default(
            "lease",
            Shape::Span,
            "30s",
            "How long what a gateway had under way counts after it died; while it lives, it renews that. At most an hour.",
        ),
    ],
    either: &[],
    others: None,
};

const PENALTY: Section = Section {
    name: "penalty",
    doc: "After so many strikes all requests that the policy is about are denied for a time (`#blocked`). With `of: denials` each denial of the same client is a strike, by whichever policy of the request, but none by the block itself.",
    fields: &[
        required(
            "strikes",
            Shape::Whole { min: 1, max: MOST_STRIKES },
            "How many strikes lead to a block.",
        ),
        required("within", Shape::Span, "Within which time."),
        optional(
            "block",
            Shape::Span,
            "How long the first block lasts. Without it, as long as `within`.",
        ),
        default(
            "factor",
            Shape::Whole { min: 1, max: MOST_FACTOR },
            "2",
            "So many times as long as the one before is each next block; 1 for blocks that do not grow.",
        ),
        optional(
            "longest",
            Shape::Span,
            "No block lasts longer. Without it, a day, or the first block if that is longer.",
        ),
        default(
            "forgetAfter",
            Shape::Span,
            "24h",
            "So long after the end of a block the next one is a first one again.",
        ),
        default(
            "of",
            Shape::Word(&[
                ("denials", "Requests that are denied."),
                ("failures", "Responses that `countOnly` is about."),
            ]),
            "denials",
            "What a strike is.",
        ),
        optional(
            "countOnly",
            Shape::Section(&COUNT_ONLY),
            "With `of: failures`, which responses are strikes. Without it, those that the policy's own `countOnly` counts.",
        ),
    ],
    either: &[],
    others: None,
};

const LEASE: Section = Section {
    name: "lease",
    doc: "Fewer calls to Redis for a client that is busy, and never more than the limit; but up to the share that each gateway holds may lie unused. A request is spared the call where every policy it meets is leased.",
    fields: &[
        default(
            "share",
            text(format::SHARE),
            "1/20",
            "The most of the quota that a gateway holds at a time.",
        ),
        default("ttl", Shape::Span, "1s", "For how long: from 10ms up to the window."),
    ],
    either: &[],
    others: None,
};

const POLICY: Section = Section {
    name: "client",
    doc: "A policy: how much per how long. `global` has the same keys.",
    fields: policy_fields!(
        optional("identifier", text(format::IDENTIFIER), "The name that denials give; counters belong to it. Without it, `global` or `client`.");
        LIMIT;
        STRATEGY_FIELD, REFILL, MODE, MAX_WAIT, RESOLUTION, EXPIRE, COSTS_FIELD, STORE_ERROR_FIELD, SHADOW_FIELD,
        ALSO, EXCESS_FIELD, COUNT_ONLY_FIELD, RESERVE_FIELD, CONCURRENCY_FIELD, PENALTY_FIELD, LEASE_FIELD
    ),
    either: &[&["window", "windowSeconds", "calendar"]],
    others: None,
};

const API: Section = Section {
    name: "apis[]",
    doc: "A policy for some requests. It counts for each client by itself.",
    fields: policy_fields!(
        required("identifier", text(format::IDENTIFIER), "The name that denials give, unique; counters belong to it."),
        required("path", PATH, "Which paths."),
        optional("method", Shape::Either(&[text(format::METHOD), Shape::List(&text(format::METHOD))]), "Which method, or a list. GET covers HEAD. Without it, all."),
        default("per", Shape::Word(&[("client", "Each client has its own."), ("everyone", "One for all.")]), "client", "Whose quota it is.");
        optional("limit", UNITS, "Units per window. This or `share` is required.");
        optional("share", text(format::SHARE), "A part of the quota of `client`, in each tier of that tier's: `1/10`. In place of limit, window and burst."),
        STRATEGY_FIELD, REFILL, MODE, MAX_WAIT, RESOLUTION, EXPIRE, COSTS_FIELD, STORE_ERROR_FIELD, SHADOW_FIELD,
        ALSO, EXCESS_FIELD, COUNT_ONLY_FIELD, RESERVE_FIELD, CONCURRENCY_FIELD, PENALTY_FIELD, LEASE_FIELD
    ),
    either: &[
        &["limit", "share"],
        &["window", "windowSeconds", "calendar", "share"],
        &["refillSeconds", "share"],
        &["burst", "share"],
        &["also", "share"],
    ],
    others: None,
};

const TIERS: Section = Section {
    name: "tiers",
    doc: "Quotas in place of `client`'s, each under the name of its tier. Algorithm and all else are those of `client`.",
    fields: &[],
    either: &[],
    others: Some(&Others {
        key: format::IDENTIFIER,
        shape: Shape::Section(&TIER),
        doc: "The quota of a client in the tier of this name.",
    }),
};

const TIER: Section = Section {
    name: "tiers.NAME",
    doc: "A quota, or with `also` several at the same time.",
    fields: policy_fields!(; LIMIT; ALSO),
    either: &[&["window", "windowSeconds", "calendar"]],
    others: None,
};

const COSTS: Section = Section {
    name: "costs",
    doc: "What requests take: the first of `paths` that matches, else the method's, else `other`. GET covers HEAD.",
    fields: &[
        default(
            "other",
            Shape::Whole { min: 0, max: MAX_UNITS },
            "1",
            "A request of any other method.",
        ),
        optional("paths", Shape::List(&Shape::Section(&COST_PATH)), "Requests to some paths."),
    ],
    either: &[],
    others: Some(&Others {
        key: format::METHOD,
        shape: Shape::Whole { min: 0, max: MAX_UNITS },
        doc: "A request of this method; 0 is free.",
    }),
};

const COST_PATH: Section = Section {
    name: "costs.paths[]",
    doc: "A cost for some requests.",
    fields: &[
        required("path", PATH, "Which paths."),
        optional(
            "method",
            Shape::Either(&[text(format::METHOD), Shape::List(&text(format::METHOD))]),
            "Which method, or a list. Without it, all.",
        ),
        required("cost", Shape::Whole { min: 0, max: MAX_UNITS }, "What they take."),
    ],
    either: &[],
    others: None,
};

const IDENTITY_ANY: Shape = Shape::Either(&[
    Shape::Word(IDENTITIES),
    Shape::List(&Shape::Either(&[Shape::Word(IDENTITIES), Shape::Section(&IDENTITY)])),
    Shape::Section(&IDENTITY),
]);

const IDENTITIES: &[(&str, &str)] = &[
    ("ip", "The address of the client: IPv4, or a /64 of IPv6."),
    ("ipv4", "The same."),
    ("user", "The subject of a verified token; see `jwt`."),
    ("apiKey", "An API key of the list; see `apiKeys`."),
];

const IDENTITY: Section = Section {
    name: "identity",
    doc: "Whose quota a request uses.",
    fields: &[
        required("key", Shape::Word(IDENTITIES), "What identifies a client."),
        optional(
            "header",
            text(format::HEADER),
            "Where proxies write the client's address: X-Forwarded-For, Forwarded, or a header with one address, as X-Real-IP. It is believed of `trustedProxies` alone; without those, of loopback.",
        ),
        optional(
            "trustedProxies",
            NETWORKS,
            "In place of `rateLimiter.trustedProxies`. With them and without `header`, that is X-Forwarded-For.",
        ),
        default(
            "ipv4Prefix",
            Shape::Whole { min: 1, max: 32 },
            "32",
            "How many bits of an IPv4 address count.",
        ),
        default(
            "ipv6Prefix",
            Shape::Whole { min: 1, max: 128 },
            "64",
            "How many bits of an IPv6 address count.",
        ),
    ],
    either: &[],
    others: None,
};

const MISSING: &[(&str, &str)] = &[
    ("deny", "It is refused with 403."),
    ("pass", "It passes, limited by policies for everybody alone."),
    ("share", "All such requests share one quota of each policy."),
];

const JWT: Section = Section {
    name: "jwt",
    doc: "Tokens in `Authorization: Bearer …`. One that is invalid identifies nobody. Where the keys come from is one of `secret`, `keyFile`, `jwksFile` and `jwksUrl`.",
    fields: &[
        optional(
            "secret",
            text(format::HS256),
            "A shared secret of at least 32 bytes, for HS256; best from a variable.",
        )
        .secret(),
        optional("keyFile", TEXT, "A PEM file with a public key; it needs `algorithm`."),
        optional(
            "algorithm",
            Shape::Word(&[("RS256", "RSA."), ("ES256", "P-256."), ("EdDSA", "Ed25519.")]),
            "What the key of `keyFile` is for.",
        ),
        optional("jwksFile", TEXT, "A key set in a file; read again when it changes."),
        optional(
            "jwksUrl",
            text(format::JWKS_URL),
            "A key set at a URL: https, or http to this machine. Fetched at the start, when it is older than `maxAge`, and when a token names a key that is not in it. Redirects are not followed, and 1 MiB is the most. While it cannot be fetched, the keys before stay.",
        ),
        default(
            "minRefetch",
            Shape::Span,
            "30s",
            "How much time lies between two fetches at least, whatever tokens come.",
        ),
        default("maxAge", Shape::Span, "10m", "When `jwksUrl` is fetched again in any case."),
        default("fetchTimeout", Shape::Span, "5s", "How long an answer of `jwksUrl` may take."),
        optional("issuer", TEXT, "What `iss` must be. Without it, it is not looked at."),
        optional(
            "audience",
            Shape::Either(&[TEXT, Shape::List(&TEXT)]),
            "What `aud` must be, or one of which. Without it, tokens that name an audience are refused.",
        ),
        optional("tierClaim", TEXT, "The claim that names the tier of a user."),
    ],
    either: &[&["secret", "keyFile", "jwksFile", "jwksUrl"]],
    others: None,
};

const API_KEYS: Section = Section {
    name: "apiKeys",
    doc: "API keys that were given out, by their digests. A key that is not in the list identifies nobody.",
    fields: &[
        default("header", text(format::HEADER), "X-API-Key", "The header field with the key."),
        optional("scheme", TEXT, "In place of that, the scheme in `Authorization: SCHEME KEY`."),
        required("keys", Shape::List(&Shape::Section(&API_KEY)), "The keys."),
    ],
    either: &[&["header", "scheme"]],
    others: None,
};

const API_KEY: Section = Section {
    name: "apiKeys.keys[]",
    doc: "A key that was given out.",
    fields: &[
        required(
            "sha256",
            text(format::SHA256),
            "Its SHA-256, as `printf %s KEY | sha256sum` prints it.",
        )
        .secret(),
        optional("tier", text(format::IDENTIFIER), "The tier of whoever has it."),
    ],
    either: &[],
    others: None,
};

const SUBJECTS: Section = Section {
    name: "deny",
    doc: "A list of subjects. `allow` has the same keys. Who is on both is refused.",
    fields: &[
        optional(
            "addresses",
            Shape::List(&text(format::LISTED)),
            "Networks and addresses of clients.",
        ),
        optional(
            "apiKeys",
            Shape::List(&Shape::Section(&LISTED_KEY)),
            "Whoever has one of these API keys; they need not be among `apiKeys`.",
        ),
        optional(
            "users",
            Shape::List(&text(format::USER)),
            "Users of tokens: the name, or issuer and name with a space between where `jwt` has no `issuer`.",
        ),
        optional(
            "file",
            TEXT,
            "A file with more, a line each: `203.0.113.0/24`, `sha256:DIGEST` or `user:NAME`; what follows a `#` is a comment. It is read again when it changes.",
        ),
    ],
    either: &[],
    others: None,
};

const LISTED_KEY: Section = Section {
    name: "deny.apiKeys[]",
    doc: "An API key.",
    fields: &[required(
        "sha256",
        text(format::SHA256),
        "Its SHA-256, as `printf %s KEY | sha256sum` prints it.",
    )
    .secret()],
    either: &[],
    others: None,
};

const WAITING: Section = Section {
    name: "waiting",
    doc: "What may be held of requests that wait. Others are refused.",
    fields: &[
        default(
            "requests",
            Shape::Whole { min: 0, max: 1_000_000 },
            "1024",
            "The most requests at once.",
        ),
        default(
            "megabytes",
            Shape::Whole { min: 1, max: 1_000_000 },
            "64",
            "The most memory for them: their fields, and of each body what is taken in before it is forwarded, the length that it states or 1 MiB.",
        ),
    ],
    either: &[],
    others: None,
};

const ON_STORE_ERROR: &[(&str, &str)] = &[
    ("open", "Requests pass."),
    ("closed", "Requests are refused with 503."),
    ("local", "This process decides with a part of the quota; see `store.redis.localShare`."),
];

const STORE: Section = Section {
    name: "store",
    doc: "Where quotas are kept: one of the two.",
    fields: &[
        optional("memory", Shape::Section(&MEMORY), "In this process."),
        optional("redis", Shape::Section(&REDIS), "In Redis, shared by all replicas."),
    ],
    either: &[&["memory", "redis"]],
    others: None,
};

const MEMORY: Section = Section {
    name: "store.memory",
    doc: "Bounds of what is kept.",
    fields: &[
        default(
            "maxKeys",
            Shape::Whole { min: 1_000, max: 1_000_000_000 },
            "1000000",
            "The most clients, counted once for each policy. Those beyond share a quota.",
        ),
        default("maxMegabytes", Shape::Whole { min: 8, max: 1_000_000 }, "256", "The most memory."),
    ],
    either: &[],
    others: None,
};

const REDIS: Section = Section {
    name: "store.redis",
    doc: "How to use Redis.",
    fields: &[
        required("url", text(format::REDIS_URL), "Where it is: `redis://user:password@host:6379/0`, `rediss://…` with TLS, `redis+unix:///run/redis.sock`; best from a variable.").secret(),
        default("timeout", Shape::Span, "50ms", "How long a decision may take."),
        optional("timeoutMs", Shape::Whole { min: 1, max: 60_000 }, "The same in milliseconds."),
        default("topology", Shape::Word(&[("single", "One server."), ("cluster", "A node of a Cluster."), ("sentinel", "A Sentinel; it needs `sentinelMaster`.")]), "single", "What the URL leads to."),
        optional("sentinelMaster", TEXT, "The name under which Sentinel watches the server."),
        optional("keySecret", TEXT, "The key under which identities are hashed, the same on all replicas. Without it, who can read Redis can find out addresses.").secret(),
        default("localShare", text(format::SHARE), "1/2", "The part of each quota that a policy with `onStoreError: local` grants by itself."),
    ],
    either: &[&["timeout", "timeoutMs"]],
    others: None,
};

const HEADERS: Section = Section {
    name: "headers",
    doc: "Which fields tell clients where they stand. `Retry-After` is on every denial that waiting cures.",
    fields: &[
        default("rateLimit", Shape::Flag, "true", "`RateLimit-Policy` and `RateLimit`."),
        default(
            "xRateLimit",
            Shape::Flag,
            "true",
            "`X-RateLimit-Limit`, `-Remaining` and `-Reset`.",
        ),
        default(
            "retryJitter",
            Shape::Span,
            "0s",
            "Adds up to so much to `Retry-After`, so that clients denied together do not come back together.",
        ),
    ],
    either: &[],
    others: None,
};

const RESPONSE: Section = Section {
    name: "response",
    doc: "What denials say besides the usual.",
    fields: &[optional(
        "members",
        Shape::Section(&MEMBERS),
        "Members that the problem body has besides the usual ones.",
    )],
    either: &[],
    others: None,
};

const MEMBERS: Section = Section {
    name: "response.members",
    doc: "Names and texts.",
    fields: &[],
    either: &[],
    others: Some(&Others { key: MEMBER, shape: TEXT, doc: "The text of the member of this name." }),
};

const MEMBER: Format = Format {
    pattern: Some(r"^[A-Za-z][A-Za-z0-9_-]{2,}$"),
    what: "the name of a further member",
    check: |text| match Members::new().with(text, "") {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    },
};

const PATHS: Section = Section {
    name: "paths",
    doc: "Paths are brought into their normal form, matched, and forwarded in it.",
    fields: &[default(
        "ambiguous",
        Shape::Word(&[
            ("reject", "They are answered with 400."),
            ("keep", "They stay as they are."),
        ]),
        "reject",
        "What becomes of `%2F`, `%5C`, `%00` and broken escapes, which servers read in different ways.",
    )],
    either: &[],
    others: None,
};

const TIMEOUTS: Section = Section {
    name: "timeouts",
    doc: "How long things may take.",
    fields: &[
        default("connect", Shape::Span, "5s", "Connecting to the target."),
        default(
            "response",
            Shape::Span,
            "60s",
            "From the end of a request to the head of the target's response.",
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

const LOG: Section = Section {
    name: "log",
    doc: "What is written to standard error. A line about a request that is part of a trace has its `trace_id`.",
    fields: &[
        default(
            "format",
            Shape::Word(&[("text", "A line for people."), ("json", "An object in each line.")]),
            "text",
            "How lines look; `--log-format` and the variable `TOLLGATE_LOG_FORMAT` go before.",
        ),
        default(
            "level",
            Shape::Word(&[
                ("error", "What stands in the way."),
                ("warn", "And what may come to do so."),
                ("info", "And denials in sum, reloads, start and end."),
                ("debug", "And each denial, and each connection that ends early."),
                ("trace", "Everything."),
                ("off", "Nothing."),
            ]),
            "info",
            "How much is said; the variable `RUST_LOG`, which can tell parts apart, goes before.",
        ),
    ],
    either: &[],
    others: None,
};

const TRACING: Section = Section {
    name: "tracing",
    doc: "A span for each request and each decision, sent by OTLP: protobuf over HTTP.",
    fields: &[
        required(
            "endpoint",
            text(format::TARGET),
            "The URL of the collector, as http://localhost:4318; `/v1/traces` is added unless it stands there.",
        ),
        default(
            "sample",
            text(format::RATIO),
            "1",
            "The part of traces begun here that is sent. Of others, whoever began them has decided.",
        ),
        optional(
            "headers",
            text(format::FIELDS),
            "Header fields for the collector, as `name=value,name=value` with `%2C` for a comma in a value; best from a variable.",
        )
        .secret(),
        default("serviceName", TEXT, "tollgate", "What traces call this gateway."),
        default(
            "timeout",
            Shape::Span,
            "3s",
            "How long the collector may take for a batch, and for what is left when the program stops.",
        ),
    ],
    either: &[],
    others: None,
};

const TEXT: Shape = text(format::TEXT);

const fn text(format: Format) -> Shape {
    Shape::Text(format)
}

const NETWORKS: Shape = Shape::List(&text(format::NETWORK));

const STRATEGY: Shape = Shape::Word(&[
    (
        "fixed_window_counter",
        "So many in each window: minutes, hours, or the days of a `calendar`.",
    ),
    ("sliding_window_log", "So many in any window; exact."),
    ("sliding_window_counter", "This window and a share of the one before."),
    ("token_bucket", "A burst at once, then so many per window."),
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
