use crate::plan::Topology;

use super::super::{format, spec, typed};
use typed::{Hidden, Time, Whole, section, words};

section! {
    /// Where quotas are kept: one of the two.
    Store = "store" either [memory redis] {
        /// In this process.
        optional memory: Memory,
        /// In Redis, shared by all replicas.
        optional redis: Redis,
    }

    /// Bounds of what is kept.
    Memory = "store.memory" {
        /// The most clients, counted once for each policy. Those beyond share a quota.
        default max_keys: Whole<1_000, 1_000_000_000, usize> = "1000000",
        /// The most memory.
        default max_megabytes: Whole<8, 1_000_000, usize> = "256",
    }

    /// How to use Redis.
    Redis = "store.redis" either [timeout timeout_ms] {
        /// Where it is: `redis://user:password@host:6379/0`, `rediss://…` with TLS,
        /// `redis+unix:///run/redis.sock`; best from a variable.
        required url: Hidden<format::RedisUrl>,
        /// How long a decision may take.
        default timeout: Time = "50ms",
        /// The same in milliseconds.
        optional timeout_ms: Whole<1, 60_000>,
        /// The kind of server behind the URL.
        default topology: Servers = "single",
        /// The name under which Sentinel watches the server.
        optional sentinel_master: format::Text,
        /// The key under which identities are hashed, the same on all replicas. Without it, who can
        /// read Redis can find out addresses.
        optional key_secret: Hidden<format::Text>,
        /// The part of each quota that a policy with `onStoreError: local` grants by itself.
        default local_share: format::Share = "1/2",
    }
}

words! {
    Servers -> Topology {
        /// One server.
        "single" => Topology::Single,
        /// A node of a Cluster.
        "cluster" => Topology::Cluster,
        /// A Sentinel; it needs `sentinelMaster`.
        "sentinel" => Topology::Sentinel { master: String::new() },
    }
}
