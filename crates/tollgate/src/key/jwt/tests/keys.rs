//! Tests supported keys, published key sets, and key rotation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jsonwebtoken::{Algorithm as Alg, EncodingKey, encode};
use serde_json::{Value, json};

use super::{
    EC, EC_PRIVATE, ED_PRIVATE, P384, RSA, RSA_PRIVATE, RSA_SHORT, SECRET, accepts, claims,
    claims_with, header, sign, signers, token, verifier,
};
use crate::key::{JwtKey, JwtKeyError, JwtKeys, JwtUser, JwtVerifier};

#[test]
fn clones_share_keys_not_rules() {
    let verifier = verifier();
    let serving = verifier.clone().audience("orders");
    let source = JwtUser::new(serving.clone());
    let old = token(&claims_with("aud", json!("orders")));
    assert!(accepts(&serving, &old));
    assert!(!accepts(&verifier, &old));

    let next = JwtKey::hs256(&[9; 32]).unwrap().with_kid("next");
    verifier.replace_keys(JwtKeys::new([next]).unwrap());
    let new = header(Alg::HS256, Some("next"));
    let new = sign(&new, &claims_with("aud", json!("orders")), &[9; 32]);
    assert!(!accepts(&source.0, &old));
    assert!(accepts(&source.0, &new));
}

#[test]
fn unknown_kid_calls_hook() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let verifier = JwtVerifier::without_keys().on_unknown_kid(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let of = |kid| sign(&header(Alg::HS256, kid), &claims(), SECRET);
    assert!(!accepts(&verifier, &of(Some("new"))));
    // A token without a `kid` and a malformed token do not trigger a fetch.
    assert!(!accepts(&verifier, &of(None)));
    assert!(!accepts(&verifier, "x.y.z"));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let key = JwtKey::hs256(SECRET).unwrap().with_kid("new");
    let keys = JwtKeys::new([key]).unwrap();
    assert_eq!(keys.kids().collect::<Vec<_>>(), ["new"]);
    // A clone with its own rules shares the keys, too.
    let strict = verifier.clone().issuer("https://login.example");
    verifier.replace_keys(keys);
    assert!(accepts(&strict, &of(Some("new"))));
    assert!(!accepts(&strict, &of(Some("newer"))));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn jwks_skips_unusable_keys() {
    let jwk = |pem: &[u8], alg| {
        let key = match alg {
            Alg::RS256 => EncodingKey::from_rsa_pem(pem),
            Alg::ES256 => EncodingKey::from_ec_pem(pem),
            _ => EncodingKey::from_ed_pem(pem),
        };
        let jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key.unwrap(), alg).unwrap();
        serde_json::to_value(jwk).unwrap()
    };
    let named = |mut jwk: Value, kid: &str| {
        jwk["kid"] = json!(kid);
        jwk
    };
    let rsa = || jwk(RSA_PRIVATE, Alg::RS256);
    let mut for_encryption = named(rsa(), "enc");
    for_encryption["use"] = json!("enc");
    let mut other_algorithm = named(rsa(), "rs512");
    other_algorithm["alg"] = json!("RS512");
    let set = json!({ "keys": [
        named(rsa(), "rs"),
        named(jwk(EC_PRIVATE, Alg::ES256), "es"),
        named(jwk(ED_PRIVATE, Alg::EdDSA), "ed"),
        for_encryption,
        other_algorithm,
        { "kty": "oct", "kid": "hs", "alg": "HS256", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0" },
        { "kty": "OKP", "crv": "Ed25519", "kid": "short", "x": "AAAA" },
        { "kty": "EC", "crv": "P-256", "kid": "off", "x": "AAAA", "y": "AAAA" },
        { "kty": "RSA", "kid": "weak", "n": "AQAB", "e": "AQAB" },
        { "kty": "from the future", "kid": "new" },
    ]});
    let keys = JwtKeys::from_jwks(&set.to_string()).unwrap();
    let shown = format!("{keys:?}");
    assert_eq!(shown.matches("JwtKey(").count(), 3, "{shown}");
    let verifier = JwtVerifier::new(keys);
    for (alg, kid, key) in signers() {
        let token = encode(&header(alg, Some(kid)), &claims(), &key).unwrap();
        assert_eq!(accepts(&verifier, &token), kid != "hs", "{kid}");
    }

    let none = JwtKeys::from_jwks(r#"{"keys": []}"#).unwrap_err();
    assert_eq!(none, JwtKeyError::NoKeys);
    let junk = JwtKeys::from_jwks("<html>").unwrap_err().to_string();
    assert!(junk.contains("not a JSON Web Key Set"), "{junk}");
}

#[test]
fn unusable_keys_are_rejected() {
    let unusable =
        |key: Result<JwtKey, JwtKeyError>| matches!(key.unwrap_err(), JwtKeyError::Unusable { .. });
    assert!(unusable(JwtKey::rs256_pem(EC)));
    assert!(unusable(JwtKey::rs256_pem(RSA_PRIVATE)));
    assert!(unusable(JwtKey::rs256_pem(b"junk")));
    assert!(unusable(JwtKey::es256_pem(RSA)));
    assert!(unusable(JwtKey::es256_pem(P384)));
    assert!(unusable(JwtKey::es256_pem(EC_PRIVATE)));
    assert!(unusable(JwtKey::eddsa_pem(EC)));
    assert!(unusable(JwtKey::eddsa_pem(ED_PRIVATE)));
    let weak = JwtKey::rs256_pem(RSA_SHORT).unwrap_err();
    assert_eq!(weak, JwtKeyError::RsaSize { bits: 1024 });
    let short = JwtKey::hs256(&SECRET[1..]).unwrap_err();
    assert_eq!(short, JwtKeyError::ShortSecret { bytes: 31 });
}

#[test]
fn key_set_requires_distinct_kids() {
    let key = || JwtKey::hs256(SECRET).unwrap();
    assert_eq!(JwtKeys::new([]).unwrap_err(), JwtKeyError::NoKeys);
    let nameless = JwtKeys::new([key().with_kid("a"), key()]).unwrap_err();
    assert_eq!(nameless, JwtKeyError::NamelessKey);
    let same = JwtKeys::new([key().with_kid("a"), key().with_kid("a")]).unwrap_err();
    assert!(same.to_string().contains("\"a\""));
}

#[test]
fn secrets_are_never_shown() {
    let shown = format!("{:?} {:?}", verifier(), JwtKey::hs256(SECRET).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}
