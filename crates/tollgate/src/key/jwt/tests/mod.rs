//! Test helpers: keys of each type, and tokens signed with them.

mod claims;
mod keys;
mod requests;
mod signatures;

use std::time::{SystemTime, UNIX_EPOCH};

use http::Request;
use jsonwebtoken::{Algorithm as Alg, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::head::RequestHead;
use crate::key::{JwtKey, JwtKeys, JwtUser, JwtVerifier, KeySource, Subject};

const SECRET: &[u8] = b"a secret of thirty-two bytes: ok";
const RSA: &[u8] = include_bytes!("../../testdata/rsa.public.pem");
const RSA_PRIVATE: &[u8] = include_bytes!("../../testdata/rsa.private.pem");
const RSA_SHORT: &[u8] = include_bytes!("../../testdata/rsa-1024.public.pem");
const EC: &[u8] = include_bytes!("../../testdata/ec.public.pem");
const EC_PRIVATE: &[u8] = include_bytes!("../../testdata/ec.private.pem");
const P384: &[u8] = include_bytes!("../../testdata/p384.public.pem");
const ED: &[u8] = include_bytes!("../../testdata/ed.public.pem");
const ED_PRIVATE: &[u8] = include_bytes!("../../testdata/ed.private.pem");

/// A verifier with a key for each algorithm, named after the algorithm.
fn verifier() -> JwtVerifier {
    JwtVerifier::new(verifier_keys())
}

fn verifier_keys() -> JwtKeys {
    let keys = [
        JwtKey::hs256(SECRET).unwrap().with_kid("hs"),
        JwtKey::rs256_pem(RSA).unwrap().with_kid("rs"),
        JwtKey::es256_pem(EC).unwrap().with_kid("es"),
        JwtKey::eddsa_pem(ED).unwrap().with_kid("ed"),
    ];
    JwtKeys::new(keys).unwrap()
}

/// Each algorithm with its key's name and the signing key.
fn signers() -> [(Alg, &'static str, EncodingKey); 4] {
    [
        (Alg::HS256, "hs", EncodingKey::from_secret(SECRET)),
        (Alg::RS256, "rs", EncodingKey::from_rsa_pem(RSA_PRIVATE).unwrap()),
        (Alg::ES256, "es", EncodingKey::from_ec_pem(EC_PRIVATE).unwrap()),
        (Alg::EdDSA, "ed", EncodingKey::from_ed_pem(ED_PRIVATE).unwrap()),
    ]
}

/// Seconds from now, in the format of claims.
fn after(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + seconds
}

fn claims() -> Value {
    json!({ "iss": "https://login.example", "sub": "ann", "exp": after(600) })
}

fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn header(alg: Alg, kid: Option<&str>) -> Header {
    let mut header = Header::new(alg);
    header.kid = kid.map(str::to_owned);
    header
}

/// A token that names the shared secret and is signed with it.
fn token(claims: &Value) -> String {
    sign(&header(Alg::HS256, Some("hs")), claims, SECRET)
}

fn sign(header: &Header, claims: &Value, secret: &[u8]) -> String {
    encode(header, claims, &EncodingKey::from_secret(secret)).unwrap()
}

fn subject(verifier: &JwtVerifier, authorization: &str) -> Option<Subject> {
    let request = Request::builder().header("authorization", authorization).body(()).unwrap();
    JwtUser::new(verifier.clone()).subject(&RequestHead::of(&request)).unwrap()
}

fn accepts(verifier: &JwtVerifier, token: &str) -> bool {
    subject(verifier, &format!("Bearer {token}")).is_some()
}

fn encoded(json: &Value) -> String {
    encoded_bytes(json.to_string().as_bytes())
}

/// Base64url without padding.
fn encoded_bytes(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            (0..3).fold(0, |group, at| group << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..=chunk.len() {
            let digit = group >> (18 - 6 * at) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}
