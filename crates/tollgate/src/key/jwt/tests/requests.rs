//! The position of a token in a request, and requests without a token.

use std::rc::Rc;

use http::Request;
use serde_json::json;

use super::{after, believes, claims, claims_with, subject, token, verifier, verifier_keys};
use crate::RequestHead;
use crate::key::{ClientIp, JwtKeys, JwtUser, KeySource, SubjectKind};

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
    assert_eq!(source.subject(&RequestHead::of(&twice)).unwrap(), None);
}

#[test]
fn a_token_past_eight_kilobytes_is_not_read() {
    let padded = |bytes: usize| token(&claims_with("pad", json!("x".repeat(bytes))));
    assert!(believes(&verifier(), &padded(5_000)));
    assert!(!believes(&verifier(), &padded(7_000)));
}

#[test]
fn a_token_is_verified_once_for_key_and_tier_until_the_keys_change() {
    let verifier = verifier();
    let token = token(&claims());
    let first = verifier.verify(&token).unwrap();
    let again = verifier.verify(&token).unwrap();
    assert!(Rc::ptr_eq(&first, &again), "the claims of the first time");
    verifier.replace_keys(verifier_keys());
    assert!(!Rc::ptr_eq(&first, &verifier.verify(&token).unwrap()), "the keys have changed");
    verifier.replace_keys(JwtKeys::none());
    assert!(verifier.verify(&token).is_none());
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
        source.subject(&RequestHead::of(&request)).unwrap().unwrap().kind
    });
    assert_eq!(kinds, [SubjectKind::User, SubjectKind::Ip, SubjectKind::Ip]);
    assert!(!source.can_be_missing());
}
