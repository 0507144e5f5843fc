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
    /// A field of the body.
    Body(String),
    /// A combination for limits with `per`. It is the level's only source.
    Parts(Vec<KeyPart>),
    /// All requests are in one group.
    Everyone,
}

/// A part of a combined key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyPart {
    /// The group on the level with this number, which is no combination.
    Group(usize),
    Client,
    /// The client's address, whoever the client is.
    Address,
}

impl LevelPlan {
    /// Whether this is a combination, which has no quotas of its own in the file.
    pub fn is_combined(&self) -> bool {
        matches!(self.sources[..], [GroupSource::Parts(_)])
    }

    /// Whether a request's body has its group. `levels` are all levels.
    pub fn reads_body(&self, levels: &[Self]) -> bool {
        let part = |part: &KeyPart| match part {
            KeyPart::Group(level) => levels.get(*level).is_some_and(|it| it.reads_body(&[])),
            KeyPart::Client | KeyPart::Address => false,
        };
        self.sources.iter().any(|source| match source {
            GroupSource::Body(_) => true,
            GroupSource::Parts(parts) => parts.iter().any(part),
            _ => false,
        })
    }
}
