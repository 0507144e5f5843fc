use super::value_types::Megabytes;
use crate::file::format;
use crate::plan::Topology;
use crate::yaml::typed::{Hidden, Whole, durations, section, words};

section! {
    /// Where quotas are stored: in memory or in Redis.
    keys Store = "store" either [memory redis] {
        /// In the memory of this process.
        optional memory: Memory,
        /// In Redis, shared by all replicas.
        optional redis: Redis,
    }

    /// Bounds of the memory store.
    #[derive(PartialEq, Eq)]
    values Memory = "store.memory" {
        /// The maximum number of clients, counted per policy. Further clients share a quota.
        default max_keys: Whole<1_000, 1_000_000_000, usize> = "1000000",
        /// The maximum memory in MiB.
        default max_bytes as "maxMegabytes": Megabytes<8, 1_000_000> = "256",
    }

    /// How to connect to Redis.
    keys Redis = "store.redis" either [timeout timeout_ms] {
        /// The Redis server: `redis://user:password@host:6379/0`, `rediss://…` with TLS, or
        /// `redis+unix:///run/redis.sock`. Use an environment variable for passwords.
        required url: Hidden<format::RedisUrl>,
        /// The time for a decision.
        default timeout: RedisTimeout = "50ms",
        /// The same in milliseconds.
        optional timeout_ms: Whole<1, 60_000>,
        /// The kind of server.
        default topology: Servers = "single",
        /// The name of the server in Sentinel.
        optional sentinel_master: format::Text
            where topology = ["sentinel"]: "only a Sentinel knows servers by name",
        /// The secret for hashing identities, which is the same on all replicas. If it is missing,
        /// anyone with access to Redis can find out client addresses.
        optional key_secret: Hidden<format::SecretText>,
        /// A fixed share of each quota that a policy with `onStoreError: local` grants in this
        /// process. By default the gateways count themselves, and each grants an equal share.
        optional local_share: format::Share,
    }
}

durations! {
    RedisTimeout: 1 to 60_000,
        "every request waits up to this time while Redis is down: 50ms is plenty in one data centre";
}

words! {
    Servers -> Topology {
        /// A single server.
        "single" => Topology::Single,
        /// A node of a Redis Cluster.
        "cluster" => Topology::Cluster,
        /// A Sentinel. It requires `sentinelMaster`.
        "sentinel" => Topology::Sentinel { master: String::new() },
    }
}
