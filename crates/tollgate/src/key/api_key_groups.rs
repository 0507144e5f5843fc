use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::api_key::digest_of_hex;
use super::{ApiKeys, ApiKeysError, KeyFromFn, UnverifiedApiKey, try_from_fn};

/// The groups that API keys belong to, for example teams or organisations. Like [`ApiKeys`], it
/// stores only the keys' digests.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeyGroups};
///
/// let teams = ApiKeyGroups::from_keys([("k-7f3a", "red"), ("k-91bc", "red"), ("k-c0de", "blue")]);
/// // All keys of a team share a quota. Operators name the team `other:red`.
/// let team = ApiKey::in_authorization("Bearer").by_group(teams);
/// # let _ = team;
/// ```
#[derive(Clone)]
pub struct ApiKeyGroups(Arc<HashMap<[u8; 32], Arc<[u8]>>>);

impl ApiKeyGroups {
    /// Makes a list of API keys with their groups.
    pub fn from_keys<K: AsRef<str>, G: AsRef<str>>(keys: impl IntoIterator<Item = (K, G)>) -> Self {
        let entry = |(key, group): (K, G)| (ApiKeys::digest(key.as_ref()), bytes(group.as_ref()));
        Self(Arc::new(keys.into_iter().map(entry).collect()))
    }

    /// Makes a list of API keys' SHA-256 digests, in hex, with the keys' groups.
    ///
    /// # Errors
    /// A digest is not 64 hex digits.
    pub fn from_sha256_hex<K: AsRef<str>, G: AsRef<str>>(
        digests: impl IntoIterator<Item = (K, G)>,
    ) -> Result<Self, ApiKeysError> {
        let digests = digests.into_iter().enumerate().map(|(index, (digest, group))| {
            Ok((digest_of_hex(index, digest.as_ref())?, bytes(group.as_ref())))
        });
        Ok(Self(Arc::new(digests.collect::<Result<_, _>>()?)))
    }
}

fn bytes(group: &str) -> Arc<[u8]> {
    group.as_bytes().into()
}

impl UnverifiedApiKey {
    /// Makes a key source that finds the group of a request's API key. A key without a group
    /// identifies no client, so a [`Limit`](crate::Limit) with this source does not apply to it
    /// under [`OnMissingKey::Pass`](crate::limit::OnMissingKey::Pass).
    pub fn by_group(self, groups: ApiKeyGroups) -> KeyFromFn {
        try_from_fn(move |head| {
            let group = |key| groups.0.get(&ApiKeys::digest(key)).cloned();
            Ok(self.find(head)?.and_then(group))
        })
    }
}

impl fmt::Debug for ApiKeyGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeyGroups({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{ApiKey, KeyError, KeySource, RequestHead, SubjectName};

    #[test]
    fn keys_of_a_group_share_its_subject() {
        let digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        let hashed = ApiKeyGroups::from_sha256_hex([(digest, "red")]).unwrap();
        let teams = ApiKeyGroups::from_keys([("foo", "red"), ("bar", "red"), ("baz", "blue")]);
        let source = |groups| ApiKey::in_x_api_key().by_group(groups);
        let find = |source: &KeyFromFn, keys: &[&str]| {
            let request =
                keys.iter().fold(Request::builder(), |r, key| r.header("x-api-key", *key));
            source.subject(&RequestHead::of(&request.body(()).unwrap()))
        };
        let (hashed, teams) = (source(hashed), source(teams));
        let named =
            |name: &str| teams.named(&format!("other:{name}").parse::<SubjectName>().unwrap());
        for (source, key, group) in [
            (&teams, "foo", Some("red")),
            (&teams, "bar", Some("red")),
            (&teams, "baz", Some("blue")),
            (&teams, "unknown", None),
            (&hashed, "foo", Some("red")),
            (&hashed, "bar", None),
        ] {
            assert_eq!(find(source, &[key]).unwrap(), group.and_then(named), "{key}");
        }
        assert_eq!(find(&teams, &[]).unwrap(), None);
        assert!(matches!(find(&teams, &["foo", "baz"]), Err(KeyError::Ambiguous)));
        let error = ApiKeyGroups::from_sha256_hex([(digest, "red"), ("foo", "red")]).unwrap_err();
        assert_eq!(error.position, 2);
    }
}
