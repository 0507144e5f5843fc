//! The HTML report of `tollgate replay`, in a browser.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::Timestamp;
use tollgate::{Policy, Quota};
use tollgate_engine::{Charges, Limit, Limits};
use tollgate_replay::html::{self, ClientLimit};
use tollgate_replay::{Client, Replay, Report, Request};

use super::browser::{TOO_WIDE, Tab};
use super::support::bless;

/// A week of 60 clients. Some clients exceed their limits, for example with bursts of 18 requests.
fn report() -> Report {
    let policies = [
        Policy::token_bucket("client", Quota::per_minute(6)).unwrap(),
        Policy::sliding_window_log("client-day", Quota::per_day(300)).unwrap(),
        // Its chart is the same as the client's.
        Policy::token_bucket("client/team", Quota::per_minute(6)).unwrap(),
    ];
    let limits = Arc::new(Limits::new(policies.map(Limit::new)));
    let mut random = fastrand::Rng::with_seed(7);
    let mut replay = Replay::new();
    for second in 0..7 * 86_400_u64 {
        let is_day = (8..18).contains(&(second / 3_600 % 24));
        if random.f64() > if is_day { 0.1 } else { 0.02 } {
            continue;
        }
        // Most requests are from clients with low numbers.
        let name = format!("203.0.113.{}", (random.f64().powi(4) * 60.0) as u32);
        let key = Key::from(name.as_str());
        let client = Client { key: &key, name: &name };
        let at = Timestamp::from_micros((MONDAY + second) * 1_000_000);
        for _ in 0..if random.u32(0..400) == 0 { 18 } else { 1 } {
            let charges = Charges::of_each(&limits, &key, Cost::ONE);
            replay.request(&mut Request::new(at, &limits, charges).of(client).by("home")).unwrap();
        }
    }
    replay.finish().unwrap()
}

/// 2026-11-16.
const MONDAY: u64 = 1_794_787_200;

#[test]
fn report_is_readable_on_every_screen() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("report.html");
    let limits = [("client", 12.0), ("client-day", 300.0)];
    let limits =
        limits.map(|(name, in_a_minute)| ClientLimit { name: name.to_owned(), in_a_minute });
    fs::write(&path, html::page("access.log", &report(), &limits)).unwrap();
    let tab = Tab::open(&format!("file://{}", path.display()), folder.path());
    let headings: Vec<String> =
        tab.value("[...document.querySelectorAll('h2')].map(it => it.innerText)");
    let expected = [
        "Denied clients",
        "Policies",
        "Requests over time",
        "Policy client-day: ",
        "Policy client: ",
        "Clients by the requests of their busiest minute",
        "Denials by day of the week and hour",
    ];
    assert_eq!(headings.len(), expected.len(), "{headings:?}");
    for (heading, part) in headings.iter().zip(expected) {
        assert!(heading.starts_with(part), "{heading}");
    }
    // A level follows its base, and is indented.
    let rows = "[...[...document.querySelectorAll('section')]
        .find((it) => it.innerText.startsWith('Policies')).querySelectorAll('td:first-child')]
        .map((cell) => [cell.textContent.trim(), cell.textContent.startsWith('\u{2003}')])";
    let rows: Vec<(String, bool)> = tab.value(rows);
    let rows: Vec<_> = rows.iter().map(|(name, indented)| (&**name, *indented)).collect();
    assert_eq!(rows, [("client", false), ("client/team", true), ("client-day", false)]);
    // The first row names the most denied client and its policy.
    tab.shows("tbody tr", "203.0.113.0\tclient");
    let drawings: Vec<String> =
        tab.value("[...document.querySelectorAll('svg')].map(it => it.innerHTML)");
    for (index, drawing) in drawings.iter().enumerate() {
        assert!(!drawings[..index].contains(drawing), "chart {index} is drawn twice");
    }
    let colours = ["light", "dark"].map(|scheme| {
        tab.look(1_120, 900, scheme);
        let colour = |of: &str| -> Value { tab.value(of) };
        [
            colour("getComputedStyle(document.body).backgroundColor"),
            colour("getComputedStyle(document.querySelector('svg text')).fill"),
            colour("getComputedStyle(document.querySelector('svg rect')).fill"),
        ]
    });
    assert!(colours[0].iter().zip(&colours[1]).all(|(light, dark)| light != dark), "{colours:?}");
    for width in [360, 1_400] {
        tab.look(width, 800, "light");
        let wide: Vec<String> = tab.value(TOO_WIDE);
        assert!(wide.is_empty(), "{width}: {wide:?}");
        let smallest: f64 = tab.value(
            "Math.min(...[...document.querySelectorAll('svg text')]
                 .map((it) => it.getBoundingClientRect().height))",
        );
        assert!(smallest >= 9.0, "{width}: a label is {smallest} pixels high");
    }
    let loaded: Vec<String> =
        tab.value("performance.getEntriesByType('resource').map(it => it.name)");
    assert_eq!(loaded, [""; 0]);
    assert_eq!(tab.complaints(), [""; 0]);
    tab.look(1_120, 800, "light");
    // The picture shows the first rows.
    tab.run(
        "for (const row of [...document.querySelector('tbody').children].slice(5)) row.remove()",
    );
    bless("replay.png", &tab.picture());
}

/// A worst page has two columns, and a phone shows both.
#[test]
fn worst_page_is_complete_on_a_phone() {
    let folder = TempDir::new().unwrap();
    let limits = "rateLimiter:\n  target: http://localhost:3000\n  client: {limit: 100, \
                  windowSeconds: 60}\n";
    fs::write(folder.path().join("limits.yaml"), limits).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.args(["worst", "limits.yaml", "--html", "worst.html"]).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = folder.path().join("worst.html");
    let tab = Tab::open(&format!("file://{}", path.display()), folder.path());
    tab.look(360, 800, "light");
    let shown: Vec<bool> = tab.value(
        "[...document.querySelector('table').querySelectorAll('th, td')]
             .map((cell) => cell.getBoundingClientRect().width > 0)",
    );
    assert!(shown.len() >= 4 && shown.iter().all(|it| *it), "{shown:?}");
    let wide: Vec<String> = tab.value(TOO_WIDE);
    assert!(wide.is_empty(), "{wide:?}");
}
