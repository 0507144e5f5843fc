use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use http::Request;
use jsonwebtoken::{Algorithm as Alg, DecodingKey, EncodingKey, Header, encode};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::key::{ClientIp, JwtKeyError};

const SECRET: &[u8] = b"a secret of thirty-two bytes: ok";
const RSA: &[u8] = include_bytes!("../testdata/rsa.public.pem");
const RSA_PRIVATE: &[u8] = include_bytes!("../testdata/rsa.private.pem");
const RSA_SHORT: &[u8] = include_bytes!("../testdata/rsa-1024.public.pem");
const EC: &[u8] = include_bytes!("../testdata/ec.public.pem");
const EC_PRIVATE: &[u8] = include_bytes!("../testdata/ec.private.pem");
const P384: &[u8] = include_bytes!("../testdata/p384.public.pem");
const ED: &[u8] = include_bytes!("../testdata/ed.public.pem");
const ED_PRIVATE: &[u8] = include_bytes!("../testdata/ed.private.pem");

/// A verifier with a key of each sort, named by its algorithm.
fn verifier() -> JwtVerifier {
    let keys = [
        JwtKey::hs256(SECRET).unwrap().with_kid("hs"),
        JwtKey::rs256_pem(RSA).unwrap().with_kid("rs"),
        JwtKey::es256_pem(EC).unwrap().with_kid("es"),
        JwtKey::eddsa_pem(ED).unwrap().with_kid("ed"),
    ];
    JwtVerifier::new(JwtKeys::new(keys).unwrap())
}

/// Each algorithm with the name of its key and the key that signs for it.
fn signers() -> [(Alg, &'static str, EncodingKey); 4] {
    [
        (Alg::HS256, "hs", EncodingKey::from_secret(SECRET)),
        (Alg::RS256, "rs", EncodingKey::from_rsa_pem(RSA_PRIVATE).unwrap()),
        (Alg::ES256, "es", EncodingKey::from_ec_pem(EC_PRIVATE).unwrap()),
        (Alg::EdDSA, "ed", EncodingKey::from_ed_pem(ED_PRIVATE).unwrap()),
    ]
}

/// Seconds from now, as claims count them.
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

/// Signed with the secret, and asking for it.
fn token(claims: &Value) -> String {
    sign(&header(Alg::HS256, Some("hs")), claims, SECRET)
}

fn sign(header: &Header, claims: &Value, secret: &[u8]) -> String {
    encode(header, claims, &EncodingKey::from_secret(secret)).unwrap()
}

fn subject(verifier: &JwtVerifier, authorization: &str) -> Option<Subject> {
    let request = Request::builder().header("authorization", authorization).body(()).unwrap();
    JwtUser::new(verifier.clone()).subject(&Head::of(&request)).unwrap()
}

fn believes(verifier: &JwtVerifier, token: &str) -> bool {
    subject(verifier, &format!("Bearer {token}")).is_some()
}

#[test]
fn a_token_of_each_algorithm_names_the_same_user() {
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
fn a_key_serves_no_algorithm_but_its_own() {
    let verifier = verifier();
    for (alg, own, key) in signers() {
        for (_, kid, _) in signers() {
            let token = encode(&header(alg, Some(kid)), &claims(), &key).unwrap();
            assert_eq!(believes(&verifier, &token), kid == own, "{alg:?} with key {kid}");
        }
    }
    // The same family, another hash: the key is right and the algorithm is not.
    let token = sign(&header(Alg::HS512, Some("hs")), &claims(), SECRET);
    assert!(!believes(&verifier, &token));
}

#[test]
fn a_public_key_is_no_hmac_secret() {
    let verifier = verifier();
    let der = pem_body(RSA);
    for secret in [RSA, RSA.trim_ascii_end(), &der] {
        for kid in [Some("rs"), Some("hs"), None] {
            let token = sign(&header(Alg::HS256, kid), &claims(), secret);
            assert!(!believes(&verifier, &token), "{kid:?}");
        }
    }
    assert_eq!(JwtKey::hs256(RSA).unwrap_err(), JwtKeyError::PemAsSecret);

    // Also where the public key is the only key there is.
    let only = JwtVerifier::new(JwtKeys::new([JwtKey::rs256_pem(RSA).unwrap()]).unwrap());
    assert!(!believes(&only, &sign(&header(Alg::HS256, None), &claims(), RSA)));
}

#[test]
fn alg_none_is_no_signature() {
    for alg in ["none", "None", "NONE", ""] {
        let header = encoded(&json!({ "alg": alg, "typ": "JWT", "kid": "hs" }));
        let claims = encoded(&claims());
        for token in [
            format!("{header}.{claims}."),
            format!("{header}.{claims}"),
            format!("{header}.{claims}.{claims}"),
        ] {
            assert!(!believes(&verifier(), &token), "{token}");
        }
    }
}

#[test]
fn an_unknown_kid_names_nobody() {
    let verifier = verifier();
    let with = |kid| sign(&header(Alg::HS256, kid), &claims(), SECRET);
    assert!(believes(&verifier, &with(Some("hs"))));
    assert!(!believes(&verifier, &with(Some("HS"))));
    assert!(!believes(&verifier, &with(Some(""))));
    // Several keys, and the token does not say which.
    assert!(!believes(&verifier, &with(None)));
}

#[test]
fn a_token_without_kid_needs_a_set_of_one() {
    let with = |kid| sign(&header(Alg::HS256, kid), &claims(), SECRET);
    let key = || JwtKey::hs256(SECRET).unwrap();
    let named = JwtVerifier::new(JwtKeys::new([key().with_kid("a")]).unwrap());
    assert!(believes(&named, &with(None)));
    assert!(believes(&named, &with(Some("a"))));
    assert!(!believes(&named, &with(Some("b"))));
    let nameless = JwtVerifier::new(JwtKeys::new([key()]).unwrap());
    assert!(believes(&nameless, &with(None)));
    assert!(believes(&nameless, &with(Some("b"))));
}

#[test]
fn exp_has_to_be_a_number_that_is_not_past() {
    let verifier = verifier();
    for (exp, believed) in [
        (json!(after(600)), true),
        (json!(after(600).to_string()), false),
        (json!("never"), false),
        (json!(null), false),
        (json!([after(600)]), false),
        (json!({ "at": after(600) }), false),
        (json!(true), false),
        (json!(-1), false),
        (json!(0), false),
        (json!(1e300), false),
        // Clocks differ: 60 s are allowed, more are not.
        (json!(after(-30)), true),
        (json!(after(-90)), false),
    ] {
        let token = token(&claims_with("exp", exp.clone()));
        assert_eq!(believes(&verifier, &token), believed, "{exp}");
    }
    let mut without = claims();
    without.as_object_mut().unwrap().remove("exp");
    assert!(!believes(&verifier, &token(&without)));
}

#[test]
fn nbf_has_to_be_a_number_that_is_not_ahead() {
    for (nbf, believed) in [
        (json!(after(-600)), true),
        (json!(after(30)), true),
        (json!(after(90)), false),
        (json!(after(-600).to_string()), false),
        (json!([]), false),
    ] {
        let token = token(&claims_with("nbf", nbf.clone()));
        assert_eq!(believes(&verifier(), &token), believed, "{nbf}");
    }
}

#[test]
fn sub_has_to_be_a_text_that_is_not_empty() {
    for sub in [json!(""), json!(7), json!(null), json!(["ann"]), json!({})] {
        let token = token(&claims_with("sub", sub.clone()));
        assert!(!believes(&verifier(), &token), "{sub}");
    }
    let mut without = claims();
    without.as_object_mut().unwrap().remove("sub");
    assert!(!believes(&verifier(), &token(&without)));
}

#[test]
fn the_issuer_has_to_be_the_one_that_was_set() {
    let set = verifier().issuer("https://login.example");
    for (iss, believed) in [
        (json!("https://login.example"), true),
        (json!("https://login.example/"), false),
        (json!("https://evil.example"), false),
        (json!(["https://evil.example", "https://login.example"]), false),
        (json!(null), false),
        (json!(7), false),
    ] {
        let token = token(&claims_with("iss", iss.clone()));
        assert_eq!(believes(&set, &token), believed, "{iss}");
    }
}

#[test]
fn the_audience_has_to_be_one_that_was_set() {
    let set = verifier().audience("orders").audience("billing");
    for (aud, believed) in [
        (json!("orders"), true),
        (json!("billing"), true),
        (json!(["mail", "orders"]), true),
        (json!("mail"), false),
        (json!(["mail"]), false),
        (json!([]), false),
        (json!(null), false),
        (json!(7), false),
    ] {
        let token = token(&claims_with("aud", aud.clone()));
        assert_eq!(believes(&set, &token), believed, "{aud}");
    }
    assert!(!believes(&set, &token(&claims())));
    // A token for somebody else is not for us, although we set no audience.
    assert!(!believes(&verifier(), &token(&claims_with("aud", json!("mail")))));
}

#[test]
fn a_user_is_issuer_and_subject_together() {
    let verifier = verifier();
    let user = |iss: Value, sub: &str| {
        let mut claims = claims_with("sub", json!(sub));
        claims["iss"] = iss;
        subject(&verifier, &format!("Bearer {}", token(&claims))).unwrap().key
    };
    assert_eq!(user(json!("a"), "ann"), user(json!("a"), "ann"));
    assert_ne!(user(json!("a"), "ann"), user(json!("b"), "ann"));
    assert_ne!(user(json!("a"), "ann"), user(json!("a"), "Ann"));
    assert_ne!(user(json!("ab"), "c"), user(json!("a"), "bc"));
    assert_ne!(user(json!(null), "ann"), user(json!(""), "ann"));
}

#[test]
fn claims_that_nobody_signed_are_not_used() {
    let verifier = verifier();
    let valid = token(&claims());
    let forged = encoded(&claims_with("sub", json!("bob")));
    let parts: Vec<_> = valid.split('.').collect();
    assert!(!believes(&verifier, &format!("{}.{forged}.{}", parts[0], parts[2])));
    assert!(!believes(&verifier, &format!("{}.{}.", parts[0], parts[1])));
    assert!(!believes(&verifier, &format!("{valid}.{}", parts[2])));
    assert!(!believes(&verifier, &token(&claims()).replace('.', "..")));
    let foreign = sign(&header(Alg::HS256, Some("hs")), &claims(), &[7; 32]);
    assert!(!believes(&verifier, &foreign));
}

#[test]
fn a_key_in_the_token_is_not_used() {
    // The attacker's own key, in the header that he has signed with it.
    let own: EncodingKey = EncodingKey::from_secret(&[7; 32]);
    let mut header = header(Alg::HS256, Some("hs"));
    header.jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&own, Alg::HS256).ok();
    header.jku = Some("https://evil.example/jwks.json".to_owned());
    assert!(header.jwk.is_some());
    assert!(!believes(&verifier(), &sign(&header, &claims(), &[7; 32])));
}

#[test]
fn extensions_that_must_be_understood_are_not() {
    let mut header = header(Alg::HS256, Some("hs"));
    header.crit = Some(vec!["b64".to_owned()]);
    assert!(!believes(&verifier(), &sign(&header, &claims(), SECRET)));
}

#[test]
fn the_scheme_is_case_insensitive_and_the_header_single() {
    let verifier = verifier();
    let token = token(&claims());
    for (value, believed) in [
        (format!("bearer {token}"), true),
        (format!("BEARER  {token}"), true),
        (format!("Bearer{token}"), false),
        (format!("Basic {token}"), false),
        (format!("Bearer {token} {token}"), false),
        (format!("Bearer {token}, Bearer {token}"), false),
        (token.clone(), false),
    ] {
        assert_eq!(subject(&verifier, &value).is_some(), believed, "{value}");
    }
    let twice = Request::builder()
        .header("authorization", format!("Bearer {token}"))
        .header("authorization", format!("Bearer {token}"))
        .body(())
        .unwrap();
    let source = JwtUser::new(verifier);
    assert_eq!(source.subject(&Head::of(&twice)).unwrap(), None);
}

#[test]
fn a_token_past_eight_kilobytes_is_not_read() {
    let padded = |bytes: usize| token(&claims_with("pad", json!("x".repeat(bytes))));
    assert!(believes(&verifier(), &padded(5_000)));
    assert!(!believes(&verifier(), &padded(7_000)));
}

#[test]
fn a_stranger_falls_to_his_address() {
    let source = JwtUser::new(verifier()).or(ClientIp::peer());
    let expired = token(&claims_with("exp", json!(after(-3_600))));
    let kinds = [token(&claims()), expired, "junk".to_owned()].map(|token| {
        let peer: std::net::SocketAddr = "192.0.2.1:1".parse().unwrap();
        let request = Request::builder()
            .header("authorization", format!("Bearer {token}"))
            .extension(peer)
            .body(())
            .unwrap();
        source.subject(&Head::of(&request)).unwrap().unwrap().kind
    });
    assert_eq!(kinds, [SubjectKind::User, SubjectKind::Ip, SubjectKind::Ip]);
    assert!(!source.can_be_missing());
}

#[test]
fn clones_share_the_keys_but_not_the_rules() {
    let verifier = verifier();
    let serving = verifier.clone().audience("orders");
    let source = JwtUser::new(serving.clone());
    let old = token(&claims_with("aud", json!("orders")));
    assert!(believes(&serving, &old));
    assert!(!believes(&verifier, &old));

    let next = JwtKey::hs256(&[9; 32]).unwrap().with_kid("next");
    verifier.replace_keys(JwtKeys::new([next]).unwrap());
    let new = header(Alg::HS256, Some("next"));
    let new = sign(&new, &claims_with("aud", json!("orders")), &[9; 32]);
    assert!(!believes(&source.0, &old));
    assert!(believes(&source.0, &new));
}

#[test]
fn whoever_fetches_keys_is_told_when_one_is_missing() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let verifier = JwtVerifier::without_keys().on_unknown_kid(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let of = |kid| sign(&header(Alg::HS256, kid), &claims(), SECRET);
    assert!(!believes(&verifier, &of(Some("new"))));
    // A token that names no key asks for none, and neither does one that is no token.
    assert!(!believes(&verifier, &of(None)));
    assert!(!believes(&verifier, "x.y.z"));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let key = JwtKey::hs256(SECRET).unwrap().with_kid("new");
    let keys = JwtKeys::new([key]).unwrap();
    assert_eq!(keys.kids().collect::<Vec<_>>(), ["new"]);
    // A clone with rules of its own has the keys, too.
    let strict = verifier.clone().issuer("https://login.example");
    verifier.replace_keys(keys);
    assert!(believes(&strict, &of(Some("new"))));
    assert!(!believes(&strict, &of(Some("newer"))));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn a_published_key_set_is_read_and_what_it_cannot_use_passed_over() {
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
        assert_eq!(believes(&verifier, &token), kid != "hs", "{kid}");
    }

    let none = JwtKeys::from_jwks(r#"{"keys": []}"#).unwrap_err();
    assert_eq!(none, JwtKeyError::NoKeys);
    let junk = JwtKeys::from_jwks("<html>").unwrap_err().to_string();
    assert!(junk.contains("not a JSON Web Key Set"), "{junk}");
}

#[test]
fn a_key_that_cannot_verify_is_refused_when_it_is_made() {
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
fn keys_of_a_set_can_be_told_apart() {
    let key = || JwtKey::hs256(SECRET).unwrap();
    assert_eq!(JwtKeys::new([]).unwrap_err(), JwtKeyError::NoKeys);
    let nameless = JwtKeys::new([key().with_kid("a"), key()]).unwrap_err();
    assert_eq!(nameless, JwtKeyError::NamelessKey);
    let same = JwtKeys::new([key().with_kid("a"), key().with_kid("a")]).unwrap_err();
    assert!(same.to_string().contains("\"a\""));
}

#[test]
fn secrets_are_nowhere_in_clear() {
    let shown = format!("{:?} {:?}", verifier(), JwtKey::hs256(SECRET).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

proptest! {
    #[test]
    fn no_token_makes_the_verifier_panic(
        text in "[ -~]{0,80}",
        header in "\\PC{0,40}",
        claims in "\\PC{0,40}",
    ) {
        let verifier = verifier();
        let dressed = format!("{}.{}.AAAA", encoded_bytes(header.as_bytes()), encoded_bytes(claims.as_bytes()));
        prop_assert!(!believes(&verifier, &text));
        prop_assert!(!believes(&verifier, &dressed));
    }

    #[test]
    fn any_changed_byte_makes_a_token_a_strangers(at in 0.0..1.0_f64, byte in "[0-9a-zA-Z_-]") {
        let token = token(&claims());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the length")]
        let at = (token.len() as f64 * at) as usize;
        let changed = format!("{}{byte}{}", &token[..at], &token[at + 1..]);
        prop_assert_eq!(believes(&verifier(), &changed), changed == token);
    }
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

/// The bytes that the PEM file holds.
fn pem_body(pem: &[u8]) -> Vec<u8> {
    let text = str::from_utf8(pem).unwrap();
    let base64: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    let key = DecodingKey::from_base64_secret(&base64).unwrap();
    key.try_get_as_bytes().unwrap().to_vec()
}

#[test]
fn a_claim_is_read_of_a_token_that_is_believed_and_of_no_other() {
    let user = JwtUser::new(verifier());
    let said = |token: &str, claim: &str| {
        let request = Request::builder().header("authorization", format!("Bearer {token}"));
        let request = request.body(()).unwrap();
        let head = Head::of(&request);
        let found = user.with_claim(&head, claim);
        // With or without a claim, it is the same user.
        let subject = found.as_ref().map(|(subject, _)| subject.clone());
        assert_eq!(subject, user.subject(&head).unwrap());
        found.map(|(_, said)| said)
    };
    let pro = claims_with("plan", json!("pro"));
    assert_eq!(said(&token(&pro), "plan"), Some(Some("pro".to_owned())));
    assert_eq!(said(&token(&claims()), "plan"), Some(None));
    assert_eq!(said(&token(&claims_with("plan", json!(["pro"]))), "plan"), Some(None));
    let forged = sign(&header(Alg::HS256, Some("hs")), &pro, b"another secret of 32 bytes or so");
    assert_eq!(said(&forged, "plan"), None);
    let nobody = claims_with("sub", json!(""));
    assert_eq!(said(&token(&nobody), "plan"), None);
}

#[test]
fn a_claim_that_stands_twice_makes_a_token_nobodys_however_it_is_read() {
    // A map would keep the last of two, and the application might read the first.
    let twice = format!(r#"{{"sub":"ann","sub":"bob","exp":{}}}"#, after(600));
    assert!(serde_json::from_str::<Claims>(&twice).is_err());
    assert!(serde_json::from_str::<AllClaims>(&twice).is_err());
}
