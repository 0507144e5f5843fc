//! Whose quota a request uses, and who is listed.

use super::super::format;
use super::super::spec::{Section, Shape, default, optional, required};
use super::{NETWORKS, TEXT, text};

pub(super) const IDENTITY_ANY: Shape = Shape::Either(&[
    Shape::Word(IDENTITIES),
    Shape::List(&Shape::Either(&[Shape::Word(IDENTITIES), Shape::Section(&IDENTITY)])),
    Shape::Section(&IDENTITY),
]);

pub(super) const IDENTITIES: &[(&str, &str)] = &[
    ("ip", "The address of the client: IPv4, or a /64 of IPv6."),
    ("ipv4", "The same."),
    ("user", "The subject of a verified token; see `jwt`."),
    ("apiKey", "An API key of the list; see `apiKeys`."),
    ("header", "The header `name`. Clients can write any value, unless `trustedProxies` set it."),
    ("cookie", "The cookie `name`. The same holds."),
    ("query", "The parameter `name` of the query. The same holds."),
];

pub(super) const IDENTITY: Section = Section {
    name: "identity",
    doc: "The client whose quota a request uses.",
    fields: &[
        required("key", Shape::Word(IDENTITIES), "The identity of a client."),
        optional(
            "name",
            text(format::HEADER),
            "The name of the header, the cookie or the parameter, for these keys.",
        ),
        optional(
            "header",
            text(format::HEADER),
            "Where proxies write the client's address: X-Forwarded-For, Forwarded, or a header with one address, as X-Real-IP. It is believed of `trustedProxies` alone; without those, of loopback.",
        ),
        optional(
            "trustedProxies",
            NETWORKS,
            "For addresses, in place of `rateLimiter.trustedProxies`; with them and without `header`, that is X-Forwarded-For. For a header, a cookie or a parameter, the proxies that verify the value: requests of others have none.",
        ),
        default(
            "ipv4Prefix",
            Shape::Whole { min: 1, max: 32 },
            "32",
            "How many bits of an IPv4 address count.",
        ),
        default(
            "ipv6Prefix",
            Shape::Whole { min: 1, max: 128 },
            "64",
            "How many bits of an IPv6 address count.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const MISSING: &[(&str, &str)] = &[
    ("deny", "It is refused with 403."),
    ("pass", "It passes, limited only by policies for all clients."),
    ("share", "All such requests share one quota of each policy."),
];

pub(super) const MISSING_STATUS: Section = Section {
    name: "onMissingKey",
    doc: "A request in which `identity` finds no client is rejected.",
    fields: &[required(
        "deny",
        Shape::Whole { min: 400, max: 499 },
        "The status, in place of 403; any of these but 429, which says that waiting helps. With 401 the answer names in `WWW-Authenticate` how to say who one is.",
    )],
    either: &[],
    others: None,
};

pub(super) const JWT: Section = Section {
    name: "jwt",
    doc: "Tokens in `Authorization: Bearer …`. An invalid token identifies no client. Where the keys come from is one of `secret`, `keyFile`, `jwksFile` and `jwksUrl`.",
    fields: &[
        optional(
            "secret",
            text(format::HS256),
            "A shared secret of at least 32 bytes, for HS256; best from a variable.",
        )
        .secret(),
        optional("keyFile", TEXT, "A PEM file with a public key; it needs `algorithm`."),
        optional(
            "algorithm",
            Shape::Word(&[("RS256", "RSA."), ("ES256", "P-256."), ("EdDSA", "Ed25519.")]),
            "The algorithm of the key in `keyFile`.",
        ),
        optional("jwksFile", TEXT, "A key set in a file; read again when it changes."),
        optional(
            "jwksUrl",
            text(format::JWKS_URL),
            "A key set at a URL: https, or http to this machine. Fetched at the start, when it is older than `maxAge`, and when a token names a key that is not in it. Redirects are not followed, and 1 MiB is the most. While it cannot be fetched, the keys before stay.",
        ),
        default(
            "minRefetch",
            Shape::Span,
            "30s",
            "How much time lies between two fetches at least, whatever tokens come.",
        ),
        default("maxAge", Shape::Span, "10m", "When `jwksUrl` is fetched again in any case."),
        default("fetchTimeout", Shape::Span, "5s", "How long an answer of `jwksUrl` may take."),
        optional("issuer", TEXT, "The required `iss`. Without this key, `iss` is not checked."),
        optional(
            "audience",
            Shape::Either(&[TEXT, Shape::List(&TEXT)]),
            "The required `aud`, or a list of accepted values. Without it, tokens that name an audience are refused.",
        ),
        optional("tierClaim", TEXT, "The claim that names the tier of a user."),
    ],
    either: &[&["secret", "keyFile", "jwksFile", "jwksUrl"]],
    others: None,
};

pub(super) const API_KEYS: Section = Section {
    name: "apiKeys",
    doc: "API keys that were given out, by their digests. A key that is not in the list identifies no client.",
    fields: &[
        default("header", text(format::HEADER), "X-API-Key", "The header field with the key."),
        optional("scheme", TEXT, "In place of that, the scheme in `Authorization: SCHEME KEY`."),
        required("keys", Shape::List(&Shape::Section(&API_KEY)), "The keys."),
    ],
    either: &[&["header", "scheme"]],
    others: None,
};

pub(super) const API_KEY: Section = Section {
    name: "apiKeys.keys[]",
    doc: "A key that was given out.",
    fields: &[
        required(
            "sha256",
            text(format::SHA256),
            "Its SHA-256, as `printf %s KEY | sha256sum` prints it.",
        )
        .secret(),
        optional("tier", text(format::IDENTIFIER), "The tier of the owner."),
    ],
    either: &[],
    others: None,
};

pub(super) const SUBJECTS: Section = Section {
    name: "deny",
    doc: "A list of subjects. `allow` has the same keys. Who is on both is refused.",
    fields: &[
        optional(
            "addresses",
            Shape::List(&text(format::LISTED)),
            "Networks and addresses of clients.",
        ),
        optional(
            "apiKeys",
            Shape::List(&Shape::Section(&LISTED_KEY)),
            "The owners of these API keys; the keys need not be among `apiKeys`.",
        ),
        optional(
            "users",
            Shape::List(&text(format::USER)),
            "Users of tokens: the name, or issuer and name with a space between where `jwt` has no `issuer`.",
        ),
        optional(
            "file",
            TEXT,
            "A file with more, a line each: `203.0.113.0/24`, `sha256:DIGEST` or `user:NAME`; what follows a `#` is a comment. It is read again when it changes.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const LISTED_KEY: Section = Section {
    name: "deny.apiKeys[]",
    doc: "An API key.",
    fields: &[required(
        "sha256",
        text(format::SHA256),
        "Its SHA-256, as `printf %s KEY | sha256sum` prints it.",
    )
    .secret()],
    either: &[],
    others: None,
};
