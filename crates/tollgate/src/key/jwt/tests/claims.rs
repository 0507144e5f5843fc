//! The claims that a valid token must have, and the values read from them.

use http::Request;
use jsonwebtoken::Algorithm as Alg;
use serde_json::{Value, json};

use super::{after, believes, claims, claims_with, header, sign, subject, token, verifier};
use crate::head::RequestHead;
use crate::key::jwt::Claims;
use crate::key::{JwtUser, KeySource};

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
    // Without a configured audience, a token with an audience is not accepted.
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
fn a_claim_is_read_of_a_token_that_is_believed_and_of_no_other() {
    let user = JwtUser::new(verifier());
    let said = |token: &str, claim: &str| {
        let request = Request::builder().header("authorization", format!("Bearer {token}"));
        let request = request.body(()).unwrap();
        let head = RequestHead::of(&request);
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
}
