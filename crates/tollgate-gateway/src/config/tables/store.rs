//! Where quotas are kept.

use super::super::format;
use super::super::spec::{Section, Shape, default, optional, required};
use super::{TEXT, text};

pub(super) const STORE: Section = Section {
    name: "store",
    doc: "Where quotas are kept: one of the two.",
    fields: &[
        optional("memory", Shape::Section(&MEMORY), "In this process."),
        optional("redis", Shape::Section(&REDIS), "In Redis, shared by all replicas."),
    ],
    either: &[&["memory", "redis"]],
    others: None,
};

pub(super) const MEMORY: Section = Section {
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

pub(super) const REDIS: Section = Section {
    name: "store.redis",
    doc: "How to use Redis.",
    fields: &[
        required("url", text(format::REDIS_URL), "Where it is: `redis://user:password@host:6379/0`, `rediss://…` with TLS, `redis+unix:///run/redis.sock`; best from a variable.").secret(),
        default("timeout", Shape::Span, "50ms", "How long a decision may take."),
        optional("timeoutMs", Shape::Whole { min: 1, max: 60_000 }, "The same in milliseconds."),
        default("topology", Shape::Word(&[("single", "One server."), ("cluster", "A node of a Cluster."), ("sentinel", "A Sentinel; it needs `sentinelMaster`.")]), "single", "The kind of server behind the URL."),
        optional("sentinelMaster", TEXT, "The name under which Sentinel watches the server."),
        optional("keySecret", TEXT, "The key under which identities are hashed, the same on all replicas. Without it, who can read Redis can find out addresses.").secret(),
        default("localShare", text(format::SHARE), "1/2", "The part of each quota that a policy with `onStoreError: local` grants by itself."),
    ],
    either: &[&["timeout", "timeoutMs"]],
    others: None,
};
