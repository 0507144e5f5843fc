use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use tollgate::key::TrustedProxies;

use super::Secret;

#[derive(Clone, Debug)]
pub enum IdentitySource {
    User(JwtPlan),
    ApiKey(ApiKeysPlan),
    /// The owner of the client certificate.
    Certificate,
    Value(ValuePlan),
    Ip {
        trusted_proxies: TrustedProxies,
        /// The header with the client's address; `None` means the peer, regardless of headers.
        header: Option<ForwardingHeader>,
        /// How many bits of an IPv4 address count.
        v4_prefix: u8,
        /// How many bits of an IPv6 address count.
        v6_prefix: u8,
    },
}

#[derive(Clone, Debug)]
pub struct ValuePlan {
    pub parameter: Parameter,
    /// The proxies that verify the value. Without this list, clients can write any value.
    pub proxies: Option<TrustedProxies>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    Header(HeaderName),
    Cookie(String),
    Query(String),
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query parameter {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For`, a list.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// A header with one address, such as `X-Real-IP`.
    Single(HeaderName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtPlan {
    pub keys: KeyOrigin,
    /// The required `iss`, if any.
    pub issuer: Option<String>,
    /// The accepted values of `aud`; empty if it is not checked.
    pub audiences: Vec<String>,
    pub tier_claim: Option<String>,
    /// How many tokens from an address may fail verification per minute.
    pub max_refused: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// A shared secret, HS256.
    Secret(Secret),
    Pem {
        file: PathBuf,
        /// `RS256`, `ES256` or `EdDSA`.
        algorithm: &'static str,
    },
    JwksFile(PathBuf),
    JwksUrl(JwksPlan),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksPlan {
    /// `https://…`; `http://` only to loopback.
    pub url: String,
    pub min_refetch: Duration,
    pub max_age: Duration,
    pub fetch_timeout: Duration,
}

impl JwksPlan {
    /// The URL without its query, which may contain a secret.
    pub fn shown_url(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeysPlan {
    pub header: ApiKeyHeader,
    pub keys: Vec<ApiKeyEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyHeader {
    Header(HeaderName),
    /// `Authorization: <scheme> <key>`.
    Authorization(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyEntry {
    /// The key's SHA-256, in hex.
    pub sha256: String,
    pub tier: Option<usize>,
    /// The key's name in `tenants`, instead of its SHA-256.
    pub tenant: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectsPlan {
    pub addresses: Vec<String>,
    /// The API keys' SHA-256, in hex.
    pub api_keys: Vec<String>,
    /// Users, with or without their issuer.
    pub users: Vec<String>,
    pub file: Option<PathBuf>,
}

impl SubjectsPlan {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
