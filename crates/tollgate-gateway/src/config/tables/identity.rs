use tollgate::OnMissingKey;

use super::super::{format, spec, typed};
use typed::{Hidden, List, OneOrMore, Time, Whole, Written, section, words};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum ClientKey {
    Ip,
    User,
    ApiKey,
    Header,
    Cookie,
    Query,
}

impl ClientKey {
    /// Whether this is a value of the request, which has a name.
    pub(in crate::config) const fn is_value(self) -> bool {
        matches!(self, Self::Header | Self::Cookie | Self::Query)
    }

    pub(in crate::config) const fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::User => "user",
            Self::ApiKey => "apiKey",
            Self::Header => "header",
            Self::Cookie => "cookie",
            Self::Query => "query",
        }
    }
}

section! {
    /// The client whose quota a request uses.
    Identity = "identity" {
        /// The identity of a client.
        required key: IdentityWord,
        /// The name of the header, the cookie or the parameter, for these keys.
        optional name: Written<format::Header>,
        /// Where proxies write the client's address: X-Forwarded-For, Forwarded, or a header with
        /// one address, as X-Real-IP. It is believed of `trustedProxies` alone; without those, of
        /// loopback.
        optional header: format::Header,
        /// For addresses, in place of `rateLimiter.trustedProxies`; with them and without `header`,
        /// that is X-Forwarded-For. For a header, a cookie or a parameter, the proxies that verify
        /// the value: requests of others have none.
        optional trusted_proxies: List<format::Network>,
        /// How many bits of an IPv4 address count.
        default ipv4_prefix: Whole<1, 32, u8> = "32",
        /// How many bits of an IPv6 address count.
        default ipv6_prefix: Whole<1, 128, u8> = "64",
    }

    /// A request in which `identity` finds no client is rejected.
    MissingStatus = "onMissingKey" {
        /// The status, in place of 403; any of these but 429, which says that waiting helps. With
        /// 401 the answer names in `WWW-Authenticate` how to say who one is.
        required deny: Whole<400, 499, u16>,
    }

    /// Tokens in `Authorization: Bearer …`. An invalid token identifies no client. Where the keys
    /// come from is one of `secret`, `keyFile`, `jwksFile` and `jwksUrl`.
    Jwt = "jwt" either [secret key_file jwks_file jwks_url] {
        /// A shared secret of at least 32 bytes, for HS256; best from a variable.
        optional secret: Hidden<format::Hs256>,
        /// A PEM file with a public key; it needs `algorithm`.
        optional key_file: format::Text,
        /// The algorithm of the key in `keyFile`.
        optional algorithm: KeyAlgorithm,
        /// A key set in a file; read again when it changes.
        optional jwks_file: format::Text,
        /// A key set at a URL: https, or http to this machine. Fetched at the start, when it is
        /// older than `maxAge`, and when a token names a key that is not in it. Redirects are not
        /// followed, and 1 MiB is the most. While it cannot be fetched, the keys before stay.
        optional jwks_url: format::JwksUrl,
        /// How much time lies between two fetches at least, whatever tokens come.
        default min_refetch: Time = "30s",
        /// When `jwksUrl` is fetched again in any case.
        default max_age: Time = "10m",
        /// How long an answer of `jwksUrl` may take.
        default fetch_timeout: Time = "5s",
        /// The required `iss`. Without this key, `iss` is not checked.
        optional issuer: format::Text,
        /// The required `aud`, or a list of accepted values. Without it, tokens that name an
        /// audience are refused.
        optional audience: OneOrMore<format::Text>,
        /// The claim that names the tier of a user.
        optional tier_claim: format::Text,
        /// How many different tokens of a client address (IPv6: a /64) may fail verification per
        /// minute, or `unlimited`. The gateway then answers further tokens with 429 and does not
        /// verify them. Each gateway process counts separately.
        default max_refused_per_minute: format::PerMinute = "1000",
    }

    /// API keys that were given out, by their digests. A key that is not in the list identifies no
    /// client.
    ApiKeys = "apiKeys" either [header scheme] {
        /// The header field with the key.
        default header: format::Header = "X-API-Key",
        /// In place of that, the scheme in `Authorization: SCHEME KEY`.
        optional scheme: format::Text,
        /// The keys.
        required keys: List<ApiKey>,
    }

    /// A key that was given out.
    ApiKey = "apiKeys.keys[]" {
        /// Its SHA-256, as `printf %s KEY | sha256sum` prints it.
        required sha256: Hidden<format::Sha256>,
        /// The tier of the owner.
        optional tier: Written<format::Identifier>,
    }

    /// A list of subjects. `allow` has the same keys. Who is on both is refused.
    Subjects = "deny" {
        /// Networks and addresses of clients.
        optional addresses: List<format::Listed>,
        /// The owners of these API keys; the keys need not be among `apiKeys`.
        optional api_keys: List<ListedKey>,
        /// Users of tokens: the name, or issuer and name with a space between where `jwt` has no
        /// `issuer`.
        optional users: List<format::User>,
        /// A file with more, a line each: `203.0.113.0/24`, `sha256:DIGEST` or `user:NAME`; what
        /// follows a `#` is a comment. It is read again when it changes.
        optional file: format::Text,
    }

    /// An API key.
    ListedKey = "deny.apiKeys[]" {
        /// Its SHA-256, as `printf %s KEY | sha256sum` prints it.
        required sha256: Hidden<format::Sha256>,
    }
}

words! {
    IdentityWord -> ClientKey {
        /// The address of the client: IPv4, or a /64 of IPv6.
        "ip" => ClientKey::Ip,
        /// The same.
        "ipv4" => ClientKey::Ip,
        /// The subject of a verified token; see `jwt`.
        "user" => ClientKey::User,
        /// An API key of the list; see `apiKeys`.
        "apiKey" => ClientKey::ApiKey,
        /// The header `name`. Clients can write any value, unless `trustedProxies` set it.
        "header" => ClientKey::Header,
        /// The cookie `name`. The same holds.
        "cookie" => ClientKey::Cookie,
        /// The parameter `name` of the query. The same holds.
        "query" => ClientKey::Query,
    }

    MissingWord -> OnMissingKey {
        /// It is refused with 403.
        "deny" => OnMissingKey::Deny,
        /// It passes, limited only by policies for all clients.
        "pass" => OnMissingKey::Pass,
        /// All such requests share one quota of each policy.
        "share" => OnMissingKey::Share,
    }

    KeyAlgorithm -> &'static str {
        /// RSA.
        "RS256" => "RS256",
        /// P-256.
        "ES256" => "ES256",
        /// Ed25519.
        "EdDSA" => "EdDSA",
    }
}
