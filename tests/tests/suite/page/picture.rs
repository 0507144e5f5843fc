//! The pictures of the README: `cargo xtask screenshot` takes them anew.

use std::time::{Duration, Instant};

use super::support::{Stage, TOKEN, root};
use crate::client::Client;

/// Real traffic over three replicas: for a moment, or for two minutes with `TOLLGATE_LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_in_light_and_in_dark() {
    let bless = std::env::var("TOLLGATE_BLESS").is_ok_and(|value| value == "1");
    let long = tollgate_store_tests::is_long();
    let flags = ["--limit", "240", "--window", "20s"];
    let stage = Stage::new(&flags);
    stage.is_live();
    let tab = &stage.tab;
    tab.look(1120, 900, "light");
    tab.run(&format!(
        "document.querySelector('#token').value = '{TOKEN}'; document.querySelector('#use').click()"
    ));
    traffic(&stage, Duration::from_secs(if long { 150 } else { 3 })).await;
    for (index, method) in ["GET", "SEARCH", "POST"].iter().enumerate() {
        let button = format!("document.querySelectorAll('#buttons button')[{}].click()", index * 2);
        tab.run(&button);
        tab.shows("#summary", method);
    }
    tab.run("document.activeElement.blur()");
    for scheme in ["light", "dark"] {
        tab.look(1120, 900, scheme);
        let picture = tab.picture();
        assert!(picture.starts_with(b"\x89PNG"));
        assert!((10_000..150_000).contains(&picture.len()), "{scheme}: {} bytes", picture.len());
        if bless {
            std::fs::write(root().join(format!("docs/images/page-{scheme}.png")), picture).unwrap();
        }
    }
    assert_eq!(tab.complaints(), [""; 0]);
}

/// More or less of it, as in life; at times more than the quota.
async fn traffic(stage: &Stage, length: Duration) {
    let client = Client::new(None, stage.set.nginx.address());
    let start = Instant::now();
    while start.elapsed() < length {
        let passed = start.elapsed().as_secs_f64();
        let a_second = 11.0 + 5.0 * (passed / 9.0).sin() + 6.0 * (passed / 31.0).sin();
        client.get("/items", &[]).await;
        tokio::time::sleep(Duration::from_secs_f64(fastrand::f64() * 2.0 / a_second)).await;
    }
}
