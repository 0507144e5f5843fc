//! Tests where a request carries its token, and requests without a token.

use std::rc::Rc;

use http::Request;
use serde_json::json;

use super::{
    Alg, SECRET, accepts, after, claims, claims_with, header, sign, subject, token, verifier,
    verifier_keys,
};
use crate::head::RequestHead;
use crate::key::{ClientIp, JwtKeys, JwtUser, KeyError, KeySource, SubjectKind, TokenCheck};

#[test]
fn scheme_is_case_insensitive_header_single() {
    let verifier = verifier();
    let token = token(&claims());
    for (value, accepted) in [
        (format!("bearer {token}"), true),
        (format!("BEARER  {token}"), true),
        (format!("Bearer{token}"), false),
        (format!("Basic {token}"), false),
        (format!("Bearer {token} {token}"), false),
        (format!("Bearer {token}, Bearer {token}"), false),
        (token.clone(), false),
    ] {
        assert_eq!(subject(&verifier, &value).is_some(), accepted, "{value}");
    }
    let twice = Request::builder()
        .header("authorization", format!("Bearer {token}"))
        .header("authorization", format!("Bearer {token}"))
        .body(())
        .unwrap();
    let (source, twice) = (JwtUser::new(verifier), RequestHead::of(&twice));
    assert!(matches!(source.subject(&twice), Err(KeyError::Ambiguous)));
    assert_eq!(source.check(&twice, "plan", || true), TokenCheck::Ambiguous);
    assert_eq!(source.with_claim(&twice, "plan"), None);
}

#[test]
fn tokens_above_8_kib_are_ignored() {
    let padded = |bytes: usize| token(&claims_with("pad", json!("x".repeat(bytes))));
    assert!(accepts(&verifier(), &padded(5_000)));
    assert!(!accepts(&verifier(), &padded(7_000)));
}

#[test]
fn accepted_tokens_are_cached() {
    let verifier = verifier();
    let token = token(&claims());
    let first = verifier.verify(&token, || true).unwrap();
    let again = verifier.verify(&token, || true).unwrap();
    assert!(Rc::ptr_eq(&first, &again), "the claims of the first time");
    verifier.replace_keys(verifier_keys());
    assert!(
        !Rc::ptr_eq(&first, &verifier.verify(&token, || true).unwrap()),
        "the keys have changed"
    );
    verifier.replace_keys(JwtKeys::none());
    assert!(verifier.verify(&token, || true).is_err());
}

/// Returns the check's result, and whether it requested signature verification.
fn check(user: &JwtUser, token: &str, may_verify: bool) -> (TokenCheck, bool) {
    let request = Request::builder().header("authorization", format!("Bearer {token}"));
    let mut would_verify = false;
    let checked = user.check(&RequestHead::of(&request.body(()).unwrap()), "plan", || {
        would_verify = true;
        may_verify
    });
    (checked, would_verify)
}

#[test]
fn refused_tokens_are_cached() {
    const VERIFIED: (TokenCheck, bool) = (TokenCheck::Refused { verified: true }, true);
    const KNOWN: (TokenCheck, bool) = (TokenCheck::Refused { verified: false }, false);
    let (valid, other) = (token(&claims()), token(&claims_with("sub", json!("bob"))));
    let (signed, _) = valid.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{signature}");
    let expired = token(&claims_with("exp", json!(after(-3_600))));
    let verifier = verifier();
    let user = JwtUser::new(verifier.clone());
    for refused in [&forged, &expired] {
        assert_eq!(check(&user, refused, true), VERIFIED);
        assert_eq!(check(&user, refused, true), KNOWN);
    }
    assert!(matches!(check(&user, &valid, true), (TokenCheck::Accepted(..), true)));
    // Clones share the keys, but not the rules.
    let of_others = JwtUser::new(verifier.clone().issuer("https://other.example"));
    assert_eq!(check(&of_others, &valid, true), VERIFIED);
    assert_eq!(check(&of_others, &valid, true), KNOWN);
    assert!(matches!(check(&user, &valid, true), (TokenCheck::Accepted(..), false)));
    verifier.replace_keys(verifier_keys());
    assert_eq!(check(&user, &forged, true), VERIFIED);
    assert!(matches!(check(&user, &valid, true), (TokenCheck::Accepted(..), true)));
}

#[test]
fn only_signature_checks_need_permission() {
    let user = JwtUser::new(verifier());
    let request = Request::new(());
    let none = user.check(&RequestHead::of(&request), "plan", || unreachable!("no token"));
    assert_eq!(none, TokenCheck::NoToken);
    let unknown = sign(&header(Alg::HS256, Some("nobody")), &claims(), SECRET);
    for cheap in ["junk", "a.b.c", &unknown] {
        assert_eq!(check(&user, cheap, true), (TokenCheck::Refused { verified: false }, false));
    }
    // A token that will be valid soon is not remembered.
    let early = token(&claims_with("nbf", json!(after(3_600))));
    for _ in 0..2 {
        assert_eq!(check(&user, &early, true), (TokenCheck::Refused { verified: true }, true));
    }
    let valid = token(&claims_with("plan", json!("pro")));
    assert_eq!(check(&user, &valid, false), (TokenCheck::NotVerified, true));
    let accepted = check(&user, &valid, true).0;
    assert!(matches!(accepted, TokenCheck::Accepted(_, Some(plan)) if plan == "pro"));
}

#[test]
fn invalid_token_falls_back_to_address() {
    let source = JwtUser::new(verifier()).or(ClientIp::peer());
    let expired = token(&claims_with("exp", json!(after(-3_600))));
    let kinds = [token(&claims()), expired, "junk".to_owned()].map(|token| {
        let peer: std::net::SocketAddr = "192.0.2.1:1".parse().unwrap();
        let request = Request::builder()
            .header("authorization", format!("Bearer {token}"))
            .extension(peer)
            .body(())
            .unwrap();
        source.subject(&RequestHead::of(&request)).unwrap().unwrap().kind
    });
    assert_eq!(kinds, [SubjectKind::User, SubjectKind::Ip, SubjectKind::Ip]);
    assert!(!source.can_be_missing());
}
