//! Requests without a key.

use tollgate_core::Key;

/// How a limit treats a request without a key. A request with several keys is always rejected, see
/// [`KeyError::Ambiguous`](crate::key::KeyError::Ambiguous).
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys};
/// use tollgate::limit::OnMissingKey;
/// use tollgate::{Limit, Policy, Quota};
///
/// let keys = ApiKeys::from_keys(["k-7f3a", "k-91bc"]);
/// let policy = Policy::token_bucket("customer", Quota::per_minute(100))?;
/// let limit = Limit::new(policy, ApiKey::in_x_api_key().one_of(keys))
///     .on_missing_key(OnMissingKey::Deny);
/// # let _ = limit;
/// # Ok::<(), tollgate::policy::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The layer rejects the request with 403, or with the status that the application sets with
    /// [`Denial::with_status`](crate::denial::Denial::with_status), and charges no policy. If
    /// clients could guess keys, wrap this layer in another layer that limits by address.
    Deny,
    /// The request passes this policy. The layer's other policies still apply.
    Pass,
    /// All requests without a key share one quota of this policy.
    Share,
}

impl OnMissingKey {
    /// Returns the key that all requests without a key use under [`Share`](Self::Share).
    pub fn shared_key() -> Key {
        // A source's keys start with a tag, which is not 0, so they never equal this key.
        Key::new([0, b'-'])
    }
}
