//! What a policy may have besides its quota.

use super::super::format;
use super::super::spec::{Field, Section, Shape, default, optional, required};
use super::limits::{CALENDAR, LIMIT, TIME_ZONE};
use super::{MAX_SECONDS, MAX_UNITS, MOST_AT_ONCE, MOST_FACTOR, MOST_STRIKES, UNITS, text};

pub(super) const EXCESS_FIELD: Field = default(
    "excess",
    Shape::Either(&[text(format::EXCESS), Shape::Section(&EXCESS)]),
    "reject",
    "The action for a request that the policy denies: `reject`, or `{wait: 30s}`.",
);

pub(super) const COUNT_ONLY_FIELD: Field = optional(
    "countOnly",
    Shape::Section(&COUNT_ONLY),
    "Counts only some responses. Every request is charged before it is forwarded, and refunded if its response does not count.",
);

pub(super) const RESERVE_FIELD: Field = optional(
    "reserve",
    Shape::Section(&RESERVE),
    "For costs that are known only afterwards: an estimate is charged first and corrected later.",
);

pub(super) const ALSO: Field = optional(
    "also",
    Shape::List(&Shape::Section(&BANDWIDTH)),
    "Further quotas that hold at the same time, with the same algorithm: a request needs room in all of them. The second is the policy `NAME/2`, and so on.",
);

pub(super) const CONCURRENCY_FIELD: Field = optional(
    "concurrency",
    Shape::Either(&[AT_ONCE, Shape::Section(&CONCURRENCY)]),
    "How many requests may be under way at once, besides the limit or without one: the policy `NAME/inflight`. A number, or a section.",
);

pub(super) const PENALTY_FIELD: Field = optional(
    "penalty",
    Shape::Section(&PENALTY),
    "Blocks a client that does not stop, for longer each time: the policy `NAME/penalty`.",
);

pub(super) const LEASE_FIELD: Field = optional(
    "lease",
    Shape::Section(&LEASE),
    "Gateways that share a Redis take units in blocks and spend them without asking it.",
);

pub(super) const BANDWIDTH: Section = Section {
    name: "also[]",
    doc: "A quota beside another one.",
    fields: policy_fields!(; LIMIT; ),
    either: &[&["window", "windowSeconds", "calendar"]],
    others: None,
};

pub(super) const EXCESS: Section = Section {
    name: "excess",
    doc: "A denied request waits until it passes.",
    fields: &[required(
        "wait",
        Shape::Span,
        "The longest wait. Who would wait longer is refused at once.",
    )],
    either: &[],
    others: None,
};

pub(super) const COUNT_ONLY: Section = Section {
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

pub(super) const RESERVE: Section = Section {
    name: "reserve",
    doc: "An estimate that is corrected. Units above the actual cost are refunded; missing units are charged now, up to one whole quota beyond the limit.",
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
            "The source of the actual cost. The header does not reach the client.",
        ),
        optional(
            "bytesPerUnit",
            Shape::Whole { min: 1, max: MAX_UNITS },
            "With `settle: body`, the response costs one unit for each started block of this number of bytes.",
        ),
        default(
            "lapse",
            Shape::Span,
            "1h",
            "How long after the decision it may be corrected; afterwards the estimate stands. Never longer than the window of the limit or 5m, whichever is longer, nor than 1h.",
        ),
    ],
    either: &[],
    others: None,
};

const AT_ONCE: Shape = Shape::Whole { min: 1, max: MOST_AT_ONCE };

pub(in super::super) const CONCURRENCY: Section = Section {
    name: "concurrency",
    doc: "How many requests may be under way at once, in each tier the same. One counts until the end of its response, or until its client leaves; an upgraded connection until it is upgraded. `excess` holds for it too.",
    fields: &[
        required("max", AT_ONCE, "The most at once."),
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

pub(super) const PENALTY: Section = Section {
    name: "penalty",
    doc: "After `strikes` strikes all requests of the policy are denied for a time (`#blocked`). With `of: denials` each denial of the same client is a strike, by whichever policy of the request, but none by the block itself.",
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
            "Each block is this many times as long as the previous block; 1 for blocks that do not grow.",
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
            "After this time without a block, the next block has the first length again.",
        ),
        default(
            "of",
            Shape::Word(&[
                ("denials", "Requests that are denied."),
                ("failures", "Responses that `countOnly` is about."),
            ]),
            "denials",
            "The event that is a strike.",
        ),
        optional(
            "countOnly",
            Shape::Section(&COUNT_ONLY),
            "With `of: failures`, which responses are strikes. Without it, the responses of the policy's own `countOnly`.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const LEASE: Section = Section {
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

pub(super) const WAITING: Section = Section {
    name: "waiting",
    doc: "Bounds on requests that wait. Requests beyond a bound are rejected.",
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
