//! The documentation's screenshots of the live page.
//!
//! `TOLLGATE_BLESS=1 TOLLGATE_LONG=1 cargo xtask test -- live_page_in_light report_is_readable` updates
//! them and the screenshots of the replay's report.

use std::time::{Duration, Instant};

use super::support::{Stage, TOKEN, bless};
use tollgate_test_servers::http::Client;

/// Three replicas under increasing traffic: for three seconds, or for two minutes with
/// `TOLLGATE_LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn live_page_in_light_and_dark() {
    let length = Duration::from_secs(if tollgate_store_tests::is_long() { 120 } else { 3 });
    let stage = Stage::new(&["--limit", "240", "--window", "20s"]);
    stage.wait_until_live();
    let tab = &stage.tab;
    tab.look(1120, 900, "light");
    tab.run(&format!(
        "document.querySelector('#token').value = '{TOKEN}'; document.querySelector('#use').click()"
    ));
    // A service's page has no buttons.
    tab.until("!document.querySelector('#sending').hidden");
    tab.run("document.querySelector('#sending').hidden = true; document.activeElement.blur()");
    traffic(&stage, length).await;
    for scheme in ["light", "dark"] {
        tab.look(1120, 900, scheme);
        bless(&format!("page-{scheme}.png"), &tab.picture());
    }
    assert_eq!(tab.complaints(), [""; 0]);
}

/// Irregular requests that exceed the quota in the second half.
async fn traffic(stage: &Stage, length: Duration) {
    let client = Client::new(stage.set.nginx.address());
    let start = Instant::now();
    while start.elapsed() < length {
        let passed = start.elapsed().as_secs_f64();
        let share = passed / length.as_secs_f64();
        let per_second = 6.0 + 12.0 * share + 3.0 * (passed / 7.0).sin();
        client.get("/items").await;
        tokio::time::sleep(Duration::from_secs_f64(fastrand::f64() * 2.0 / per_second)).await;
    }
}
