use super::{Tier, TierSource};
use crate::head::RequestHead;
use crate::key::{ApiKeys, SubjectName, UnverifiedApiKey};

/// Tier source: the tier of the first list that contains the request's API key. A request with
/// several keys has no tier.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys};
/// use tollgate::tier::ApiKeyTiers;
///
/// let tiers = ApiKeyTiers::new(ApiKey::in_x_api_key())
///     .with("pro", ApiKeys::from_keys(["k-7f3a", "k-91bc"]))
///     .with("enterprise", ApiKeys::from_keys(["k-c0de"]));
/// # let _ = tiers;
/// ```
#[derive(Clone)]
pub struct ApiKeyTiers {
    header: UnverifiedApiKey,
    tiers: Vec<(Tier, ApiKeys)>,
}

impl ApiKeyTiers {
    /// Creates a tier source without tiers, for API keys in this header.
    pub const fn new(header: UnverifiedApiKey) -> Self {
        Self { header, tiers: Vec::new() }
    }

    fn of(&self, key: &str) -> Option<Tier> {
        let digest = ApiKeys::digest(key);
        let mut tiers = self.tiers.iter();
        tiers.find(|(_, keys)| keys.contains_digest(&digest)).map(|(tier, _)| tier.clone())
    }

    /// Adds a tier with its API keys.
    #[must_use]
    pub fn with(mut self, tier: impl Into<Tier>, keys: ApiKeys) -> Self {
        self.tiers.push((tier.into(), keys));
        self
    }
}

impl TierSource for ApiKeyTiers {
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier> {
        self.of(self.header.find(head).ok()??)
    }

    fn named(&self, name: &SubjectName) -> Option<Tier> {
        match name {
            SubjectName::ApiKey(key) => self.of(key),
            _ => None,
        }
    }
}

debug_fields!(ApiKeyTiers, tiers);

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::ApiKey;

    #[test]
    fn first_matching_list_sets_tier() {
        let tiers = ApiKeyTiers::new(ApiKey::in_x_api_key())
            .with("pro", ApiKeys::from_keys(["p", "both"]))
            .with("enterprise", ApiKeys::from_keys(["e", "both"]));
        let tier = |keys: &[&str]| {
            let request =
                keys.iter().fold(Request::builder(), |r, key| r.header("x-api-key", *key));
            tiers.tier(&RequestHead::of(&request.body(()).unwrap())).map(|tier| tier.to_string())
        };
        for (keys, expected) in [
            (&["p"][..], Some("pro")),
            (&["e"], Some("enterprise")),
            (&["both"], Some("pro")),
            (&["unknown"], None),
            (&[""], None),
            (&[], None),
            // The service behind the layer might use the other key.
            (&["p", "e"], None),
        ] {
            assert_eq!(tier(keys).as_deref(), expected, "{keys:?}");
        }
        assert!(!format!("{tiers:?}").contains("both"));
    }
}
