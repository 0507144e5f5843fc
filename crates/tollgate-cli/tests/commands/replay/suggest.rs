//! The `tollgate suggest` command.

use super::{counts, folder, line};

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
    let folder = folder(&(lines.join("\n") + "\n"));
    for shape in ["token-bucket", "sliding-window-log"] {
        let options = ["--algorithm", shape, "--level", "99", "--html", "suggested.html"];
        let arguments = [&["suggest", "access.log"], &options[..]].concat();
        let file = folder.output(&arguments);
        folder.write("suggested.yaml", &file);
        let check = folder.tollgate(&["check", "--strict", "suggested.yaml"]);
        assert!(check.status.success(), "{check:?}\n{file}");
        let basis = "# from 2026-11-22T00:00:00Z to 2026-11-22T00:00:57Z: 1 day, 200 clients.";
        let judged = ". The limits are based on the entire log.";
        for part in [basis, "value: '^/item/[^/]+$'", "# 99.99 % of clients: ", judged] {
            assert!(file.contains(part), "{part}\n{file}");
        }
        folder.write("limits.yaml", &file);
        let report = folder.replay(&[]);
        // The page is that of a replay with the suggested file.
        let page = folder.read("suggested.html");
        let replay = ["replay", "suggested.yaml", "access.log", "--html", "replayed.html"];
        assert!(folder.tollgate(&replay).status.success());
        assert_eq!(page, folder.read("replayed.html"));
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
    let folder = folder(&log);
    let output = folder.tollgate(&["suggest", "access.log", "-o", "limits.yaml", "--level=99.99"]);
    assert!(output.status.success(), "{output:?}");
    let file = folder.read("limits.yaml");
    assert!(
        !file.contains("/scan") && !file.contains("path: {expression: regex, value: '^/[^/]+$'}")
    );
    let report = folder.replay(&[]);
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
