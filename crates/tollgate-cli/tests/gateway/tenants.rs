//! Tenants with their own numbers.

mod sources;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::interval;
use tokio_util::task::AbortOnDropHandle;
use tollgate_test_servers::{Redis, until_async};

use crate::support::{Answer, Client, Gateway, PATIENCE, Upstream};

/// The keys `ann`, `bob`, `eve` and `joe`. The first three have names, and the first two a team.
const KEYS: &str = "\
identity: [apiKey, ip]
apiKeys:
  - {sha256: 49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1, tenant: acme, levels: {team: red}}
  - {sha256: 81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9, tenant: globex, levels: {team: red}}
  - {sha256: 85262adf74518bbb70c7cb94cd6159d91669e5a81edf1efebd543eadbda9fa2b, tenant: initech}
  - {sha256: 78675cc176081372c43abab3ea9fb70c74381eb02dc6e93fb6d44d161da6eeb3}
";

const CLIENT: &str = "client: {limit: 5, window: 20days}\n";

/// A file's change applies within this time.
const SOON: Duration = Duration::from_secs(2);

/// A configuration with the keys, their teams and further lines.
fn lines(upstream: &Upstream, more: &str) -> String {
    format!("{}{KEYS}levels: {{team: apiKey}}\n{more}", upstream.target())
}

fn limited(units: u32) -> String {
    format!("tenants: {{acme: {{limit: {units}, window: 20days}}}}\n")
}

fn folder(tenants: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    write(folder.path(), tenants);
    folder
}

fn write(folder: &Path, tenants: &str) {
    fs::write(folder.join("new.yaml"), tenants).unwrap();
    fs::rename(folder.join("new.yaml"), folder.join("tenants.yaml")).unwrap();
}

async fn get(client: &Client, key: &str, path: &str) -> Answer {
    client.send("GET", path, &[("x-api-key", key)], "").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_file_applies_alone() {
    let upstream = Upstream::new().await;
    let lines = lines(&upstream, &format!("{CLIENT}tenants: {{file: tenants.yaml}}\n"));
    let gateway = Gateway::start_in(folder(&limited(10)), &lines);
    let client = Client::new(gateway.address);
    let until_limit = async |limit: &str| {
        until_async(&format!("the limit is {limit}"), SOON, async || {
            let answer = get(&client, "ann", "/").await;
            (answer.header("x-ratelimit-limit") == limit).then_some(())
        })
        .await;
    };
    until_limit("10").await;
    write(gateway.file("").as_path(), &limited(1_000));
    until_limit("1000").await;
    // A broken file changes nothing, and is reported once.
    let broken = "tenants: {acme: {limit: 0, window: 20days}}\n";
    write(gateway.file("").as_path(), broken);
    gateway.until_logged("the tenants' numbers were not read and the earlier ones stay in use");
    // The log names the line, but not the tenant.
    assert!(gateway.log().contains("tenants.yaml: line 1: "), "{}", gateway.log());
    assert!(!gateway.log().contains("acme"), "{}", gateway.log());
    write(gateway.file("").as_path(), &format!("  \n{broken}"));
    until_limit("1000").await;
    let shown = gateway.until_config(|config| !config["tenants"][0]["lastError"].is_null()).await;
    assert_eq!(shown["tenants"][0]["tenants"], 1);
    let error = shown["tenants"][0]["lastError"].as_str().unwrap();
    assert!(error.contains("line ") && error.contains("the minimum is 1"), "{error}");
    // So does a missing file.
    fs::remove_file(gateway.file("tenants.yaml")).unwrap();
    gateway.until_logged("it cannot be read");
    until_limit("1000").await;
    write(gateway.file("").as_path(), "tenants: {}\n");
    until_limit("5").await;
    assert_eq!(gateway.until_config(|_| true).await["version"], 1, "nothing was reloaded");
}

/// While the numbers alternate, no more requests pass than the larger number allows.
#[tokio::test(flavor = "multi_thread")]
async fn changes_never_exceed_the_larger_number() {
    let upstream = Upstream::new().await;
    let more = format!("strategy: sliding_window_log\n{CLIENT}tenants: {{file: tenants.yaml}}\n");
    let gateway = Gateway::start_in(folder(&limited(20)), &lines(&upstream, &more));
    let mut passed = 0;
    let clients = [Client::new(gateway.address), Client::http2(gateway.address)];
    for limit in [40, 20, 40, 20, 40] {
        write(gateway.file("").as_path(), &limited(limit));
        until_async("the number applies", SOON, async || {
            for client in &clients {
                passed += u32::from(get(client, "ann", "/").await.status == 200);
            }
            let answer = get(&clients[0], "ann", "/").await;
            passed += u32::from(answer.status == 200);
            (answer.header("x-ratelimit-limit") == limit.to_string()).then_some(())
        })
        .await;
        assert!(passed <= 40, "{passed}");
    }
    while get(&clients[0], "ann", "/").await.status == 200 {
        passed += 1;
    }
    assert_eq!(passed, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_tenants_can_be_denied() {
    let upstream = Upstream::new().await;
    let on_unknown = |does: &str| {
        let tenants = format!("tenants: {{file: tenants.yaml, onUnknown: {does}}}\n");
        lines(&upstream, &format!("{CLIENT}{tenants}"))
    };
    let gateway = Gateway::start_in(folder(&limited(70)), &on_unknown("deny"));
    let client = Client::new(gateway.address);
    for (key, status) in [("ann", 200), ("bob", 403), ("joe", 403), ("no key", 200)] {
        assert_eq!(get(&client, key, "/").await.status, status, "{key}");
    }
    // A new tenant is known as soon as it is in the file.
    write(gateway.file("").as_path(), "tenants: {globex: unlimited}\n");
    until_async("the tenant is known", SOON, async || {
        (get(&client, "bob", "/").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(get(&client, "ann", "/").await.status, 403);
    gateway.rewrite(&on_unknown("default"));
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(get(&client, "ann", "/").await.header("x-ratelimit-limit"), "5");
}

/// A reload with another algorithm and other tiers applies to the file, too.
#[tokio::test(flavor = "multi_thread")]
async fn reload_checks_the_numbers_again() {
    let upstream = Upstream::new().await;
    let lines = |more: &str| lines(&upstream, &format!("{more}tenants: {{file: tenants.yaml}}\n"));
    let bucket = "strategy: token_bucket\nclient: {limit: 5, window: 20days}\n";
    let tenants = "tenants: {acme: {limit: 70, window: 20days, burst: 9}, globex: {tier: pro}}\n";
    let tiers = "tiers: {free: {limit: 6, window: 20days}, pro: {limit: 7, window: 20days}}\n";
    let gateway = Gateway::start_in(folder(tenants), &lines(&format!("{bucket}{tiers}")));
    let client = Client::new(gateway.address);
    assert_eq!(get(&client, "bob", "/").await.header("x-ratelimit-limit"), "7");
    // The number of the tier changes.
    let fewer = "tiers: {pro: {limit: 8, window: 20days}}\n";
    gateway.rewrite(&lines(&format!("{bucket}{fewer}")));
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(get(&client, "bob", "/").await.header("x-ratelimit-limit"), "8");
    // A window has no burst.
    gateway.rewrite(&lines(&format!("{CLIENT}{fewer}")));
    let config = gateway.until_config(|config| config["failedReloads"] == 1).await;
    let message = config["lastError"]["message"].as_str().unwrap();
    assert!(message.contains("line 1: a sliding_window_counter has no burst"), "{message}");
    assert_eq!(get(&client, "ann", "/").await.header("x-ratelimit-limit"), "9");
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_thousand_tenants_change_in_time() {
    // A debug build is ten times slower, and shares the machine with other tests. docs/benchmarks has
    // the time of an optimised build.
    let (count, soon) = if cfg!(debug_assertions) { (10_000, PATIENCE) } else { (100_000, SOON) };
    let of = |add: u64| {
        let mut text = String::from("tenants:\n  acme: {limit: 1, window: 20days}\n");
        for number in 0..count {
            let _ =
                writeln!(text, "  tenant-{number}: {{limit: {}, window: 20days}}", number + add);
        }
        text
    };
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}identity: {{key: header, name: X-Tenant, trustedProxies: [loopback]}}\n{CLIENT}\
         tenants: {{file: tenants.yaml}}\n",
        upstream.target()
    );
    let gateway = Gateway::start_in(folder(&of(10)), &lines);
    let client = Client::new(gateway.address);
    let last = format!("tenant-{}", count - 1);
    let limit = async |name: &str| {
        let answer = client.send("GET", "/", &[("x-tenant", name)], "").await.unwrap();
        answer.header("x-ratelimit-limit").to_owned()
    };
    assert_eq!(limit("tenant-7").await, "17");
    assert_eq!(limit(&last).await, (count + 9).to_string());
    write(gateway.file("").as_path(), &of(20));
    until_async("the last number applies", soon, async || {
        (limit(&last).await == (count + 19).to_string()).then_some(())
    })
    .await;
    assert_eq!(limit("tenant-7").await, "27");
    assert_eq!(limit("nobody").await, "5");
}

/// Operators know clients by these names.
#[tokio::test(flavor = "multi_thread")]
async fn clients_and_groups_have_names() {
    let upstream = Upstream::new().await;
    let long = "an-organisation-with-a-name-that-is-hashed-in-keys";
    let tenants = format!(
        "tenants: {{127.0.0.1: {{limit: 61, window: 20days}}, acme: {{limit: 62, window: 20days}}, \
         '{long}': {{limit: 63, window: 20days}}, 'apiKey:acme': {{limit: 64, window: 20days}}, \
         'value:acme': {{limit: 65, window: 20days}}, 'ip:127.0.0.1': {{limit: 66, window: 20days}}}}\n"
    );
    let keys = KEYS.replace("identity: [apiKey, ip]\n", "").replace(", levels: {team: red}", "");
    let header = "{key: header, name: X-Tenant, trustedProxies: [loopback]}";
    let query = "{key: query, name: tenant}";
    let tenant = |name| [("x-tenant", name)];
    for (identity, path, headers, expected) in [
        ("ip", "/", &[][..], "61"),
        (header, "/", &tenant("acme"), "62"),
        (header, "/", &tenant(long), "63"),
        (query, "/?a=1&tenant=acme", &[], "62"),
        (query, "/?tenant=apiKey:acme", &[], "5"),
        (&format!("[{header}, apiKey, ip]"), "/", &tenant("apiKey:acme"), "5"),
        (&format!("[{header}, apiKey, ip]"), "/", &[("x-api-key", "ann")], "64"),
        (&format!("[apiKey, {query}, ip]"), "/?tenant=acme", &[], "65"),
        (&format!("[apiKey, {query}, ip]"), "/", &[("x-api-key", "ann")], "62"),
        (&format!("[apiKey, {query}, ip]"), "/", &[], "5"),
    ] {
        let keys = if identity.contains("apiKey") { &*keys } else { "" };
        let lines = format!(
            "{}identity: {identity}\n{keys}{CLIENT}tenants: {{file: tenants.yaml}}\n",
            upstream.target()
        );
        let gateway = Gateway::start_in(folder(&tenants), &lines);
        let answer = Client::new(gateway.address).send("GET", path, headers, "").await.unwrap();
        assert_eq!(answer.header("x-ratelimit-limit"), expected, "{identity} {path} {headers:?}");
    }
    let lines = format!(
        "{}levels: {{organisation: {{key: header, name: X-Tenant, trustedProxies: [loopback]}}}}\n\
         client: {{limit: 500, window: 20days, levels: {{organisation: {{limit: 5, window: 20days}}}}}}\n\
         tenants: {{of: organisation, file: tenants.yaml}}\n",
        upstream.target()
    );
    let gateway = Gateway::start_in(folder(&tenants), &lines);
    let client = Client::new(gateway.address);
    for (name, expected) in [("acme", "62"), (long, "63"), ("other", "5")] {
        let answer = client.send("GET", "/", &tenant(name), "").await.unwrap();
        assert_eq!(answer.header("x-ratelimit-limit"), expected, "{name}");
    }
}

/// The files in docs/how-to/tenants.md work as described.
#[tokio::test(flavor = "multi_thread")]
async fn documented_files_work() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/tenants.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("## Each tenant's numbers in the gateway").nth(1).unwrap();
    let mut blocks = section.split("```").skip(1).step_by(2);
    let mut block = |kind: &str| blocks.next().unwrap().strip_prefix(kind).unwrap().to_owned();
    let (limits, tenants, organisations) = (block("yaml\n"), block("yml\n"), block("yml\n"));
    assert!(limits.lines().count() <= 25);
    let upstream = Upstream::new().await;
    let folder = folder(&tenants);
    fs::write(folder.path().join("organisations.yaml"), organisations).unwrap();
    let target = upstream.target();
    let lines = limits.strip_prefix("rateLimiter:\n").unwrap();
    let lines = lines.replace("  target: http://localhost:3000\n", &format!("  {target}"));
    let lines: String =
        lines.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap())).collect();
    let gateway = Gateway::start_in(folder, &lines);
    let answer = get(&Client::new(gateway.address), "hello", "/export/all").await;
    let policies = answer.header("ratelimit-policy");
    assert_eq!(
        policies,
        r#""client";q=500;w=6, "client/organisation";q=20000;w=60, "export";q=50;w=6"#
    );
}
