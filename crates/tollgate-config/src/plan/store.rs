use super::redis::{RedisPlan, Topology};
use crate::file::tables::Memory;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlan {
    Memory(Memory),
    Redis(RedisPlan),
}

impl StorePlan {
    /// Whether different clients' keys may be on different servers.
    pub const fn is_cluster(&self) -> bool {
        matches!(self, Self::Redis(RedisPlan { topology: Topology::Cluster, .. }))
    }
}
