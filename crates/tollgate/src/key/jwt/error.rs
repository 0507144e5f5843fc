/// The error for an invalid verification key or key set.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtKeyError {
    /// The key is not valid for this algorithm.
    #[doc(alias = "TG0208")]
    #[error("JWT key for {algorithm}: not usable; expected {expected} [TG0208]")]
    Unusable {
        /// The algorithm.
        algorithm: &'static str,
        /// The fix: a description of a valid key.
        expected: &'static str,
    },

    /// jsonwebtoken has no crypto provider, or several.
    #[doc(alias = "TG0209")]
    #[error(
        "JWT keys: jsonwebtoken has no crypto provider: enable exactly one of its features \
         `rust_crypto` (feature `jwt-rust-crypto` of tollgate) and `aws_lc_rs`, or call \
         `install_default()` of one before you make a key [TG0209]"
    )]
    NoCryptoProvider,

    /// A PEM file as an HMAC secret. Every client that has the public key could sign tokens.
    #[doc(alias = "TG0208")]
    #[error(
        "JWT key for HS256: a PEM file is not a secret; use `rs256_pem`, `es256_pem` or \
         `eddsa_pem` for a public key [TG0208]"
    )]
    PemAsSecret,

    /// An HMAC secret that can be guessed.
    #[doc(alias = "TG0208")]
    #[error(
        "JWT key for HS256: {bytes} bytes; expected at least 32 random bytes (`openssl rand 32`) [TG0208]"
    )]
    ShortSecret {
        /// The secret's length in bytes.
        bytes: usize,
    },

    /// An RSA key that is too weak, or larger than jsonwebtoken can verify.
    #[doc(alias = "TG0208")]
    #[error("JWT key for RS256: {bits} bits; expected 2048 to 4096 [TG0208]")]
    RsaSize {
        /// The key's length in bits.
        bits: usize,
    },

    /// A set without usable keys cannot verify tokens.
    #[doc(alias = "TG0208")]
    #[error(
        "JWT key set: no usable key in it; give at least one for HS256, RS256, ES256 or EdDSA [TG0208]"
    )]
    NoKeys,

    /// A key in a set of several keys has no name, so no token can refer to it.
    #[doc(alias = "TG0208")]
    #[error("JWT key set: one of several keys has no `kid`; name each with `with_kid` [TG0208]")]
    NamelessKey,

    /// Two keys with the same name.
    #[doc(alias = "TG0208")]
    #[error("JWT key set: two keys with the kid {kid:?}; give each its own [TG0208]")]
    SameKid {
        /// The shared name.
        kid: String,
    },

    /// The text is not a JSON Web Key Set.
    #[doc(alias = "TG0208")]
    #[error("JWT key set: not a JSON Web Key Set (RFC 7517 §5): {reason} [TG0208]")]
    NoKeySet {
        /// The parser's message.
        reason: String,
    },
}

tollgate_core::debug_as_display!(JwtKeyError);
