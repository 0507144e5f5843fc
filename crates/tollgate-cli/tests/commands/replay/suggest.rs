//! The `tollgate suggest` command.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{Folder, counts, line};

#[test]
fn suggest_names_a_header_that_no_line_has() {
    let folder = Folder::new("");
    let line = |header: &str| {
        format!("{{\"t\":1,\"ip\":\"10.0.0.1\",\"m\":\"GET\",\"u\":\"/\"{header}}}\n")
    };
    folder.write("without.log", &line(""));
    folder.write("with.log", &(line("") + &line(r#","h":"203.0.113.7""#)));
    let suggest = |log: &str, fields: &str| {
        let format = format!("--log=json:time=t,address=ip,method=m,target=u{fields}");
        let options = ["--trusted-proxies=10.0.0.0/8", "--header=X-Client"];
        let output = folder.tollgate(&[&["suggest", log, &format], &options[..]].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, told) = suggest("without.log", "");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("no line has the header `X-Client`"), "{told}");
    assert_eq!(suggest("with.log", ",header.x-client=h").0, Some(0));
}

#[test]
fn html_needs_the_log_twice() {
    let folder = Folder::new(&line(0, "203.0.113.7", "/"));
    let log = fs::File::open(folder.path("access.log")).unwrap();
    let mut suggest = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    suggest.args(["suggest", "-", "--html", "a.html"]).current_dir(folder.path(".")).stdin(log);
    let output = suggest.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("`--html` needs the log as a file"), "{told}");
}

#[test]
fn suggested_file_denies_few_clients() {
    let mut log = String::new();
    for client in 1..=200_u64 {
        for request in 0..client.min(20) {
            let path = if request % 2 == 0 { "/".to_owned() } else { format!("/item/{request}") };
            log.push_str(&line(request * 3, &format!("203.0.113.{client}"), &path));
        }
    }
    // Logs must be in chronological order.
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_by_key(|line| line[line.find('[').unwrap()..].to_owned());
    let folder = Folder::new(&(lines.join("\n") + "\n"));
    for shape in ["token-bucket", "sliding-window-log"] {
        let options = ["--algorithm", shape, "--level", "99", "--html", "suggested.html"];
        let arguments = [&["suggest", "access.log"], &options[..]].concat();
        let output = folder.tollgate(&arguments);
        let file = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{file}");
        folder.write("suggested.yaml", &file);
        let check = folder.tollgate(&["check", "--strict", "suggested.yaml"]);
        assert!(check.status.success(), "{check:?}\n{file}");
        let basis = "# from 2026-11-22T00:00:00Z to 2026-11-22T00:00:57Z: 1 day, 200 clients.";
        let judged = ". The limits are based on the entire log.";
        for part in [basis, "value: '^/item/[^/]+$'", "# 99.99 % of clients: ", judged] {
            assert!(file.contains(part), "{part}\n{file}");
        }
        let replayed =
            folder.tollgate(&["replay", "suggested.yaml", "access.log", "--format", "json"]);
        let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        // The page is that of a replay with the suggested file.
        let page = fs::read_to_string(folder.path("suggested.html")).unwrap();
        let replay = ["replay", "suggested.yaml", "access.log", "--html", "replayed.html"];
        assert!(folder.tollgate(&replay).status.success());
        assert_eq!(page, fs::read_to_string(folder.path("replayed.html")).unwrap());
        // Together, the three limits may deny at most 1 % of the clients.
        assert!(report["clients_denied"].as_u64().unwrap() <= 2, "{report}");
        assert_eq!(counts(&report["policies"]["global"])[3], 0);
    }
}

/// The comment in a suggested file that states a route's requests and clients.
fn basis<'a>(file: &'a str, route: &str) -> &'a str {
    let start = format!("    # {route}: ");
    let basis = file.lines().find_map(|line| line.strip_prefix(&*start));
    basis.unwrap_or_else(|| panic!("{file}"))
}

#[test]
fn route_limits_fit_their_requests() {
    let mut log = String::new();
    for client in 1..=50_u64 {
        let address = format!("203.0.113.{client}");
        log += &line(client, &address, &format!("/item/{client}"));
        log += &line(client, &address, "/item/unknown").replace(" 200 ", " 404 ");
        log += &line(client, &address, "/item/7").replace("GET", "OPTIONS");
        log += &line(client, &address, "http://shop.example/item/8");
        log += &line(client, &address, "/a/../item//%39?x");
        log += &line(client, &address, "/item/");
        log += &line(client, &address, "/item/7").replace("GET", "get it");
    }
    for scan in 0..100_u64 {
        log += &line(60, "198.51.100.1", &format!("/scan-{scan}.php")).replace(" 200 ", " 404 ");
    }
    let folder = Folder::new(&log);
    let output = folder.tollgate(&["suggest", "access.log", "-o", "limits.yaml", "--level=99.99"]);
    assert!(output.status.success(), "{output:?}");
    let file = fs::read_to_string(folder.0.path().join("limits.yaml")).unwrap();
    assert!(
        !file.contains("/scan") && !file.contains("path: {expression: regex, value: '^/[^/]+$'}")
    );
    let report = folder.json(&[]);
    let denied = report["denied_clients"].as_array().unwrap();
    assert!(denied.iter().all(|denied| denied["client"] == "198.51.100.1"), "{file}");
    for (route, policy) in [("/item/", "item-1"), ("/item/{id}", "item-2")] {
        let requests = report["policies"][policy]["requests"].as_u64().unwrap();
        assert!(requests >= 50, "{file}");
        assert_eq!(basis(&file, route), format!("{requests} requests of 50 clients."), "{file}");
    }
    assert!(file.contains("# - 150 requests failed."), "{file}");
    for part in [
        "# Confidence: low\n",
        "based on 50 clients. Of fewer than 10000, 99.99 % includes even an attacker.",
        "# - 1 of 1 scanner: most of their paths do not exist.",
    ] {
        assert!(file.contains(part), "{part}\n{file}");
    }
}

#[test]
fn suggest_identifies_clients_like_replay() {
    let folder = Folder::new("");
    let line = |second: u64, user: &str, client: &str| json!({ "t": second, "ip": "10.0.0.1", "m": "GET", "u": "/", "s": 200, "who": user, "xff": client });
    let log: String = (0..100)
        .map(|n| {
            let (user, client) = (format!("user-{}", n % 20), format!("203.0.113.{}", n % 50));
            format!("{}\n", line(n, &user, &client))
        })
        .collect();
    folder.write("access.log", &log);
    let format = "--log=json:time=t,address=ip,method=m,target=u,status=s,user=who,\
                  header.x-forwarded-for=xff";
    for (options, clients, parts) in [
        (&[][..], 1, &["100 requests with X-Forwarded-For", "Users: 100 requests have a user"][..]),
        (&["--trusted-proxies=10.0.0.0/8"], 50, &["  trustedProxies: ['10.0.0.0/8']"]),
        (
            &["--trusted-proxies=10.0.0.0/8", "--header=X-Forwarded-For", "--users"],
            20,
            &["  identity: [user, {key: ip, header: 'X-Forwarded-For'}]", "${JWT_SECRET}"],
        ),
    ] {
        let mut arguments = vec!["suggest", "access.log", format];
        arguments.extend(options);
        let output = folder.tollgate(&arguments);
        let file = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{:?}", String::from_utf8(output.stderr));
        let basis = format!("Z: 1 day, {clients} client");
        let replayed = "# - client: 0 of 100 requests";
        for part in [&*basis, replayed].into_iter().chain(parts.iter().copied()) {
            assert!(file.contains(part), "{part}\n{file}");
        }
        let file = file.replace("${JWT_SECRET}", &"s".repeat(32));
        folder.write("limits.yaml", &file);
        let report = folder.json(&[format]);
        assert_eq!(
            (report["clients"].as_u64(), report["denied"].as_u64()),
            (Some(clients), Some(0))
        );
    }
}

#[test]
fn openapi_paths_become_routes() {
    let log: String = (0..40)
        .map(|n| {
            line(
                n,
                &format!("203.0.113.{n}"),
                &format!("/v1/{}/x", ["item", "shop"][n as usize % 2]),
            )
        })
        .collect();
    let folder = Folder::new(&log);
    folder.write(
        "openapi.yaml",
        "openapi: 3.1.0\nservers: [{url: 'https://shop.example/v1'}]\npaths:\n  /item/{id}: {get: {}}\n  \
         /never: {get: {}}\n",
    );
    let suggest = |file: &str| {
        let output = folder.tollgate(&["suggest", "access.log", "--openapi", file, "--routes=1"]);
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (file, told) = suggest("openapi.yaml");
    assert_eq!(told, "");
    assert!(file.contains("value: '^/v1/item/[^/]+$'") && !file.contains("shop/"), "{file}");
    assert!(
        file.contains(
            "Limits for 1 described path without a successful request, such as /v1/never."
        )
    );
    let (_, told) = suggest("access.log");
    assert!(told.contains("access.log: "), "{told}");
}

#[test]
fn shadow_is_a_step_of_the_rollout() {
    let log: String = (0..50).map(|n| line(n, "203.0.113.1", "/")).collect();
    let folder = Folder::new(&log);
    let output = folder.tollgate(&["suggest", "access.log", "--headroom", "0"]);
    let file = String::from_utf8(output.stdout).unwrap();
    assert_eq!(file.matches("\n  # shadow: true\n").count(), 1, "{file}");
    let shadow = file.replace("  # shadow: true\n", "  shadow: true\n");
    folder.write("limits.yaml", &shadow.replace("limit: ", "limit: 1 # "));
    let report = folder.json(&[]);
    assert_eq!(
        (&report["denied"], &report["policies"]["global"]["denied"]),
        (&json!(0), &json!(49))
    );
}

#[test]
fn later_requests_judge_the_limits() {
    let mut log = String::new();
    for second in 0..3_000_u64 {
        // In the last minutes, two clients send five times as many requests.
        let clients = if second >= 2_400 && second % 12 < 10 { &[1, 2][..] } else { &[] };
        for client in clients.iter().copied().chain([second % 60]) {
            log += &line(second, &format!("203.0.113.{client}"), "/");
        }
    }
    let folder = Folder::new(&log);
    let output = folder.tollgate(&["suggest", "access.log"]);
    let file = String::from_utf8(output.stdout).unwrap();
    for part in [
        "# - 0 of 60 clients (0.00 %) before 2026-11-22T00:34:59.3Z.",
        "# - 2 of 60 clients (3.33 %) from then on. These requests judge the limits.",
        "# - The limits deny 3.33 % of the later clients.",
    ] {
        assert!(file.contains(part), "{part}\n{file}");
    }
}
