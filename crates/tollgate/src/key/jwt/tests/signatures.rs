//! Tests that only tokens signed with a configured key are accepted.

use jsonwebtoken::{Algorithm as Alg, DecodingKey, EncodingKey, encode};
use proptest::prelude::*;
use serde_json::json;

use super::{
    RSA, SECRET, accepts, claims, claims_with, encoded, encoded_bytes, header, sign, signers,
    subject, token, verifier,
};
use crate::key::{JwtKey, JwtKeyError, JwtKeys, JwtVerifier, SubjectKind};

#[test]
fn all_algorithms_identify_same_user() {
    let verifier = verifier();
    let subjects = signers().map(|(alg, kid, key)| {
        let token = encode(&header(alg, Some(kid)), &claims(), &key).unwrap();
        subject(&verifier, &format!("Bearer {token}")).unwrap()
    });
    for subject in &subjects {
        assert_eq!(subject.kind, SubjectKind::User);
        assert_eq!(subject.key.heap_bytes(), 0);
        assert_eq!(subject, &subjects[0]);
    }
}

#[test]
fn keys_verify_only_own_algorithm() {
    let verifier = verifier();
    for (alg, own, key) in signers() {
        for (_, kid, _) in signers() {
            let token = encode(&header(alg, Some(kid)), &claims(), &key).unwrap();
            assert_eq!(accepts(&verifier, &token), kid == own, "{alg:?} with key {kid}");
        }
    }
    // The same algorithm family with another hash: the key is right, but the algorithm is wrong.
    let token = sign(&header(Alg::HS512, Some("hs")), &claims(), SECRET);
    assert!(!accepts(&verifier, &token));
}

#[test]
fn public_key_is_not_hmac_secret() {
    let verifier = verifier();
    let der = pem_body(RSA);
    for secret in [RSA, RSA.trim_ascii_end(), &der] {
        for kid in [Some("rs"), Some("hs"), None] {
            let token = sign(&header(Alg::HS256, kid), &claims(), secret);
            assert!(!accepts(&verifier, &token), "{kid:?}");
        }
    }
    assert_eq!(JwtKey::hs256(RSA).unwrap_err(), JwtKeyError::PemAsSecret);

    // This also holds if the public key is the only key.
    let only = JwtVerifier::new(JwtKeys::new([JwtKey::rs256_pem(RSA).unwrap()]).unwrap());
    assert!(!accepts(&only, &sign(&header(Alg::HS256, None), &claims(), RSA)));
}

#[test]
fn alg_none_is_rejected() {
    for alg in ["none", "None", "NONE", ""] {
        let header = encoded(&json!({ "alg": alg, "typ": "JWT", "kid": "hs" }));
        let claims = encoded(&claims());
        for token in [
            format!("{header}.{claims}."),
            format!("{header}.{claims}"),
            format!("{header}.{claims}.{claims}"),
        ] {
            assert!(!accepts(&verifier(), &token), "{token}");
        }
    }
}

#[test]
fn unknown_kid_is_rejected() {
    let verifier = verifier();
    let with = |kid| sign(&header(Alg::HS256, kid), &claims(), SECRET);
    assert!(accepts(&verifier, &with(Some("hs"))));
    assert!(!accepts(&verifier, &with(Some("HS"))));
    assert!(!accepts(&verifier, &with(Some(""))));
    // There are several keys, and the token does not name any.
    assert!(!accepts(&verifier, &with(None)));
}

#[test]
fn token_without_kid_needs_single_key() {
    let with = |kid| sign(&header(Alg::HS256, kid), &claims(), SECRET);
    let key = || JwtKey::hs256(SECRET).unwrap();
    let named = JwtVerifier::new(JwtKeys::new([key().with_kid("a")]).unwrap());
    assert!(accepts(&named, &with(None)));
    assert!(accepts(&named, &with(Some("a"))));
    assert!(!accepts(&named, &with(Some("b"))));
    let nameless = JwtVerifier::new(JwtKeys::new([key()]).unwrap());
    assert!(accepts(&nameless, &with(None)));
    assert!(accepts(&nameless, &with(Some("b"))));
}

#[test]
fn unsigned_claims_are_rejected() {
    let verifier = verifier();
    let valid = token(&claims());
    let forged = encoded(&claims_with("sub", json!("bob")));
    let parts: Vec<_> = valid.split('.').collect();
    assert!(!accepts(&verifier, &format!("{}.{forged}.{}", parts[0], parts[2])));
    assert!(!accepts(&verifier, &format!("{}.{}.", parts[0], parts[1])));
    assert!(!accepts(&verifier, &format!("{valid}.{}", parts[2])));
    assert!(!accepts(&verifier, &token(&claims()).replace('.', "..")));
    let foreign = sign(&header(Alg::HS256, Some("hs")), &claims(), &[7; 32]);
    assert!(!accepts(&verifier, &foreign));
}

#[test]
fn embedded_keys_are_ignored() {
    // The attacker's key signs the token and is in its header.
    let own: EncodingKey = EncodingKey::from_secret(&[7; 32]);
    let mut header = header(Alg::HS256, Some("hs"));
    header.jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&own, Alg::HS256).ok();
    header.jku = Some("https://evil.example/jwks.json".to_owned());
    assert!(header.jwk.is_some());
    assert!(!accepts(&verifier(), &sign(&header, &claims(), &[7; 32])));
}

#[test]
fn critical_extensions_are_rejected() {
    let mut header = header(Alg::HS256, Some("hs"));
    header.crit = Some(vec!["b64".to_owned()]);
    assert!(!accepts(&verifier(), &sign(&header, &claims(), SECRET)));
}

proptest! {
    #[test]
    fn arbitrary_tokens_never_panic(
        text in "[ -~]{0,80}",
        header in "\\PC{0,40}",
        claims in "\\PC{0,40}",
    ) {
        let verifier = verifier();
        let dressed = format!("{}.{}.AAAA", encoded_bytes(header.as_bytes()), encoded_bytes(claims.as_bytes()));
        prop_assert!(!accepts(&verifier, &text));
        prop_assert!(!accepts(&verifier, &dressed));
    }

    #[test]
    fn any_changed_byte_invalidates_token(at in 0.0..1.0_f64, byte in "[0-9a-zA-Z_-]") {
        let token = token(&claims());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the length")]
        let at = (token.len() as f64 * at) as usize;
        let changed = format!("{}{byte}{}", &token[..at], &token[at + 1..]);
        prop_assert_eq!(accepts(&verifier(), &changed), changed == token);
    }
}

/// Returns the bytes in the PEM file.
fn pem_body(pem: &[u8]) -> Vec<u8> {
    let text = str::from_utf8(pem).unwrap();
    let base64: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    let key = DecodingKey::from_base64_secret(&base64).unwrap();
    key.try_get_as_bytes().unwrap().to_vec()
}
