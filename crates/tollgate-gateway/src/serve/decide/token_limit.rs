//! Limits how many of an address's tokens may fail verification.
//!
//! Verifying a signature takes more processor time than a denial, and a user's limits only apply
//! afterwards. Without this limit, clients with forged tokens could use all processors.

use std::sync::Arc;

use http::Response;
use tollgate::denial::{Denial, Members, Problem, ResponseFormat};
use tollgate::key::{
    ClientIp, JwtUser, Key, KeyError, KeySource, RequestHead, Subject, SubjectName, TokenCheck,
};
use tollgate::policy::Cost;
use tollgate::store::{Micros, StoreError, Verdict};
use tollgate::{MemoryStore, Policy, Quota, StoreExt};

use super::denials::answered_by;
use crate::serve::body::Body;
use crate::serve::error::BuildError;

/// The policy's name in denials.
pub(crate) const NAME: &str = "refused-tokens";

/// The addresses with refused tokens. Clones share them, and they survive a reload.
#[derive(Clone)]
pub(crate) struct Addresses(MemoryStore);

impl Default for Addresses {
    /// Beyond this number, addresses share an overflow entry, so a flood takes bounded memory.
    fn default() -> Self {
        Self(MemoryStore::builder().max_keys(100_000).build())
    }
}

#[derive(Clone)]
pub(crate) struct TokenLimit {
    addresses: Addresses,
    policy: Policy,
    source: ClientIp,
}

impl TokenLimit {
    pub(crate) fn new(
        addresses: &Addresses,
        per_minute: u64,
        source: ClientIp,
    ) -> Result<Self, BuildError> {
        let policy = Policy::token_bucket(NAME, Quota::per_minute(per_minute))
            .map_err(|error| BuildError(format!("`jwt.maxRefusedPerMinute`: {error}")))?;
        Ok(Self { addresses: addresses.clone(), policy, source })
    }

    /// How long the client must wait until another token is verified.
    fn wait(&self, head: &RequestHead<'_>) -> Option<Micros> {
        let verdict = self.decide(head, |key| {
            self.addresses.0.foresee(&self.policy, key, &[Cost::ONE]).into_inner()
        })?;
        verdict.decisions().first()?.retry_after()
    }

    fn charge(&self, head: &RequestHead<'_>) {
        self.decide(head, |key| self.addresses.0.charge(&self.policy, key, Cost::ONE).into_inner());
    }

    /// `None` if the request has no address, which never happens behind a listener.
    fn decide(
        &self,
        head: &RequestHead<'_>,
        decide: impl FnOnce(&Key) -> Result<Verdict, StoreError>,
    ) -> Option<Verdict> {
        let subject = self.source.subject(head).ok().flatten()?;
        decide(&subject.key).ok()
    }
}

/// Key source: a token's user, if the client's address may have another token verified.
#[derive(Clone)]
pub(crate) struct TokenUser {
    pub(crate) user: JwtUser,
    pub(crate) limit: Option<Arc<TokenLimit>>,
}

impl TokenUser {
    /// # Errors
    /// [`TooManyRefused`] and [`KeyError::Ambiguous`]
    pub(crate) fn with_claim(
        &self,
        head: &RequestHead<'_>,
        claim: &str,
    ) -> Result<Option<(Subject, Option<String>)>, KeyError> {
        let mut wait = None;
        let checked = self.user.check(head, claim, || {
            wait = self.limit.as_ref().and_then(|limit| limit.wait(head));
            wait.is_none()
        });
        match (checked, wait) {
            (TokenCheck::Accepted(subject, said), _) => Ok(Some((subject, said))),
            (TokenCheck::Ambiguous, _) => Err(KeyError::Ambiguous),
            (TokenCheck::NotVerified, Some(wait)) => {
                Err(KeyError::Other(Box::new(TooManyRefused { wait })))
            }
            (TokenCheck::Refused { verified: true }, _) => {
                if let Some(limit) = &self.limit {
                    limit.charge(head);
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

impl KeySource for TokenUser {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(self.with_claim(head, "")?.map(|(subject, _)| subject))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        self.user.named(name)
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        self.user.name(head)
    }
}

/// The token was not verified because too many tokens from its address were refused.
#[derive(Debug, thiserror::Error)]
#[error("too many tokens from this address were refused")]
pub(crate) struct TooManyRefused {
    wait: Micros,
}

impl TooManyRefused {
    /// Finds this reason in a key source's error, even in a shared one.
    pub(crate) fn of(error: &KeyError) -> Option<&Self> {
        let KeyError::Other(error) = error else { return None };
        match error.downcast_ref::<Arc<KeyError>>() {
            Some(shared) => Self::of(shared),
            None => error.downcast_ref(),
        }
    }

    pub(crate) fn response(&self, format: ResponseFormat, members: &Members) -> Response<Body> {
        let denial = Denial::quota_exceeded(NAME, self.wait);
        let problem = Problem::with_members(members.clone());
        let mut response = denial.respond(format, &problem).map(Body::from);
        response.extensions_mut().insert(answered_by(&denial));
        response
    }
}
