//! Policies: quotas, and which requests they are about.

use super::super::format;
use super::super::spec::{Field, Others, Section, Shape, default, optional, required};
use super::beside::{
    ALSO, CONCURRENCY_FIELD, COUNT_ONLY_FIELD, EXCESS_FIELD, LEASE_FIELD, PENALTY_FIELD,
    RESERVE_FIELD,
};
use super::server::PATH;
use super::{MAX_SECONDS, MAX_UNITS, ON_STORE_ERROR, STRATEGY, UNITS, text};

pub(super) const LIMIT: Field =
    required("limit", UNITS, "Units per window; a request costs 1 unless `costs` says otherwise.");

/// Of what may be a limit without a quota.
const QUOTA_OR_NONE: Field = optional(
    "limit",
    UNITS,
    "Units per window; a request costs 1 unless `costs` says otherwise. Without it, `concurrency` or `penalty` is the whole limit.",
);

pub(super) const CALENDAR: Field = optional(
    "calendar",
    Shape::Word(&[
        ("day", "From midnight to midnight."),
        ("week", "From Monday to Monday."),
        ("month", "From the first to the first."),
    ]),
    "The period of the limit, by the clocks of `timeZone`, in place of the window; only for fixed_window_counter.",
);

pub(super) const TIME_ZONE: Field = optional(
    "timeZone",
    text(format::TIME_ZONE),
    "The time zone of the days, weeks or months of `calendar`: `Europe/Berlin`. Without it, `UTC`.",
);

pub(super) const STRATEGY_FIELD: Field =
    optional("strategy", STRATEGY, "The algorithm. Without it, `rateLimiter.strategy`.");

pub(super) const REFILL: Field = default(
    "refill",
    Shape::Word(&[
        ("greedy", "Continuously."),
        (
            "interval",
            "All at once, at the end of each window; the first begins with the first request.",
        ),
    ]),
    "greedy",
    "How a token_bucket is refilled.",
);

pub(super) const MODE: Field = default(
    "mode",
    Shape::Word(&[
        ("queue", "The request waits until the work before it has drained."),
        ("meter", "The request passes at once; the bucket only measures."),
    ]),
    "queue",
    "The action of a leaky_bucket for a request that fits.",
);

pub(super) const MAX_WAIT: Field = optional(
    "maxWait",
    Shape::Span,
    "The longest wait in the queue of a leaky_bucket; who would wait longer is denied.",
);

pub(super) const RESOLUTION: Field = default(
    "resolution",
    Shape::Word(&[
        ("auto", "`exact` up to a limit of 1000, `thousandth` above."),
        ("exact", "Every microsecond; at most a limit of 100000."),
        ("thousandth", "A thousandth of the window, rounded up: at most 1001 entries a key."),
    ]),
    "auto",
    "How finely a sliding_window_log keeps instants.",
);

pub(super) const EXPIRE: Field = optional(
    "expireSeconds",
    Shape::Whole { min: 0, max: u64::MAX },
    "Accepted for the sake of older files, and without effect: what is kept of a client expires by itself.",
);

pub(super) const COSTS_FIELD: Field = optional(
    "costs",
    Shape::Section(&COSTS),
    "The costs of requests here, in place of `rateLimiter.costs`.",
);

pub(super) const STORE_ERROR_FIELD: Field = optional(
    "onStoreError",
    Shape::Word(ON_STORE_ERROR),
    "How the policy treats requests while the store cannot decide. Without it, `rateLimiter.onStoreError`.",
);

pub(super) const SHED_FIELD: Field = optional(
    "shed",
    Shape::Word(ON_STORE_ERROR),
    "How the policy treats a request that was refused before it was sent to Redis, because no answer could come in time. Without it, `rateLimiter.shed`.",
);

pub(super) const SHADOW_FIELD: Field =
    optional("shadow", Shape::Flag, "The policy only watches. Without it, `rateLimiter.shadow`.");

pub(super) const POLICY: Section = Section {
    name: "client",
    doc: "A policy: how much per how long. `global` has the same keys.",
    fields: policy_fields!(
        optional("identifier", text(format::IDENTIFIER), "The name that denials give; counters belong to it. Without it, `global` or `client`.");
        QUOTA_OR_NONE;
        STRATEGY_FIELD, REFILL, MODE, MAX_WAIT, RESOLUTION, EXPIRE, COSTS_FIELD, STORE_ERROR_FIELD, SHED_FIELD, SHADOW_FIELD,
        ALSO, EXCESS_FIELD, COUNT_ONLY_FIELD, RESERVE_FIELD, CONCURRENCY_FIELD, PENALTY_FIELD, LEASE_FIELD
    ),
    either: &[&["window", "windowSeconds", "calendar"]],
    others: None,
};

pub(super) const API: Section = Section {
    name: "apis[]",
    doc: "A policy for some requests. It counts for each client by itself.",
    fields: policy_fields!(
        required("identifier", text(format::IDENTIFIER), "The name that denials give, unique; counters belong to it."),
        required("path", PATH, "Which paths."),
        optional("method", Shape::Either(&[text(format::METHOD), Shape::List(&text(format::METHOD))]), "Which method, or a list. GET covers HEAD. Without it, all."),
        default("per", Shape::Word(&[("client", "Each client has its own."), ("everyone", "One for all.")]), "client", "The owner of the quota.");
        optional("limit", UNITS, "Units per window. Without it, `share` says how many; or `concurrency` or `penalty` is the whole limit.");
        optional("share", text(format::SHARE), "A part of the quota of `client`, in each tier of that tier's: `1/10`. In place of limit, window and burst."),
        STRATEGY_FIELD, REFILL, MODE, MAX_WAIT, RESOLUTION, EXPIRE, COSTS_FIELD, STORE_ERROR_FIELD, SHED_FIELD, SHADOW_FIELD,
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

pub(super) const TIERS: Section = Section {
    name: "tiers",
    doc: "Quotas in place of `client`'s, each under the name of its tier. Algorithm and all else are those of `client`.",
    fields: &[],
    either: &[],
    others: Some(&Others {
        key: format::IDENTIFIER,
        shape: Shape::Either(&[Shape::Word(UNLIMITED), Shape::Section(&TIER)]),
        doc: "The quota of a client in the tier of this name, or `unlimited`: neither `client` nor a share of it applies there, except `concurrency` and `penalty`.",
    }),
};

/// A word, because a zero is mostly a mistake.
const UNLIMITED: &[(&str, &str)] = &[("unlimited", "Nothing holds there.")];

pub(super) const TIER: Section = Section {
    name: "tiers.NAME",
    doc: "A quota, or with `also` several at the same time.",
    fields: policy_fields!(; LIMIT; ALSO),
    either: &[&["window", "windowSeconds", "calendar"]],
    others: None,
};

pub(super) const COSTS: Section = Section {
    name: "costs",
    doc: "The costs of requests: the first of `paths` that matches, else the method's, else `other`. GET covers HEAD.",
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

pub(super) const COST_PATH: Section = Section {
    name: "costs.paths[]",
    doc: "A cost for some requests.",
    fields: &[
        required("path", PATH, "Which paths."),
        optional(
            "method",
            Shape::Either(&[text(format::METHOD), Shape::List(&text(format::METHOD))]),
            "Which method, or a list. Without it, all.",
        ),
        required("cost", Shape::Whole { min: 0, max: MAX_UNITS }, "The cost of these requests."),
    ],
    either: &[],
    others: None,
};
