use super::{Tier, TierSource};
use crate::head::RequestHead;
use crate::key::JwtUser;

/// Tier source: a claim in a verified token, if the claim is a string. If key and tier come from
/// the same token, it is verified only once.
///
/// ```
/// use tollgate::key::{JwtKey, JwtKeys, JwtUser, JwtVerifier};
/// use tollgate::tier::JwtTier;
///
/// let key = JwtKey::hs256(b"at least thirty-two random bytes")?;
/// let user = JwtUser::new(JwtVerifier::new(JwtKeys::new([key])?));
/// let tiers = JwtTier::new(user.clone(), "plan");
/// # let _ = tiers;
/// # Ok::<(), tollgate::key::JwtKeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct JwtTier {
    user: JwtUser,
    claim: String,
}

impl JwtTier {
    /// Takes the tier from the claim with this name in the tokens that `user` accepts.
    pub fn new(user: JwtUser, claim: impl Into<String>) -> Self {
        Self { user, claim: claim.into() }
    }
}

impl TierSource for JwtTier {
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier> {
        let (_, value) = self.user.with_claim(head, &self.claim)?;
        value.map(Tier::from)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;
    use crate::key::{JwtKey, JwtKeys, JwtVerifier};

    const SECRET: &[u8] = b"at least thirty-two random bytes";
    /// In the year 2100.
    const LATER: u64 = 4_102_444_800;

    #[test]
    fn claims_are_read_only_from_valid_tokens() {
        let key = JwtKey::hs256(SECRET).unwrap();
        let user = JwtUser::new(JwtVerifier::new(JwtKeys::new([key]).unwrap()));
        let tiers = JwtTier::new(user, "plan");
        let tier = |claims: serde_json::Value, secret: &[u8]| {
            let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(secret));
            let request = Request::builder()
                .header("authorization", format!("Bearer {}", token.unwrap()))
                .body(())
                .unwrap();
            tiers.tier(&RequestHead::of(&request))
        };
        let pro = json!({"sub": "ann", "exp": LATER, "plan": "pro"});
        assert_eq!(tier(pro.clone(), SECRET), Some("pro".into()));
        assert_eq!(tier(pro, b"another secret of 32 bytes or so"), None);
        assert_eq!(tier(json!({"sub": "ann", "exp": LATER}), SECRET), None);
        assert_eq!(tier(json!({"sub": "ann", "exp": 1, "plan": "pro"}), SECRET), None);
        assert_eq!(tier(json!({"sub": "ann", "exp": LATER, "plan": 7}), SECRET), None);
    }
}
