use tollgate::limit::OnMissingKey;

use super::levels::Groups;
use super::value_types::{Proxies, WatchedFile};
use crate::file::format;
use crate::yaml::typed::{Hidden, List, OneOrMore, Whole, Written, durations, section, words};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKey {
    Ip,
    User,
    ApiKey,
    Certificate,
    Header,
    Cookie,
    Query,
}

impl ClientKey {
    /// Whether this is a value of the request, which has a name.
    pub(crate) const fn is_value(self) -> bool {
        matches!(self, Self::Header | Self::Cookie | Self::Query)
    }
}

section! {
    /// How to identify a client. A request with two values for the same entry, such as two API keys,
    /// gets 400 if a policy needs its client.
    keys Identity = "identity" short key {
        /// The request part that identifies the client.
        required key: Written<IdentityWord>,
        /// The name of the header, cookie or query parameter.
        optional name: Written<format::Header>
            where key = ["header" "cookie" "query"]: "it names a header, a cookie or a parameter",
        /// The header in which proxies write the client's address: X-Forwarded-For, Forwarded, or a
        /// header with a single address such as X-Real-IP. The gateway reads it only from
        /// `trustedProxies`, or from loopback if the list is missing.
        optional header: format::Header
            where key = ["ip" "ipv4"]: "it is about addresses, `key: ip`",
        /// Overrides `rateLimiter.trustedProxies` for this entry. For addresses, the default
        /// `header` is then X-Forwarded-For. For a header, cookie or parameter, these are the
        /// proxies that verify the value; it is ignored in all other requests.
        optional trusted_proxies: Proxies
            where key = ["ip" "ipv4" "header" "cookie" "query"]: "no proxy writes this",
        /// The length of the network prefix that identifies an IPv4 client, in bits.
        default ipv4_prefix: Whole<1, 32, u8> = "32"
            where key = ["ip" "ipv4"]: "it is about addresses, `key: ip`",
        /// The length of the network prefix that identifies an IPv6 client, in bits.
        default ipv6_prefix: Whole<1, 128, u8> = "64"
            where key = ["ip" "ipv4"]: "it is about addresses, `key: ip`",
    }

    /// Rejects requests without a client with another status.
    keys MissingStatus = "onMissingKey" {
        /// The status instead of 403. 429 is not possible, because waiting does not help. A 401 has
        /// the accepted schemes in `WWW-Authenticate`.
        required deny: Whole<400, 499, u16>,
    }

    /// Tokens in `Authorization: Bearer …`. An invalid token identifies no client. Set exactly one
    /// of `secret`, `keyFile`, `jwksFile` and `jwksUrl`.
    keys Jwt = "jwt" either [secret key_file jwks_file jwks_url] {
        /// A shared secret of at least 32 bytes for HS256. Use an environment variable.
        optional secret: Hidden<format::Hs256>,
        /// A PEM file with a public key. It requires `algorithm`.
        optional key_file: WatchedFile,
        /// The algorithm of the key in `keyFile`.
        optional algorithm: KeyAlgorithm where key_file:
            "a key set names the algorithm of each key, and `secret` is for HS256",
        /// A file with a key set. The gateway reloads it when it changes.
        optional jwks_file: WatchedFile,
        /// The URL of a key set: https, or http to loopback. The gateway fetches it at startup,
        /// every `maxAge`, and when a token has an unknown key id. It follows no redirects and
        /// reads at most 1 MiB. If a fetch fails, the previous keys remain valid.
        optional jwks_url: format::JwksUrl,
        /// The minimum time between two fetches.
        default min_refetch: MinRefetch = "30s" where jwks_url: "no key set is fetched",
        /// The maximum age of the key set.
        default max_age: MaxAge = "10m" where jwks_url: "no key set is fetched",
        /// The fetch timeout.
        default fetch_timeout: FetchTimeout = "5s" where jwks_url: "no key set is fetched",
        /// The required `iss`. By default, `iss` is not checked.
        optional issuer: format::Text,
        /// The accepted values of `aud`. By default, tokens with an audience are invalid.
        optional audience: OneOrMore<format::Text>,
        /// The claim that contains the user's tier.
        optional tier_claim: format::Text,
        /// The number of different invalid tokens per minute and client address (IPv6: per /64).
        /// Further tokens get 429 and are not verified. Each gateway process counts separately.
        default max_refused_per_minute: format::PerMinute = "1000",
    }

    /// API keys, stored as digests. An unknown key identifies no client.
    keys ApiKeys = "apiKeys" short keys either [header scheme] {
        /// The header that contains the key.
        default header: format::Header = "X-API-Key",
        /// Reads the key from `Authorization: SCHEME KEY` instead of `header`.
        optional scheme: format::Text,
        /// The list of keys.
        required keys: List<ApiKey>,
    }

    /// An API key.
    keys ApiKey = "apiKeys.keys[]" {
        /// The key's SHA-256, as printed by `printf %s KEY | sha256sum`.
        required sha256: Hidden<format::Sha256>,
        /// The tier of the key's owner.
        optional tier: Written<format::Identifier>,
        /// The key's name in `tenants`. Default: the SHA-256.
        optional tenant: format::TenantName,
        /// The key's groups, such as `{team: red, organisation: acme}`.
        optional levels: Groups,
    }

    /// A list of clients. If a client is in both lists, `deny` applies.
    keys Subjects = "deny" {
        /// Client addresses and networks.
        optional addresses: List<format::Listed>,
        /// API keys. They need not be in `apiKeys`.
        optional api_keys: List<ListedKey>,
        /// The users of tokens by name. If `jwt` has no `issuer`, write issuer and name with a
        /// space in between.
        optional users: List<format::User>,
        /// A file with further entries, one per line: `203.0.113.0/24`, `sha256:DIGEST` or
        /// `user:NAME`, with comments after `#`. The gateway reloads it when it changes.
        optional file: WatchedFile,
    }

    /// An API key.
    keys ListedKey = "deny.apiKeys[]" {
        /// The key's SHA-256, as printed by `printf %s KEY | sha256sum`.
        required sha256: Hidden<format::Sha256>,
    }
}

durations! {
    MinRefetch: 1_000 to 3_600_000,
        "forged tokens can cause a fetch this often, and new keys are unknown for up to this time";
    MaxAge: 1_000 to 604_800_000, "a key that the issuer has withdrawn is trusted for up to this time";
    FetchTimeout: 1 to 60_000, "the gateway waits for the first fetch when it starts";
}

words! {
    IdentityWord -> ClientKey {
        /// The client address: an IPv4 address, or an IPv6 /64 network.
        "ip" => ClientKey::Ip,
        /// The same as `ip`.
        "ipv4" => ClientKey::Ip,
        /// The subject of a verified token; see `jwt`.
        "user" => ClientKey::User,
        /// A listed API key; see `apiKeys`.
        "apiKey" => ClientKey::ApiKey,
        /// The owner of the client certificate: its first URI (a SPIFFE ID), its first DNS name, or its
        /// subject. It requires `listen[].tls.clientCa`.
        "certificate" => ClientKey::Certificate,
        /// The header `name`. Clients can set any value unless `trustedProxies` set the header.
        "header" => ClientKey::Header,
        /// The cookie `name`. Clients can set any value.
        "cookie" => ClientKey::Cookie,
        /// The query parameter `name`. Clients can set any value.
        "query" => ClientKey::Query,
    }

    MissingWord -> OnMissingKey {
        /// Rejects the request with 403.
        "deny" => OnMissingKey::Deny,
        /// Allows the request; only policies for all clients apply.
        "pass" => OnMissingKey::Pass,
        /// All such requests share one quota per policy.
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
