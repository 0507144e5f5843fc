//! The results of a server check.

/// A Redis server's properties as of the last connection, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisReport {
    /// The server's name: `Redis`, `Valkey` or `Redict`.
    pub name: Option<&'static str>,
    /// The server's version under that name. Valkey and Redict also report the Redis version that
    /// they are compatible with, which this is not.
    pub version: Option<String>,
    /// Whether the server is a Cluster node.
    pub is_cluster: Option<bool>,
    /// The server's eviction policy when its memory is full.
    pub maxmemory_policy: Option<String>,
    /// How far the server's clock is ahead of this machine's clock, in microseconds. Quotas use the
    /// server's clock, so decisions are right even if the clocks differ, but times in headers may
    /// look wrong.
    pub clock_ahead: Option<i64>,
    /// Properties of the server that will cause errors.
    pub warnings: Vec<RedisWarning>,
}

/// A server property that will cause errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedisWarning {
    /// The server is too old for the script.
    #[doc(alias = "TG0313")]
    #[error("Redis {0} cannot run the script; use Redis 6 or later [TG0313]")]
    Version(String),
    /// When its memory is full, the server evicts keys, and their limits with them. A client that
    /// can create many keys can then remove any limit.
    #[doc(alias = "TG0312")]
    #[error(
        "maxmemory-policy is {0}, so Redis evicts limits when its memory is full; use a Redis with \
         noeviction [TG0312]"
    )]
    Eviction(String),
    /// The server does not report its eviction policy.
    #[doc(alias = "TG0312")]
    #[error(
        "cannot read maxmemory-policy ({0}); check that it is noeviction, or grant the user \
         +config|get [TG0312]"
    )]
    EvictionUnknown(String),
    /// The user lacks permissions that the script needs.
    #[doc(alias = "TG0311")]
    #[error(
        "the user lacks rights that the script needs ({0}); grant +evalsha +eval +time +get +mget \
         +getrange +strlen +exists +set +setrange +del +pexpireat on the keys of the namespace \
         [TG0311]"
    )]
    Rights(String),
    /// The server is a Cluster node, but the URL names a single server.
    #[doc(alias = "TG0314")]
    #[error(
        "the server is a Cluster node, which has only some of the keys; start the URL with \
         redis-cluster:// [TG0314]"
    )]
    Cluster,
    /// The script does not run, for another reason.
    #[doc(alias = "TG0315")]
    #[error("the script does not run: {0} [TG0315]")]
    Script(String),
}
