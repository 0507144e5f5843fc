//! Tests the claims that a valid token must have, and reading their values.

use http::Request;
use jsonwebtoken::Algorithm as Alg;
use serde_json::{Value, json};

use super::{accepts, after, claims, claims_with, header, sign, subject, token, verifier};
use crate::head::RequestHead;
use crate::key::jwt::Claims;
use crate::key::{JwtUser, KeySource};

#[test]
fn exp_must_be_future_number() {
    let verifier = verifier();
    for (exp, accepted) in [
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
        // Clocks differ, so 60 s are tolerated, but not more.
        (json!(after(-30)), true),
        (json!(after(-90)), false),
    ] {
        let token = token(&claims_with("exp", exp.clone()));
        assert_eq!(accepts(&verifier, &token), accepted, "{exp}");
    }
    let mut without = claims();
    without.as_object_mut().unwrap().remove("exp");
    assert!(!accepts(&verifier, &token(&without)));
}

#[test]
fn nbf_must_be_past_number() {
    for (nbf, accepted) in [
        (json!(after(-600)), true),
        (json!(after(30)), true),
        (json!(after(90)), false),
        (json!(after(-600).to_string()), false),
        (json!([]), false),
    ] {
        let token = token(&claims_with("nbf", nbf.clone()));
        assert_eq!(accepts(&verifier(), &token), accepted, "{nbf}");
    }
}

#[test]
fn sub_must_be_nonempty_string() {
    for sub in [json!(""), json!(7), json!(null), json!(["ann"]), json!({})] {
        let token = token(&claims_with("sub", sub.clone()));
        assert!(!accepts(&verifier(), &token), "{sub}");
    }
    let mut without = claims();
    without.as_object_mut().unwrap().remove("sub");
    assert!(!accepts(&verifier(), &token(&without)));
}

#[test]
fn issuer_must_match() {
    let set = verifier().issuer("https://login.example");
    for (iss, accepted) in [
        (json!("https://login.example"), true),
        (json!("https://login.example/"), false),
        (json!("https://evil.example"), false),
        (json!(["https://evil.example", "https://login.example"]), false),
        (json!(null), false),
        (json!(7), false),
    ] {
        let token = token(&claims_with("iss", iss.clone()));
        assert_eq!(accepts(&set, &token), accepted, "{iss}");
    }
}

#[test]
fn audience_must_match() {
    let set = verifier().audience("orders").audience("billing");
    for (aud, accepted) in [
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
        assert_eq!(accepts(&set, &token), accepted, "{aud}");
    }
    assert!(!accepts(&set, &token(&claims())));
    // A verifier without an audience rejects tokens that have an audience.
    assert!(!accepts(&verifier(), &token(&claims_with("aud", json!("mail")))));
}

#[test]
fn user_key_combines_issuer_and_subject() {
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
fn claims_are_read_only_from_valid_tokens() {
    let user = JwtUser::new(verifier());
    let read = |token: &str, claim: &str| {
        let request = Request::builder().header("authorization", format!("Bearer {token}"));
        let request = request.body(()).unwrap();
        let head = RequestHead::of(&request);
        let found = user.with_claim(&head, claim);
        // The user is the same with or without a claim.
        let subject = found.as_ref().map(|(subject, _)| subject.clone());
        assert_eq!(subject, user.subject(&head).unwrap());
        found.map(|(_, value)| value)
    };
    let pro = claims_with("plan", json!("pro"));
    assert_eq!(read(&token(&pro), "plan"), Some(Some("pro".to_owned())));
    assert_eq!(read(&token(&claims()), "plan"), Some(None));
    assert_eq!(read(&token(&claims_with("plan", json!(["pro"]))), "plan"), Some(None));
    let forged = sign(&header(Alg::HS256, Some("hs")), &pro, b"another secret of 32 bytes or so");
    assert_eq!(read(&forged, "plan"), None);
    let without_user = claims_with("sub", json!(""));
    assert_eq!(read(&token(&without_user), "plan"), None);
}

#[test]
fn duplicate_claim_invalidates_token() {
    // A map would silently use the last duplicate, but the application might read the first.
    let twice = format!(r#"{{"sub":"ann","sub":"bob","exp":{}}}"#, after(600));
    assert!(serde_json::from_str::<Claims>(&twice).is_err());
}
