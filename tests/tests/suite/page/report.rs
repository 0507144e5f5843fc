//! The HTML report of `tollgate replay`, in a browser.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use tollgate::store::Timestamp;
use tollgate::{Cost, Key, Policy, Quota};
use tollgate_replay::html::{self, ClientLimit};
use tollgate_replay::{Ask, Client, Replay, Report, Request};

use super::browser::Tab;

/// Four clients over an hour; the client `<b>d` sends too many requests.
fn report() -> Report {
    let policy = Policy::token_bucket("client", Quota::per_minute(6)).unwrap();
    let mut replay = Replay::new();
    for second in 0..3_600_u64 {
        let name =
            if second.is_multiple_of(2) { "<b>d" } else { ["a", "b", "c"][second as usize % 3] };
        let key = Key::from(name);
        let asks = [Ask::new(&policy, &key, Cost::ONE)];
        let at = Timestamp::from_micros((1_760_000_000 + second) * 1_000_000);
        let client = Client { key: &key, name: &name };
        replay.request(&Request::new(at, &asks).of(client).by("home")).unwrap();
    }
    replay.finish().unwrap()
}

#[test]
fn a_report_is_readable_in_light_and_in_dark_and_loads_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("report.html");
    let limits = [ClientLimit { name: "client".to_owned(), in_a_minute: 12.0 }];
    fs::write(&path, html::page("access.log", &report(), &limits)).unwrap();
    let tab = Tab::open(&format!("file://{}", path.display()), folder.path());
    let headings: Vec<String> =
        tab.value("[...document.querySelectorAll('h2')].map(it => it.innerText)");
    assert_eq!(headings.len(), 4, "{headings:?}");
    for (heading, part) in headings.iter().zip([
        "Requests over time",
        "Clients by the requests of their busiest minute",
        "Denials by day of the week and hour",
        "Clients denied most",
    ]) {
        assert!(heading.starts_with(part), "{heading}");
    }
    assert_eq!(tab.value::<usize>("document.querySelectorAll('svg rect').length > 20 ? 1 : 0"), 1);
    tab.shows("tbody", "<b>d");
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
    // Narrow screens scroll inside a section, and not the page.
    tab.look(360, 800, "light");
    assert!(tab.value::<bool>("document.documentElement.scrollWidth <= 360"));
    let loaded: Vec<String> =
        tab.value("performance.getEntriesByType('resource').map(it => it.name)");
    assert_eq!(loaded, [""; 0]);
    assert_eq!(tab.complaints(), [""; 0]);
}
