//! Users in verified JSON Web Tokens.

mod error;
mod jwks;
mod keys;
mod refused;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::credentials::authorization;
use super::encode::{Tag, hashed};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

use keys::Algorithm;
use refused::RefusedTokens;

pub use error::JwtKeyError;
pub use keys::{JwtKey, JwtKeys};

/// Key source: the user of a verified `Authorization: Bearer` token. The key combines issuer and
/// subject, because two issuers may use the same name.
///
/// A token that is invalid, expired, foreign or longer than 8 KiB does not identify a client, so
/// the chain continues, usually with the address. A request with several `Authorization` headers is
/// rejected ([`KeyError::Ambiguous`]).
///
/// Verification takes 20 to 300 µs of CPU time with an asymmetric key (2 µs with a secret), before
/// this limit decides. The verifier remembers a rejected token for ten seconds and does not verify
/// it again. Against clients that send many different tokens, put a limit by address outside of
/// this layer, or use [`check`](Self::check). If an authentication layer already verifies tokens,
/// use its result with [`FromExtension`](super::FromExtension).
///
/// ```
/// use tollgate::key::{ClientIp, JwtKey, JwtKeys, JwtUser, JwtVerifier, KeySource};
///
/// let key = JwtKey::hs256(b"at least thirty-two random bytes")?;
/// let verifier = JwtVerifier::new(JwtKeys::new([key])?)
///     .issuer("https://login.example.com")
///     .audience("orders");
/// let source = JwtUser::new(verifier.clone()).or(ClientIp::peer());
///
/// // Later, when the issuer has rotated its keys. `source` uses them immediately.
/// let next = JwtKey::hs256(b"and thirty-two others, as random")?;
/// verifier.replace_keys(JwtKeys::new([next])?);
/// # Ok::<(), tollgate::key::JwtKeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct JwtUser(JwtVerifier);

impl JwtUser {
    /// Uses the user of each token that `verifier` accepts.
    pub const fn new(verifier: JwtVerifier) -> Self {
        Self(verifier)
    }

    /// Returns the user of a request's token and the claim with this name, if the claim is a
    /// string. Use it for quotas that depend on a claim, for example on a tier.
    pub fn with_claim(
        &self,
        head: &RequestHead<'_>,
        claim: &str,
    ) -> Option<(Subject, Option<String>)> {
        match self.check(head, claim, || true) {
            TokenCheck::Accepted(subject, value) => Some((subject, value)),
            _ => None,
        }
    }

    /// Finds the user like [`with_claim`](Self::with_claim), but verifies a signature only if
    /// `may_verify` returns `true`. This lets a program limit how many of a client's tokens may
    /// fail verification. The closure runs only for tokens that need verification.
    pub fn check(
        &self,
        head: &RequestHead<'_>,
        claim: &str,
        may_verify: impl FnOnce() -> bool,
    ) -> TokenCheck {
        let token = match authorization(head.headers, "Bearer") {
            Ok(Some(token)) => token,
            Ok(None) => return TokenCheck::NoToken,
            Err(_) => return TokenCheck::Ambiguous,
        };
        match self.0.verify(token, may_verify) {
            Ok(claims) => {
                let value = claims.others.get(claim).and_then(|value| value.as_str());
                TokenCheck::Accepted(claims.subject(), value.map(str::to_owned))
            }
            Err(refused) => refused,
        }
    }
}

/// The result of [`JwtUser::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenCheck {
    /// The request has no bearer token.
    NoToken,
    /// The request has several `Authorization` headers, so reject it: the service might read
    /// another token.
    Ambiguous,
    /// The token is valid. Contains the user, and the claim if it is a string.
    Accepted(Subject, Option<String>),
    /// The token is rejected.
    Refused {
        /// Whether this call verified the signature, which is the expensive part. It is `false` if
        /// the token was rejected recently, or names an unknown key or another algorithm.
        verified: bool,
    },
    /// The token needs verification, but `may_verify` returned `false`.
    NotVerified,
}

impl KeySource for JwtUser {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        let token = authorization(head.headers, "Bearer")?;
        let claims = token.and_then(|token| self.0.verify(token, || true).ok());
        Ok(claims.map(|claims| claims.subject()))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::User { issuer, name } = name else { return None };
        let fixed = self.0.rules[0].iss.iter().flatten().next().map(String::as_str);
        match (fixed, issuer.as_deref()) {
            // The verifier accepts no other issuer.
            (Some(fixed), Some(named)) if fixed != named => None,
            (fixed, named) => Some(user(fixed.or(named), name)),
        }
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        let token = authorization(head.headers, "Bearer").ok()??;
        let claims = self.0.verify(token, || true).ok()?;
        match &claims.iss {
            Some(issuer) if self.0.rules[0].iss.is_none() => {
                Some(format!("{} {}", issuer.replace(' ', "%20"), claims.sub))
            }
            // Without an issuer, so that a subject cannot name another issuer's user.
            None if claims.sub.contains(' ') => Some(format!(" {}", claims.sub)),
            _ => Some(claims.sub.clone()),
        }
    }
}

fn user(iss: Option<&str>, sub: &str) -> Subject {
    let key = match iss {
        Some(iss) => hashed(Tag::Jwt, &[iss.as_bytes(), sub.as_bytes()]),
        None => hashed(Tag::Jwt, &[sub.as_bytes()]),
    };
    Subject { kind: SubjectKind::User, key }
}

/// Verifies JSON Web Tokens. **Clones share the key set**, so a program can replace the set while
/// its clones are in use.
///
/// A token is accepted if
/// - its `kid` names a key in the set. A token without a `kid` needs a set with exactly one key; a
///   single key without a name accepts any `kid`;
/// - its `alg` is that key's algorithm, and the signature is valid;
/// - `exp` is a number and at most 60 seconds past; `nbf`, if present, is at most 60 seconds ahead;
///   `sub` is not empty;
/// - `iss` and `aud` match, if the verifier sets them. A token with an audience needs a verifier
///   with an audience (RFC 7519 §4.1.3);
/// - it has no `crit` (RFC 7515 §4.1.11).
///
/// Do not accept more than the application does: a token that the application rejects must not get
/// a quota here.
///
/// The verifier uses the system time. The program chooses the crypto provider for all users of
/// jsonwebtoken, either with a jsonwebtoken feature or with the feature `jwt-rust-crypto`.
///
/// Each thread caches the claims of the last accepted token, so a request that takes key and tier
/// from the same token verifies it only once. A debug event with the target `tollgate` contains the
/// reason for a rejection: `expired`, `nbf`, `iss`, `aud`, `kid`, `alg`, `signature`, `crit`, a
/// missing claim, or `malformed`.
#[derive(Clone)]
#[must_use]
pub struct JwtVerifier {
    keys: Arc<ArcSwap<JwtKeys>>,
    unknown_kid: Option<Arc<dyn Fn() + Send + Sync>>,
    /// One entry for each [`Algorithm`], in the same order, so that none is built per token.
    rules: Arc<Rules>,
    /// Tokens that failed verification under these rules.
    refused: Arc<RefusedTokens>,
}

type Rules = [Validation; Algorithm::ALL.len()];

/// The claims that the verifier reads. `iss` must be a single string, so the subject's issuer is
/// unambiguous.
#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    sub: String,
    exp: f64,
    #[serde(flatten)]
    others: HashMap<String, serde_json::Value>,
}

impl Claims {
    fn subject(&self) -> Subject {
        user(self.iss.as_deref(), &self.sub)
    }
}

/// The last token that this thread accepted.
struct AcceptedToken {
    digest: [u8; 32],
    keys: Arc<JwtKeys>,
    rules: Arc<Rules>,
    claims: Rc<Claims>,
}

thread_local! {
    static LAST: RefCell<Option<AcceptedToken>> = const { RefCell::new(None) };
}

impl JwtVerifier {
    /// Accepts tokens signed with one of these keys.
    pub fn new(keys: JwtKeys) -> Self {
        let rules = Algorithm::ALL.map(|algorithm| {
            let mut rules = Validation::new(algorithm.into());
            rules.leeway = 60;
            rules.validate_nbf = true;
            // A claim with the wrong type counts as absent unless it is required. If `exp` were
            // optional, a token with a quoted `exp` would never expire.
            rules.set_required_spec_claims(&["exp", "sub"]);
            rules
        });
        Self {
            keys: Arc::new(ArcSwap::from_pointee(keys)),
            unknown_kid: None,
            rules: Arc::new(rules),
            refused: Arc::default(),
        }
    }

    /// Accepts no tokens until [`replace_keys`](Self::replace_keys) is called, for a key set that
    /// is fetched later.
    pub fn without_keys() -> Self {
        Self::new(JwtKeys::none())
    }

    /// Calls `wanted` when a token names a `kid` that is not in the set, for example after the
    /// issuer rotated its keys.
    ///
    /// Any client can send such tokens. If `wanted` fetches the set, limit how often it does so,
    /// and fetch in another task, because the request waits for `wanted`.
    pub fn on_unknown_kid(self, wanted: impl Fn() + Send + Sync + 'static) -> Self {
        Self { unknown_kid: Some(Arc::new(wanted)), ..self }
    }

    /// Accepts only tokens from this issuer, compared bytewise.
    ///
    /// A verifier has only one issuer, because two issuers could sign for each other's users. For
    /// more issuers, combine several verifiers with [`KeySource::or`].
    pub fn issuer(mut self, issuer: &str) -> Self {
        for rules in Arc::make_mut(&mut self.rules) {
            rules.set_issuer(&[issuer]);
            rules.required_spec_claims.insert("iss".to_owned());
        }
        self.refused = Arc::default();
        self
    }

    /// Accepts only tokens for this audience. After several calls, a token for any of the audiences
    /// suffices.
    pub fn audience(mut self, audience: &str) -> Self {
        for rules in Arc::make_mut(&mut self.rules) {
            let names = rules.aud.get_or_insert_default();
            names.insert(audience.to_owned());
            rules.required_spec_claims.insert("aud".to_owned());
        }
        self.refused = Arc::default();
        self
    }

    /// Replaces the key set for all clones, starting with the next token.
    pub fn replace_keys(&self, keys: JwtKeys) {
        self.keys.store(Arc::new(keys));
    }

    fn verify(
        &self,
        token: &str,
        may_verify: impl FnOnce() -> bool,
    ) -> Result<Rc<Claims>, TokenCheck> {
        let (keys, digest) = (self.keys.load_full(), Sha256::digest(token).into());
        let now = SystemTime::now();
        let is_same = |last: &&AcceptedToken| {
            last.digest == digest
                && Arc::ptr_eq(&last.keys, &keys)
                && Arc::ptr_eq(&last.rules, &self.rules)
                && Duration::try_from_secs_f64(last.claims.exp)
                    .is_ok_and(|exp| UNIX_EPOCH.checked_add(exp).is_some_and(|exp| now < exp))
        };
        let known = LAST
            .with_borrow(|last| last.as_ref().filter(is_same).map(|last| Rc::clone(&last.claims)));
        if let Some(known) = known {
            return Ok(known);
        }
        if self.refused.contain(&keys, &digest, Instant::now()) {
            return Err(TokenCheck::Refused { verified: false });
        }
        let refuse = |reason, verified| {
            tracing::debug!(target: "tollgate", kind = "user", reason, "token not accepted");
            TokenCheck::Refused { verified }
        };
        let key = self.key(&keys, token).map_err(|reason| refuse(reason, false))?;
        if !may_verify() {
            return Err(TokenCheck::NotVerified);
        }
        let claims = Rc::new(self.verify_with(key, token).map_err(|reason| {
            // This token may become valid soon, so do not remember it.
            if reason != NOT_YET {
                self.refused.insert(&keys, digest, Instant::now());
            }
            refuse(reason, true)
        })?);
        let (rules, cached) = (Arc::clone(&self.rules), Rc::clone(&claims));
        LAST.set(Some(AcceptedToken { digest, keys, rules, claims: cached }));
        Ok(claims)
    }

    /// Finds the key that a token names, without checking the signature.
    fn key<'a>(&self, keys: &'a JwtKeys, token: &str) -> Result<&'a JwtKey, &'static str> {
        // The header is not verified yet. Use only `kid`, `alg` and `crit`, never keys or links to
        // keys (`jwk`, `jku`, `x5c`, `x5u`).
        let header = decode_header(token).map_err(|error| reason(&error))?;
        if header.crit.is_some() {
            return Err("crit");
        }
        let Some(key) = keys.find(header.kid.as_deref()) else {
            if let (Some(_), Some(wanted)) = (&header.kid, &self.unknown_kid) {
                wanted();
            }
            return Err("kid");
        };
        if header.alg == key.algorithm.into() { Ok(key) } else { Err("alg") }
    }

    fn verify_with(&self, key: &JwtKey, token: &str) -> Result<Claims, &'static str> {
        let rules = &self.rules[key.algorithm as usize];
        let claims = decode::<Claims>(token, &key.decoding, rules);
        let claims = claims.map_err(|error| reason(&error))?.claims;
        if claims.sub.is_empty() { Err("sub") } else { Ok(claims) }
    }
}

/// The rejection reason if `nbf` is in the future.
const NOT_YET: &str = "nbf";

fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::ExpiredSignature => "expired",
        ErrorKind::ImmatureSignature => NOT_YET,
        ErrorKind::InvalidIssuer => "iss",
        ErrorKind::InvalidAudience => "aud",
        ErrorKind::InvalidSignature => "signature",
        ErrorKind::InvalidAlgorithm => "alg",
        ErrorKind::MissingRequiredClaim(claim) => {
            let known = ["exp", "sub", "iss", "aud"].into_iter().find(|known| known == claim);
            known.unwrap_or("malformed")
        }
        _ => "malformed",
    }
}

impl fmt::Debug for JwtVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtVerifier")
            .field("keys", &self.keys.load())
            .field("issuer", &self.rules[0].iss)
            .field("audience", &self.rules[0].aud)
            .finish()
    }
}

#[cfg(test)]
mod tests;
