use crate::code;
use crate::file::tables::Jwt;
use crate::files;
use crate::plan::{JwksPlan, JwtPlan, KeyOrigin};
use crate::yaml::problem::Checked;
use crate::yaml::typed::values;

pub(super) fn jwt(jwt: &Jwt, tiers: &[String]) -> Checked<JwtPlan> {
    if tiers.is_empty() {
        jwt.tier_claim.no_effect("without `tiers`", "add `tiers`, or leave it out");
    }
    let keys = key_origin(jwt);
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
        return Ok(KeyOrigin::Secret(secret));
    }
    let (origin, key) = if let Some(file) = jwt.key_file.value()? {
        let Some(algorithm) = jwt.algorithm.value()? else {
            return Err(jwt.key_file.error(
                code::TOKEN_KEYS_MISSING,
                "the key's algorithm is missing",
                "add `algorithm: RS256`, `ES256` or `EdDSA`",
            ));
        };
        (KeyOrigin::Pem { file, algorithm }, &jwt.key_file)
    } else if let Some(file) = jwt.jwks_file.value()? {
        (KeyOrigin::JwksFile(file), &jwt.jwks_file)
    } else if let Some(url) = jwt.jwks_url.value()? {
        return jwks(jwt, url).map(KeyOrigin::JwksUrl);
    } else {
        return Err(jwt.info.location.error(
            code::TOKEN_KEYS_MISSING,
            "the source of token keys is missing",
            "add one of `jwksUrl`, `jwksFile`, `keyFile` and `secret`",
        ));
    };
    let checked = origin.clone();
    key.location().check_with(move || files::keys(&checked).err());
    Ok(origin)
}

fn jwks(jwt: &Jwt, url: String) -> Checked<JwksPlan> {
    let plan = JwksPlan {
        url,
        min_refetch: jwt.min_refetch.value()?,
        max_age: jwt.max_age.value()?,
        fetch_timeout: jwt.fetch_timeout.value()?,
    };
    if plan.max_age < plan.min_refetch {
        let [age, refetch] = [plan.max_age, plan.min_refetch].map(humantime::format_duration);
        let is_set = jwt.max_age.is_set();
        return Err(if is_set { jwt.max_age.location() } else { jwt.min_refetch.location() }
            .error(
                code::INVALID_VALUE,
                format!("`maxAge` ({age}) is shorter than `minRefetch` ({refetch})"),
                "make it at least as long: the set is fetched at most once per `minRefetch`",
            ));
    }
    Ok(plan)
}
