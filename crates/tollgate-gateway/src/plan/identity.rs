//! The client whose quota a request uses.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use tollgate::key::TrustedProxies;

use super::Secret;

/// One link of the chain of identities.
#[derive(Clone, Debug)]
pub enum IdentitySource {
    /// The subject of a verified token.
    User(JwtPlan),
    /// An API key from a list.
    ApiKey(ApiKeysPlan),
    /// A value of the request.
    Value(ValuePlan),
    /// The address of the client.
    Ip {
        /// The proxies whose forwarding header is trusted.
        trusted_proxies: TrustedProxies,
        /// Which header; `None` is the peer, whatever the headers say.
        header: Option<ForwardingHeader>,
        /// How many bits of an IPv4 address count.
        v4_prefix: u8,
        /// How many bits of an IPv6 address count.
        v6_prefix: u8,
    },
}

/// A value that names the client.
#[derive(Clone, Debug)]
pub struct ValuePlan {
    /// Where it is.
    pub place: ValuePlace,
    /// The proxies that verify the value. Without them, clients can write any value.
    pub proxies: Option<TrustedProxies>,
}

/// Where a value is that names the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePlace {
    /// A header.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A parameter of the query.
    Query(String),
}

impl fmt::Display for ValuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query parameter {name}"),
        }
    }
}

/// Where proxies write the address of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For`, a list.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// A header with one address, such as `X-Real-IP`.
    Single(HeaderName),
}

/// Which tokens to believe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtPlan {
    /// Where the keys are.
    pub keys: KeyOrigin,
    /// `iss`, if it is checked.
    pub issuer: Option<String>,
    /// `aud`, any of these, if it is checked.
    pub audiences: Vec<String>,
    /// The claim that names the tier.
    pub tier_claim: Option<String>,
}

/// Where the keys of tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// A shared secret, HS256.
    Secret(Secret),
    /// A public key in PEM, for the algorithm of that name.
    Pem {
        /// The file.
        file: PathBuf,
        /// `RS256`, `ES256` or `EdDSA`.
        algorithm: &'static str,
    },
    /// A key set in a file, read again when it changes.
    JwksFile(PathBuf),
    /// A key set at a URL.
    JwksUrl(JwksPlan),
}

/// A key set at a URL, and when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksPlan {
    /// `https://…`; `http://` only to loopback.
    pub url: String,
    /// It is asked no more often than that.
    pub min_refetch: Duration,
    /// It is asked again after that, whether or not a key is missing.
    pub max_age: Duration,
    /// How long an answer may take.
    pub fetch_timeout: Duration,
}

impl JwksPlan {
    /// The URL without its query, which may hold a secret.
    pub fn shown_url(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }
}

/// Which API keys to believe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeysPlan {
    /// Where a request has its key.
    pub place: ApiKeyPlace,
    /// The keys.
    pub keys: Vec<ApiKeyEntry>,
}

/// Where a request has its API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyPlace {
    /// The header `X-API-Key`.
    Usual,
    /// A header of its own.
    Header(HeaderName),
    /// `Authorization: <scheme> <key>`.
    Authorization(String),
}

/// An API key that was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyEntry {
    /// Its SHA-256, in hex.
    pub sha256: String,
    /// The tier of its owner.
    pub tier: Option<usize>,
}
