//! Which tokens to believe, and where their keys come from.

use std::path::PathBuf;
use std::time::Duration;

use super::super::files::NamedFile;
use super::super::problem::Problems;
use super::super::view::View;
use super::policy::no_effect;
use crate::plan::{JwksPlan, JwtPlan, KeyOrigin, Secret};

pub(super) fn jwt(view: &View<'_>, tiers: &[String], problems: &mut Problems) -> Option<JwtPlan> {
    let tier_claim = view.text("tierClaim").map(str::to_owned);
    if tier_claim.is_some() && tiers.is_empty() {
        let why = "add `tiers`, or leave it out";
        no_effect(view, "tierClaim", "without `tiers`", why, problems);
    }
    let keys = key_origin(view, problems);
    for key in ["minRefetch", "maxAge", "fetchTimeout"] {
        if view.has(key) && !view.has("jwksUrl") {
            no_effect(view, key, "without `jwksUrl`", "nothing is fetched", problems);
        }
    }
    if view.has("algorithm") && !view.has("keyFile") {
        let why = "a key set names the algorithm of each key, and `secret` is for HS256";
        no_effect(view, "algorithm", "without `keyFile`", why, problems);
    }
    let audiences = view.items("audience");
    let audiences = audiences.iter().map(|item| item.text().map(str::to_owned));
    Some(JwtPlan {
        keys: keys?,
        issuer: view.text("issuer").map(str::to_owned),
        audiences: audiences.collect::<Option<_>>()?,
        tier_claim,
    })
}

fn key_origin(view: &View<'_>, problems: &mut Problems) -> Option<KeyOrigin> {
    let path = |key: &str| view.text(key).map(PathBuf::from);
    if view.has("secret") {
        return view.text("secret").map(|secret| KeyOrigin::Secret(Secret::new(secret)));
    }
    if view.has("keyFile") {
        let algorithm = match view.text("algorithm") {
            Some("RS256") => "RS256",
            Some("ES256") => "ES256",
            Some("EdDSA") => "EdDSA",
            Some(_) => return None,
            None => {
                problems.error(
                    view.place_of("keyFile"),
                    "nothing says what the key is for",
                    "add `algorithm: RS256`, `ES256` or `EdDSA`",
                );
                return None;
            }
        };
        let origin = KeyOrigin::Pem { file: path("keyFile")?, algorithm };
        let place = view.place_of("keyFile");
        problems.names(NamedFile::Keys { origin: origin.clone(), place });
        return Some(origin);
    }
    if view.has("jwksFile") {
        let origin = KeyOrigin::JwksFile(path("jwksFile")?);
        let place = view.place_of("jwksFile");
        problems.names(NamedFile::Keys { origin: origin.clone(), place });
        return Some(origin);
    }
    if view.has("jwksUrl") {
        return jwks(view, problems).map(KeyOrigin::JwksUrl);
    }
    problems.error(
        view.place(),
        "nothing says where the keys of tokens are",
        "add one of `jwksUrl`, `jwksFile`, `keyFile` and `secret`",
    );
    None
}

fn jwks(view: &View<'_>, problems: &mut Problems) -> Option<JwksPlan> {
    let shown = |span: Duration| humantime::format_duration(span).to_string();
    let mut span = |key: &str, shortest: Duration, longest: Duration, why: &str| {
        let span = view.span(key)?;
        if (shortest..=longest).contains(&span) {
            return Some(span);
        }
        let (given, shortest, longest) = (shown(span), shown(shortest), shown(longest));
        let what = format!("`{key}` is {given}, and {shortest} to {longest} is possible");
        problems.error(view.place_of(key), what, why);
        None
    };
    let second = Duration::from_secs(1);
    let min_refetch = span(
        "minRefetch",
        second,
        3_600 * second,
        "whoever sends made-up tokens makes the gateway ask so often, and new keys wait so long",
    );
    let max_age = span(
        "maxAge",
        second,
        7 * 86_400 * second,
        "a key that the issuer has withdrawn is believed for so long",
    );
    let fetch_timeout =
        span("fetchTimeout", second / 1_000, 60 * second, "the start waits for the first answer");
    let plan = JwksPlan {
        url: view.text("jwksUrl")?.to_owned(),
        min_refetch: min_refetch?,
        max_age: max_age?,
        fetch_timeout: fetch_timeout?,
    };
    if plan.max_age < plan.min_refetch {
        let (age, refetch) = (shown(plan.max_age), shown(plan.min_refetch));
        problems.error(
            view.place_of(if view.has("maxAge") { "maxAge" } else { "minRefetch" }),
            format!("`maxAge` ({age}) is shorter than `minRefetch` ({refetch})"),
            "make it at least as long: the set is not asked for more often than `minRefetch` says",
        );
        return None;
    }
    Some(plan)
}
