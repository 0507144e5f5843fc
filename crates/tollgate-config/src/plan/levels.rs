use super::{ApiKeyHeader, ValuePlan};

/// A level above clients, for example teams. Each of its groups has its own quotas.
#[derive(Clone, Debug)]
pub struct LevelPlan {
    pub name: String,
    /// Where the group of a request is found; the first that finds a group counts.
    pub sources: Vec<GroupSource>,
}

#[derive(Clone, Debug)]
pub enum GroupSource {
    /// The groups of API keys, by the keys' SHA-256 in hex.
    ApiKey { header: ApiKeyHeader, groups: Vec<(String, String)> },
    /// A claim of the user's token.
    Claim(String),
    /// A header that its trusted proxies send.
    Header(ValuePlan),
    /// All requests are in one group.
    Everyone,
}
