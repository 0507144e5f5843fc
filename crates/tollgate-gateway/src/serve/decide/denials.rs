//! The answers to denied requests.

use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, Response, StatusCode};
use tollgate::denial::{Denial, DenialResponse, Members, Problem, Reason};

use tollgate_config::plan::{ApiKeyHeader, IdentitySource, Plan};

use crate::serve::answers::AnsweredBy;

pub(crate) struct Denials {
    problem: Problem,
    missing_key: StatusCode,
    challenge: Option<HeaderValue>,
}

impl Denials {
    pub(crate) fn of(plan: &Plan) -> Self {
        let members: Members = plan.members.clone();
        let missing_key = plan.missing_key_status;
        // A 401 must name the ways to authenticate (RFC 9110, 15.5.2).
        let challenge = (missing_key == StatusCode::UNAUTHORIZED).then(|| challenge(plan));
        Self { problem: Problem::with_members(members), missing_key, challenge }
    }

    fn finished<'a>(&self, denial: &Denial<'a>) -> Denial<'a> {
        match denial.reason() {
            Reason::MissingKey => denial.clone().with_status(self.missing_key),
            _ => denial.clone(),
        }
    }
}

/// The entry in a denial's extensions.
pub(crate) fn answered_by(denial: &Denial<'_>) -> AnsweredBy {
    let policies = denial.policies().iter().map(|&policy| policy.to_owned()).collect();
    AnsweredBy::Denial { code: denial.reason().code(), policies }
}

impl DenialResponse for Denials {
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        let mut response = self.problem.respond(&self.finished(denial));
        response.extensions_mut().insert(answered_by(denial));
        if let (Reason::MissingKey, Some(challenge)) = (denial.reason(), &self.challenge) {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge.clone());
        }
        response
    }

    fn respond_grpc(&self, denial: &Denial<'_>) -> Response<Bytes> {
        let mut response = self.problem.respond_grpc(&self.finished(denial));
        response.extensions_mut().insert(answered_by(denial));
        response
    }
}

/// The `Authorization` schemes with which `identity` finds a client. Other headers have no
/// registered scheme, so the challenge contains the header's name.
fn challenge(plan: &Plan) -> HeaderValue {
    let schemes = plan.identity.iter().filter_map(|source| match source {
        IdentitySource::User(_) => Some("Bearer"),
        IdentitySource::ApiKey(keys) => Some(match &keys.header {
            ApiKeyHeader::Header(name) => name.as_str(),
            ApiKeyHeader::Authorization(scheme) => scheme,
        }),
        IdentitySource::Certificate | IdentitySource::Value(_) | IdentitySource::Ip { .. } => None,
    });
    let schemes = schemes.collect::<Vec<_>>().join(", ");
    // Header and scheme names are tokens, so they are valid header values.
    HeaderValue::try_from(schemes).unwrap_or(HeaderValue::from_static("Bearer"))
}
