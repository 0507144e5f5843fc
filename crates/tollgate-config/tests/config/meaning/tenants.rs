//! Tenants with their own numbers, and their files.

use std::fs;

use tollgate_config::files;
use tollgate_config::plan::{Plan, TenantQuota, TenantShare, Whose};

use crate::support::{plan, read_text};

const FILE: &str = "rateLimiter:
  target: http://localhost:3000
  identity: [apiKey, ip]
  strategy: token_bucket
  apiKeys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae, levels: {team: red}}]
  levels: {team: apiKey}
  costs: {other: 1, paths: [{path: /large, cost: 20}]}
  client: {limit: 60, windowSeconds: 60, also: [{limit: 1000, window: 1h}], levels: {team: {limit: 500, windowSeconds: 60}}}
  tiers: {pro: {limit: 600, windowSeconds: 60}}
  apis:
    - {identifier: export, path: /export/*, share: 1/10, strategy: sliding_window_log, costs: {other: 1}}
    - {identifier: shared, path: /shared, share: 1/10, per: everyone}
    - {identifier: own, path: /own, limit: 60, windowSeconds: 60, levels: {team: {limit: 60, windowSeconds: 60}}}
    - {identifier: both, path: /both, share: 1/10, per: [client, ip]}
    - {identifier: team, path: /team, share: 1/10, per: team}
  tenants: [{file: tenants.yaml}, {of: team, file: teams.yaml}]
";

#[test]
fn client_levels_and_shares_have_tenants() {
    let plan = plan(FILE);
    let limits = &plan.routes[0].limits;
    let client = limits.client.as_ref().unwrap();
    let of = |tenants, share| Some(TenantShare { tenants, share });
    assert_eq!(client.tenants, of(0, None));
    assert_eq!(client.levels[0].tenants, of(1, None));
    let apis: Vec<_> = limits.apis.iter().map(|api| api.limit.tenants).collect();
    assert_eq!(apis, [of(0, Some((1, 10))), None, None, None, None], "only with `per: client`");
    assert_eq!(limits.apis[2].limit.levels[0].tenants, None, "it has its own numbers");
    assert_eq!((plan.tenants[0].of, plan.tenants[1].of), (Whose::Client, Whose::Group(0)));
    // Changes of these files reload nothing.
    assert!(plan.files.is_empty(), "{:?}", plan.files);
}

/// Returns the problems in a tenants file. In logs, they name no tenant.
fn problems(plan: &Plan, number: usize, tenants: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenants.yaml");
    fs::write(&file, tenants).unwrap();
    let read = files::tenants(&file, &plan.tenants[number].rules);
    let logged = files::tenants_logged(&file, &plan.tenants[number].rules);
    assert_eq!(logged.is_err(), read.is_err());
    // The cure for an empty file is an example.
    let logged = logged.err().unwrap_or_default().replace("write `tenants: {acme:", "");
    assert!(!logged.contains("acme"), "{logged}");
    let prefix = format!("{}: ", file.display());
    let errors = read.err().into_iter().flatten();
    errors.map(|it| format!("{}; {}", it.what, it.cure).replace(&prefix, "")).collect()
}

/// Each row contains a tenant and its expected problem.
const TENANTS: &str = r#"
acme: {limit: 5000, windowSeconds: 60, burst: 500} | fits
acme: {limit: 5000, window: 1h, also: [{limit: 10000, window: 1h}]} | fits
acme: {tier: pro} | fits
acme: unlimited | fits
"https://issuer.example ann": {limit: 20, windowSeconds: 1} | fits
${NAME}: {limit: 20, windowSeconds: 1} | fits
acme: {tier: gold} | there is no tier `gold`; the tiers are pro; add it, or name one of them
acme: {tier: pro, burst: 5} | `tier` and `burst` exclude each other; keep one of the two
acme: {limit: 5000} | the limit has no window; add `windowSeconds: 60`, or `window: 500ms`
acme: {windowSeconds: 60} | `limit` is missing; add `limit: …`, units per window, or `tier: …`
acme: {limit: 0, windowSeconds: 60} | `0` is not a whole number from 1 to 1000000000000; the minimum is 1
acme: {limits: 5000, windowSeconds: 60} | there is no key `limits` here; did you mean `limit`?
acme: 5000 | `5000` is not `unlimited`
acme: {limit: 50, windowSeconds: 60, burst: 19} | policy `client` would grant at most 19 units at the same time, but a request costs 20; raise `burst`, or lower the request's cost with `costs`
acme: {limit: 50, calendar: month} | a token_bucket needs windows of equal length, which days and months do not have; write `strategy: fixed_window_counter`, or a duration such as `window: 24h`
acme: {limit: 50, windowSeconds: 60, also: [{limit: 99, window: 1h}, {limit: 99, window: 2h}]} | 3 quotas at the same time are more than `client` has; add as many quotas to `client.also`, for tenants without their own numbers
"#;

#[test]
fn tenants_fit_the_quotas_that_they_replace() {
    let plan = plan(FILE);
    for row in TENANTS.trim().lines() {
        let (line, expected) = row.split_once(" | ").unwrap();
        let found = problems(&plan, 0, &format!("# Comment.\ntenants:\n  {line}\n")).join("\n");
        let fits = found.is_empty() && expected == "fits";
        assert!(fits || found.starts_with("line 3") && found.contains(expected), "{row}: {found}");
    }
    let of_level = problems(&plan, 1, "tenants: {red: {tier: pro}}");
    assert_eq!(
        of_level,
        ["line 1, `red.tier`: only clients have tiers; write `limit` and `windowSeconds`"]
    );
}

#[test]
fn other_files_are_not_tenants() {
    let plan = plan(FILE);
    for (text, expected) in [
        (
            "",
            "line 1: the file is empty; write `tenants: {acme: {limit: 5000, windowSeconds: 60}}`",
        ),
        ("acme: {limit: 5, windowSeconds: 60}", "line 1: there is no key `acme` here"),
        ("tenants: [acme]", "line 1: expected a section"),
        (
            "tenants:\n  acme: unlimited\n  acme: unlimited",
            "line 3, `acme`: `acme` is defined twice",
        ),
        ("tenants:\n\tacme: unlimited", "line 2: this is not valid YAML"),
    ] {
        let found = problems(&plan, 0, text);
        assert!(!found.is_empty() && found[0].starts_with(expected), "{text}: {found:?}");
    }
    assert_eq!(problems(&plan, 0, "tenants: {}"), Vec::<String>::new());
    let many: String = (0..99).map(|number| format!("  t{number}: {{limit: 5}}\n")).collect();
    let found = problems(&plan, 0, &format!("tenants:\n{many}"));
    assert_eq!(found.len(), 10);
    assert!(found[9].contains("(and at least 89 more problems)"), "{found:?}");
}

#[test]
fn one_tenant_is_json() {
    let plan = plan(FILE);
    let rules = &plan.tenants[0].rules;
    let read = |text: &str| files::tenant(text, rules);
    let limit = |quota: TenantQuota| match quota {
        TenantQuota::Quotas(quotas) => {
            quotas.iter().map(|it| (it.limit(), it.burst_units())).collect()
        }
        other => panic!("{other:?}"),
    };
    let both: Vec<_> = read(
        r#"{"limit": 50, "windowSeconds": 60, "burst": 500, "also": [{"limit": 90, "window": "1h"}]}"#,
    )
    .map(limit)
    .unwrap();
    assert_eq!(both, [(50, Some(500)), (90, None)]);
    assert_eq!(read(r#"{"tier":"pro"}"#), Ok(TenantQuota::Tier(0)));
    assert_eq!(read(r#""unlimited""#), Ok(TenantQuota::Unlimited));
    for (text, expected) in [
        ("", "it is empty"),
        ("<html>", "`<html>` is not `unlimited`"),
        (r#"{"limit": "50", "windowSeconds": 60}"#, "`50` is not a whole number"),
        (r#"{"limit": 50}"#, "the limit has no window"),
        (r#"{"limit": 50, "windowSeconds": 60, "plan": "gold"}"#, "there is no key `plan` here"),
        (r#"{"limit": 50, "#, "this is not valid YAML"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

/// A file with this many tenants is read in time for its change to apply within two seconds.
#[test]
fn large_file_is_read() {
    let count = if std::env::var_os("TOLLGATE_HEAVY").is_some_and(|it| it == "1") {
        400_000
    } else {
        20_000
    };
    let line =
        |number| format!("  tenant-{number}: {{limit: {}, windowSeconds: 60}}\n", 100 + number);
    let text = format!("tenants:\n{}", (0..count).map(line).collect::<String>());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenants.yaml");
    fs::write(&file, text).unwrap();
    let table = files::tenants(&file, &plan(FILE).tenants[0].rules).unwrap();
    assert_eq!(table.len(), count);
    assert!(matches!(&table["tenant-7"], TenantQuota::Quotas(quotas) if quotas[0].limit() == 107));
}

#[test]
fn names_of_key_owners_are_read() {
    let text = FILE.replace("levels: {team: red}}]", "tenant: acme, levels: {team: red}}]");
    let plan = plan(&text);
    let tollgate_config::plan::IdentitySource::ApiKey(keys) = &plan.identity[0] else {
        panic!("{:?}", plan.identity)
    };
    assert_eq!(keys.keys[0].tenant.as_deref(), Some("acme"));
    let report = read_text("test", &text.replace("tenant: acme", "tenant: ''")).report;
    assert!(report.to_string().contains("is not a name of 1 to 512 bytes"), "{report}");
}
