//! The program chooses jsonwebtoken's crypto provider. Tollgate's feature `jwt` enables none.

#![cfg(test)]

use http::Request;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use tollgate::key::{JwtKey, JwtKeyError, JwtKeys, JwtUser, JwtVerifier, KeySource, RequestHead};

const SECRET: &[u8] = b"at least thirty-two random bytes";

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../crates/tollgate/src/key/testdata/", $name, ".pem"))
    };
}

#[test]
fn single_provider_verifies_all_algorithms() {
    if cfg!(feature = "aws-lc-rs") == cfg!(feature = "rust-crypto") {
        return;
    }
    for (algorithm, key, signer) in [
        (Algorithm::HS256, JwtKey::hs256(SECRET), EncodingKey::from_secret(SECRET)),
        (
            Algorithm::RS256,
            JwtKey::rs256_pem(pem!("rsa.public")),
            EncodingKey::from_rsa_pem(pem!("rsa.private")).unwrap(),
        ),
        (
            Algorithm::ES256,
            JwtKey::es256_pem(pem!("ec.public")),
            EncodingKey::from_ec_pem(pem!("ec.private")).unwrap(),
        ),
        (
            Algorithm::EdDSA,
            JwtKey::eddsa_pem(pem!("ed.public")),
            EncodingKey::from_ed_pem(pem!("ed.private")).unwrap(),
        ),
    ] {
        let keys = JwtKeys::new([key.unwrap()]).unwrap();
        let user = JwtUser::new(JwtVerifier::new(keys));
        let accepts = |token: &str| {
            let request = Request::builder().header("authorization", format!("Bearer {token}"));
            user.subject(&RequestHead::of(&request.body(()).unwrap())).unwrap().is_some()
        };
        let claims = serde_json::json!({"sub": "ann", "exp": 4_102_444_800_u64});
        let token = encode(&Header::new(algorithm), &claims, &signer).unwrap();
        assert!(accepts(&token), "{algorithm:?}");
        let others = serde_json::json!({"sub": "bob", "exp": 4_102_444_800_u64});
        let others = encode(&Header::new(algorithm), &others, &signer).unwrap();
        let (signed, _) = token.rsplit_once('.').unwrap();
        let (_, signature) = others.rsplit_once('.').unwrap();
        assert!(!accepts(&format!("{signed}.{signature}")), "{algorithm:?}");
    }
}

#[test]
fn keys_need_exactly_one_provider() {
    let has_one = cfg!(feature = "aws-lc-rs") != cfg!(feature = "rust-crypto");
    let key = JwtKey::hs256(SECRET);
    assert_eq!(matches!(key, Err(JwtKeyError::NoCryptoProvider)), !has_one);
}
