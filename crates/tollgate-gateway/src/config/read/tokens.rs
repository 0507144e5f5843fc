use std::time::Duration;

use super::super::files::NamedFile;
use super::super::tables::Jwt;
use super::super::typed::{Checked, Key, Mark, values};
use super::policy::no_effect;
use super::{MILLISECOND, MINUTE, within};
use crate::plan::{JwksPlan, JwtPlan, KeyOrigin, Secret};

pub(super) fn jwt(jwt: &Jwt, tiers: &[String]) -> Checked<JwtPlan> {
    if jwt.tier_claim.is_set() && tiers.is_empty() {
        no_effect(&jwt.tier_claim, "without `tiers`", "add `tiers`, or leave it out");
    }
    let keys = key_origin(jwt);
    let fetching: [&Mark; 3] = [&jwt.min_refetch, &jwt.max_age, &jwt.fetch_timeout];
    for key in fetching.into_iter().filter(|key| key.is_set()) {
        if !jwt.jwks_url.is_set() {
            no_effect(key, "without `jwksUrl`", "nothing is fetched");
        }
    }
    if jwt.algorithm.is_set() && !jwt.key_file.is_set() {
        let why = "a key set names the algorithm of each key, and `secret` is for HS256";
        no_effect(&jwt.algorithm, "without `keyFile`", why);
    }
    Ok(JwtPlan {
        keys: keys?,
        issuer: jwt.issuer.value()?,
        audiences: values(jwt.audience.items()?)?,
        tier_claim: jwt.tier_claim.value()?,
        max_refused: jwt.max_refused_per_minute.value()?,
    })
}

fn key_origin(jwt: &Jwt) -> Checked<KeyOrigin> {
    if let Some(secret) = jwt.secret.value()? {
        return Ok(KeyOrigin::Secret(Secret::new(secret)));
    }
    let (origin, key) = if let Some(file) = jwt.key_file.value()? {
        let Some(algorithm) = jwt.algorithm.value()? else {
            return Err(jwt.key_file.error(
                "the algorithm of the key is missing",
                "add `algorithm: RS256`, `ES256` or `EdDSA`",
            ));
        };
        (KeyOrigin::Pem { file: file.into(), algorithm }, &jwt.key_file)
    } else if let Some(file) = jwt.jwks_file.value()? {
        (KeyOrigin::JwksFile(file.into()), &jwt.jwks_file)
    } else if let Some(url) = jwt.jwks_url.value()? {
        return jwks(jwt, url).map(KeyOrigin::JwksUrl);
    } else {
        return Err(jwt.here.spot.error(
            "the source of the keys of tokens is missing",
            "add one of `jwksUrl`, `jwksFile`, `keyFile` and `secret`",
        ));
    };
    let spot = key.spot();
    spot.names(NamedFile::Keys { origin: origin.clone(), place: spot.place.clone() });
    Ok(origin)
}

fn jwks(jwt: &Jwt, url: String) -> Checked<JwksPlan> {
    let second = 1_000 * MILLISECOND;
    let span = |key: &Key<Duration>, bounds, cure| within(key, key.value()?, bounds, cure);
    let min_refetch = span(
        &jwt.min_refetch,
        [second, 60 * MINUTE],
        "made-up tokens cause a fetch this often, and new keys wait up to this time",
    );
    let max_age = span(
        &jwt.max_age,
        [second, 7 * 24 * 60 * MINUTE],
        "a key that the issuer has withdrawn is trusted up to this time",
    );
    let fetch_timeout =
        span(&jwt.fetch_timeout, [MILLISECOND, MINUTE], "the start waits for the first answer");
    let plan = JwksPlan {
        url,
        min_refetch: min_refetch?,
        max_age: max_age?,
        fetch_timeout: fetch_timeout?,
    };
    if plan.max_age < plan.min_refetch {
        let [age, refetch] = [plan.max_age, plan.min_refetch].map(humantime::format_duration);
        let is_set = jwt.max_age.is_set();
        return Err(if is_set { jwt.max_age.spot() } else { jwt.min_refetch.spot() }.error(
            format!("`maxAge` ({age}) is shorter than `minRefetch` ({refetch})"),
            "make it at least as long: the set is not asked for more often than `minRefetch` says",
        ));
    }
    Ok(plan)
}
