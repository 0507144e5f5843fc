//! Commands apply the tenants' numbers.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// The keys are `ann`, `bob`, `eve` and `joe`.
const LIMITS: &str = "rateLimiter:
  target: http://localhost:3000
  identity: [apiKey, ip]
  strategy: sliding_window_log
  apiKeys:
    - {sha256: 49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1, tenant: acme}
    - {sha256: 81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9, tenant: globex}
    - {sha256: 85262adf74518bbb70c7cb94cd6159d91669e5a81edf1efebd543eadbda9fa2b, tenant: initech}
    - {sha256: 78675cc176081372c43abab3ea9fb70c74381eb02dc6e93fb6d44d161da6eeb3}
  client: {limit: 2, windowSeconds: 3600}
  tiers: {pro: {limit: 4, windowSeconds: 3600}}
  apis: [{identifier: export, path: /export, share: 1/2}]
  tenants: {file: tenants.yaml}
";

const TENANTS: &str = "tenants:
  acme: {limit: 6, windowSeconds: 3600}
  globex: {tier: pro}
  initech: unlimited
";

fn folder(limits: &str, tenants: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("limits.yaml"), limits).unwrap();
    fs::write(folder.path().join("tenants.yaml"), tenants).unwrap();
    folder
}

/// Returns a command's exit code, output and errors.
fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn check_finds_the_line_of_an_unfit_number() {
    let folder = folder(LIMITS, TENANTS);
    let (code, words, _) = run(folder.path(), &["check", "limits.yaml"]);
    assert_eq!(code, Some(0));
    let expected = "a client's own numbers come from tenants.yaml; an unknown client has the configured quota\n";
    assert!(words.contains(expected), "{words}");
    let broken = TENANTS.replace("6, windowSeconds: 3600", "6, windowSeconds: 3600, burst: 9");
    fs::write(folder.path().join("tenants.yaml"), broken).unwrap();
    for command in ["check", "serve"] {
        let (code, _, errors) = run(folder.path(), &[command, "limits.yaml"]);
        assert_eq!(code, Some(2), "{command}");
        for expected in [
            "tenants.yaml: line 2, `acme.burst`: a sliding_window_log has no burst",
            "limits.yaml:13:19",
            "remove it, or write `strategy: token_bucket`",
        ] {
            assert!(errors.contains(expected), "{command}: {errors}");
        }
    }
    assert_eq!(run(folder.path(), &["check", "--without-files", "limits.yaml"]).0, Some(0));
}

#[test]
fn explain_says_where_numbers_come_from() {
    let folder = folder(LIMITS, TENANTS);
    let explain = |key: &str, limits: &str| {
        fs::write(folder.path().join("limits.yaml"), limits).unwrap();
        let header = format!("X-API-Key: {key}");
        let arguments =
            ["explain", "limits.yaml", "--dry", "--path", "/export", "--header", &header];
        let (code, words, errors) = run(folder.path(), &arguments);
        assert_eq!(code, Some(0), "{errors}");
        words
    };
    for (key, expected) in [
        (
            "ann",
            &[
                "    the tenant `acme` has its own numbers, from tenants.yaml\n    of 6 units per 3600 s this",
                "    the tenant `acme` has its own numbers, from tenants.yaml\n    of 3 units per 3600 s this",
            ][..],
        ),
        ("bob", &["the tenant `globex` is in tier pro, from tenants.yaml\n    of 4 units"]),
        ("eve", &["the tenant `initech` is unlimited", "which does not apply to this tenant"]),
        (
            "joe",
            &[
                "the tenant `78675cc176081372c43abab3ea9fb70c74381eb02dc6e93fb6d44d161da6eeb3` is not in \
                 tenants.yaml, so these numbers apply\n    of 2 units",
            ],
        ),
        ("unknown", &["client: every request: 2 units per 3600 s"]),
    ] {
        let words = explain(key, LIMITS);
        for expected in expected {
            assert!(words.contains(expected), "{key}: {words}");
        }
        assert_eq!(words.contains("tenant `"), key != "unknown", "{words}");
    }
    let denies = LIMITS.replace("tenants.yaml}", "tenants.yaml, onUnknown: deny}");
    let words = explain("joe", &denies);
    assert!(words.ends_with("is answered with 403: its tenant is unknown\n"), "{words}");
    let http = LIMITS.replace("file: tenants.yaml", "http: 'https://billing.example.com/{tenant}'");
    let words = explain("ann", &http);
    let expected = "the tenant `acme` may have its own numbers in https://billing.example.com/{tenant}, \
                    which is not asked here\n    of 2 units";
    assert!(words.contains(expected), "{words}");
}

#[test]
fn test_applies_the_file() {
    let tests = "limits: limits.yaml
tests:
  - name: tenants
    requests:
      - {header: 'X-API-Key: ann', count: 9, expect: {allowed: 6, denied: 3}}
      - {header: 'X-API-Key: bob', count: 9, expect: {allowed: 4, denied: 5}}
      - {header: 'X-API-Key: eve', count: 9, expect: {allowed: 9}}
      - {header: 'X-API-Key: joe', count: 9, expect: {allowed: 2}}
      - {header: 'X-API-Key: ann', at: 2h, path: /export, count: 9, expect: {allowed: 3, policy: export}}
";
    let folder = folder(LIMITS, TENANTS);
    fs::write(folder.path().join("tests.yaml"), tests).unwrap();
    let (code, words, errors) = run(folder.path(), &["test", "tests.yaml"]);
    assert_eq!(code, Some(0), "{words}{errors}");
    let redis = LIMITS.replace("file: tenants.yaml", "redis: {url: 'redis://localhost'}");
    fs::write(folder.path().join("limits.yaml"), redis).unwrap();
    let (code, _, errors) = run(folder.path(), &["test", "tests.yaml"]);
    assert_eq!(code, Some(1));
    let expected =
        "note: `tenants`: `tollgate:tenants` in Redis is not asked, so the configured quotas apply";
    assert!(errors.contains(expected), "{errors}");
}

/// `worst` uses the largest number, and names its tenant.
#[test]
fn worst_uses_the_largest_number() {
    let folder = folder(LIMITS, TENANTS);
    let worst = |limits: &str, more: &[&str]| {
        fs::write(folder.path().join("limits.yaml"), limits).unwrap();
        let (code, words, errors) = run(folder.path(), &[&["worst", "limits.yaml"], more].concat());
        assert_eq!(code, Some(0), "{errors}");
        words
    };
    let acme = "    the tenant `acme` has the largest numbers in tenants.yaml\n";
    let unlimited =
        "    not counted: requests of unlimited tenants in tenants.yaml, such as `initech`\n";
    let words = worst(LIMITS, &[]);
    for (name, most, of_tenant) in [
        ("client", 6, true),
        ("client in tier pro", 4, false),
        ("export", 3, true),
        ("one client, all its requests", 6, true),
        ("one client in tier pro, all its requests", 4, false),
    ] {
        let start = format!("{name}: at most {most} in any 3600 s (proved)\n");
        let (_, after) = words.split_once(&format!("\n{start}")).unwrap_or_else(|| {
            words.split_once(&*start).unwrap_or_else(|| panic!("{start}{words}"))
        });
        let lines = after.split_inclusive('\n').take_while(|line| line.starts_with(' '));
        let lines: String = lines.collect();
        assert_eq!(lines.contains(acme), of_tenant, "{name}: {lines}");
        assert_eq!(lines.contains(unlimited), of_tenant, "{name}: {lines}");
    }
    // Without a larger tenant, the configured number is the largest.
    let words = worst(&LIMITS.replace("limit: 2", "limit: 9"), &[]);
    assert!(words.contains("client: at most 9 in any 3600 s (proved)\n"), "{words}");
    assert!(words.contains("    no tenant in tenants.yaml has larger numbers\n"), "{words}");
    // A tenant with a shorter window has the largest number in a long window.
    let shorter = TENANTS.replace("limit: 6, windowSeconds: 3600", "limit: 1, windowSeconds: 60");
    fs::write(folder.path().join("tenants.yaml"), shorter).unwrap();
    let words = worst(LIMITS, &["--in", "1h", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&words).unwrap();
    assert_eq!(report["worst"][0]["tenant"], "acme");
    assert_eq!(report["worst"][0]["at_most"], 60);
    fs::write(folder.path().join("tenants.yaml"), TENANTS).unwrap();
    // A test's bound includes all tenants.
    fs::write(folder.path().join("limits.yaml"), LIMITS).unwrap();
    for (most, code, told) in [(6, 0, ""), (5, 1, "client, tenant `acme`")] {
        let tests = format!(
            "limits: limits.yaml\ntests: [{{name: most, worst: {{policy: client, atMost: {most}}}}}]\n"
        );
        fs::write(folder.path().join("tests.yaml"), tests).unwrap();
        let (got, words, errors) = run(folder.path(), &["test", "tests.yaml"]);
        assert_eq!(got, Some(code), "{words}{errors}");
        assert!(words.contains(told), "{words}");
    }
    let redis = LIMITS.replace("file: tenants.yaml", "redis: {url: 'redis://localhost'}");
    let words = worst(&redis, &[]);
    let expected = "    with the configured numbers: `tollgate:tenants` in Redis is not asked, and its \
                    tenants may have larger ones\n";
    assert!(words.contains("client: at most 2 in any 3600 s (proved)\n"), "{words}");
    assert!(words.contains(expected), "{words}");
}

#[test]
fn replay_applies_the_file() {
    let folder = folder(LIMITS, TENANTS);
    let line = |key: &str, second: u32| {
        format!(
            "{{\"t\":\"2026-11-28T12:00:{second:02}Z\",\"ip\":\"192.0.2.1\",\"m\":\"GET\",\"u\":\"/\",\
             \"s\":200,\"k\":\"{key}\"}}\n"
        )
    };
    let keys = ["ann", "bob", "eve", "joe"];
    let log: String = (0..9).flat_map(|second| keys.map(|key| line(key, second))).collect();
    fs::write(folder.path().join("access.log"), log).unwrap();
    let format = "json:time=t,address=ip,method=m,target=u,status=s,header.x-api-key=k";
    let arguments = ["replay", "limits.yaml", "access.log", "--log", format, "--format", "json"];
    let (code, words, errors) = run(folder.path(), &arguments);
    assert_eq!(code, Some(0), "{errors}");
    let report: serde_json::Value = serde_json::from_str(&words).unwrap();
    // 3 of acme, 5 of globex, none of initech, and 7 of the key without a name.
    assert_eq!(report["policies"]["client"]["denied"], 15, "{report:#}");
    let assumptions = report["assumptions"].to_string();
    assert!(assumptions.contains("tenants in a file have their numbers of today"), "{assumptions}");
}

/// Each tenant's policies exist only while its numbers are compared.
#[test]
fn worst_holds_one_tenant_at_a_time() {
    use std::fmt::Write as _;

    let mut apis = String::from("apis:\n");
    for number in 2..22 {
        let _ =
            writeln!(apis, "    - {{identifier: a{number}, path: /{number}, share: 1/{number}}}");
    }
    let limits = LIMITS.replace("apis: [{identifier: export, path: /export, share: 1/2}]\n", &apis);
    let mut tenants = String::from("tenants:\n");
    for number in 0..3_000 {
        let _ =
            writeln!(tenants, "  t{number}: {{limit: {}, windowSeconds: 3600}}", 1_000 + number);
    }
    let folder = folder(&limits, &tenants);
    let mut command = Command::new("sh");
    // In KiB. All tenants' policies would need more than 150 MiB.
    command.args(["-c", "ulimit -d 100000 && exec \"$0\" worst limits.yaml"]);
    let command = command.arg(env!("CARGO_BIN_EXE_tollgate")).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.contains("client: at most 3999 in any 3600 s (proved)\n"), "{words}");
}
