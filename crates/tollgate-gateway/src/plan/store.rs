//! Where quotas are kept.

use std::time::Duration;

use super::Secret;

/// Where quotas are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlan {
    /// In this process.
    Memory {
        /// The most keys.
        max_keys: usize,
        /// The most bytes.
        max_bytes: usize,
    },
    /// In Redis.
    Redis(RedisPlan),
}

impl StorePlan {
    /// The bounds of a store in memory unless a file says others: a million keys, 256 MiB.
    pub const MEMORY: Self = Self::Memory { max_keys: 1_000_000, max_bytes: 256 << 20 };

    /// Whether keys of different clients may be on different servers.
    pub const fn is_cluster(&self) -> bool {
        matches!(self, Self::Redis(RedisPlan { topology: Topology::Cluster, .. }))
    }
}

/// How to use Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisPlan {
    /// `redis://…`, `rediss://…` or `redis+unix://…`; it may hold a password.
    pub url: Secret,
    /// How long a decision may take.
    pub timeout: Duration,
    /// The kind of server behind the URL.
    pub topology: Topology,
    /// The key under which identities are hashed, the same on all replicas.
    pub key_secret: Option<Secret>,
    /// The part of each quota that a policy with `onStoreError: local` grants while Redis
    /// is down: numerator and denominator.
    pub local_share: (u32, u32),
}

impl RedisPlan {
    /// The URL with the topology in it, as the store takes it; it may hold a password.
    pub fn full_url(&self) -> String {
        let url = self.url.reveal();
        let marked = |mark: &str| match url.split_once("://") {
            Some((scheme, rest)) if !scheme.ends_with(mark) => format!("{scheme}{mark}://{rest}"),
            _ => url.to_owned(),
        };
        match &self.topology {
            Topology::Single => url.to_owned(),
            Topology::Cluster => marked("-cluster"),
            Topology::Sentinel { master } => {
                let url = marked("-sentinel");
                let mark = if url.contains('?') { '&' } else { '?' };
                format!("{url}{mark}service={master}")
            }
        }
    }
}

/// The kind of server behind a Redis URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    #[default]
    Single,
    /// Any node of a Cluster.
    Cluster,
    /// A Sentinel that watches the server of this name.
    Sentinel {
        /// The name.
        master: String,
    },
}
