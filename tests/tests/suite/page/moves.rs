//! The page's live updates and reconnections.

use std::time::{Duration, Instant};

use super::browser::{TOO_WIDE, Tab};
use super::support::{Stage, TOKEN};
use crate::{demo, gateway};
use tollgate_test_servers::http::Client;

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_traffic_and_names_denied_clients() {
    let stage = Stage::new(&["--limit", "20", "--admin-subjects", "clear"]);
    stage.wait_until_live();
    let tab = &stage.tab;
    tab.shows("#policies", "20 of 20 left");
    let client = Client::new(stage.set.nginx.address());
    for left in (11..20).rev() {
        let answer = client.get("/items").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-remaining"), left.to_string());
    }
    let status = Client::new(stage.set.admins[2]).get("/status").await.json();
    assert_eq!(status["policies"][0]["remaining"], 11);
    // The three replicas share one quota, and the page adds up their counts.
    tab.shows("#policies", "11 of 20 left");
    tab.shows("#policies", "9 allowed, 0 denied");
    tab.until("document.querySelector('[role=meter]').getAttribute('aria-valuenow') === '9'");
    for _ in 0..15 {
        client.get("/items").await;
    }
    tab.shows("#policies", "20 allowed, 4 denied");
    tab.shows("#rates-words", "20 allowed, 4 denied");
    // The chart starts when the page is opened.
    let points: usize = tab.value("document.querySelector('#chart .denied').points.length");
    assert!((1..200).contains(&points), "{points}");
    // The area of the denials is visible.
    tab.until(
        "[...document.querySelector('#chart .denied').points]
             .some((point, index, all) => point.y !== all[all.length - 1 - index].y)",
    );
    for name in ["api1", "api2", "api3"] {
        tab.shows("#replicas", name);
    }
    tab.shows("#replicas", "redis");
    tab.shows("#replicas", "closed");

    // The page shows denied clients only with the token.
    assert!(tab.value::<bool>("document.querySelector('#denials').hidden"));
    tab.run("document.querySelector('#token').focus()");
    type_in(tab, "0123456789abcdeF");
    tab.press("Enter");
    tab.shows("#token-words", "api1, api2, api3 rejected the token");
    assert!(tab.value::<bool>("document.querySelector('#denials').hidden"));
    tab.press("Enter");
    tab.until("document.activeElement.id === 'token'");
    type_in(tab, TOKEN);
    tab.press("Enter");
    tab.shows("#denials tbody", "all clients\tglobal (20 per 60 s)\t4");
    // An operator gives all clients more for an hour, and takes it back on the page.
    assert!(tab.value::<bool>("document.querySelector('#overridden').hidden"));
    let token = format!("Bearer {TOKEN}");
    let (operator, body) = (Client::new(stage.set.admins[1]), r#"{"limit": 50, "for": 3600}"#);
    let path = "/overrides/global/global";
    let set = operator.send("PUT", path, &[("authorization", &token)], body).await.unwrap();
    assert_eq!(set.status, 200);
    tab.shows("#overrides tbody", "global\tglobal\t50\t60 min\tRemove");
    tab.shows("#policies", "30 of 50 left");
    tab.run("document.querySelector('#overrides button').click()");
    tab.until("document.querySelector('#overridden').hidden");
    tab.shows("#policies", "0 of 20 left");
    let is_above_charts = "document.querySelector('#denials').getBoundingClientRect().bottom
        < document.querySelector('#chart').getBoundingClientRect().top";
    assert!(tab.value::<bool>(is_above_charts));
    assert_eq!(tab.value::<usize>("localStorage.length"), 0, "the token must not outlive the tab");
    assert_eq!(tab.complaints(), [""; 0]);
}

fn type_in(tab: &Tab, text: &str) {
    for letter in text.chars() {
        tab.press(&letter.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn page_reconnects_to_restarted_replicas() {
    let mut stage = Stage::new(&["--store-timeout", "1s"]);
    stage.wait_until_live();
    // First the replica that serves the page, then another replica.
    for index in [0, 1] {
        stage.set.replicas[index].process.kill();
        stage.tab.shows("#connection", &format!("2 of 3 live; not api{}", index + 1));
        stage.tab.shows("#replicas", "lost: ");
        stage.set.replicas[index].restart().unwrap();
        stage.wait_until_live();
    }
    // New replicas count from 0, and the page still draws their new requests.
    let client = Client::new(stage.set.nginx.address());
    for _ in 0..6 {
        client.get("/items").await;
    }
    stage.tab.shows("#rates-words", "6 allowed, 0 denied");
    // A replica that receives the signal to stop closes the page's stream immediately.
    stage.set.replicas[2].process.terminate();
    let start = Instant::now();
    assert!(stage.set.replicas[2].process.wait(Duration::from_secs(8)).is_some());
    assert!(start.elapsed() < Duration::from_secs(8));
    stage.tab.shows("#connection", "2 of 3 live; not api3");
    // The page also shows that a store is down.
    stage.set.redis.kill();
    let asked = (0..30).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.get("/items").await.status })
    });
    for answer in asked.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), 503);
    }
    stage.tab.shows("#connection", "is down");
    stage.tab.shows("#replicas", "down");
    assert_eq!(stage.tab.complaints(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_page_has_no_buttons() {
    let (target, folder) = demo::start(&[]);
    let lines = format!(
        "  target: http://{}\n  \
         strategy: sliding_window_log\n  global: {{limit: 10, windowSeconds: 60}}\n  \
         client: {{limit: 5, windowSeconds: 60}}\n",
        target.address()
    );
    let process = gateway::start(&lines, folder.path());
    let admin = gateway::address(&process, "admin");
    let tab = Tab::open(&format!("http://{admin}"), folder.path());
    tab.shows("#connection", "1 of 1 live");
    tab.shows("#policies", "10 of 10 left");
    let client = Client::new(gateway::address(&process, "listening"));
    for _ in 0..7 {
        client.get("/items").await;
    }
    tab.shows("#policies", "5 of 10 left");
    tab.shows("#policies", "5 allowed, 2 denied");
    // With several policies, the chart shows the selected policy.
    assert!(!tab.value::<bool>("document.querySelector('#choice').hidden"));
    assert!(tab.value::<bool>("document.querySelector('#sending').hidden"));
    assert_eq!(tab.complaints(), [""; 0]);
}

/// Uses only the keyboard, at a phone's width.
#[tokio::test(flavor = "multi_thread")]
async fn operator_finds_and_blocks_a_client() {
    let (target, folder) = demo::start(&[]);
    let lines = format!(
        "  target: http://{}\n  \
         strategy: sliding_window_log\n  \
         levels: {{all: everyone}}\n  \
         client: {{limit: 5, windowSeconds: 3600, levels: {{all: {{limit: 8, windowSeconds: 60}}}}}}\n",
        target.address()
    );
    let process = gateway::start(&lines, folder.path());
    let tab = Tab::open(&format!("http://{}", gateway::address(&process, "admin")), folder.path());
    let client = Client::new(gateway::address(&process, "listening"));
    for _ in 0..2 {
        assert_eq!(client.get("/items").await.status, 200);
    }
    for theme in ["dark", "light"] {
        tab.look(320, 800, theme);
        tab.until("innerWidth === 320");
        assert_eq!(tab.value::<Vec<String>>(TOO_WIDE), [""; 0], "{theme}");
    }
    tab.shows("#connection", "1 of 1 live");
    assert!(tab.value::<bool>("document.querySelector('#one').hidden"));
    tab.run("document.querySelector('#token').focus()");
    type_in(&tab, TOKEN);
    tab.press("Enter");
    tab.until("!document.querySelector('#one').hidden");
    tab.press("Tab");
    tab.until("document.activeElement.id === 'subject'");
    type_in(&tab, "ip:nowhere");
    tab.press("Enter");
    tab.shows("#one-words", "The subject: ");
    tab.run("document.querySelector('#subject').select()");
    type_in(&tab, "ip:127.0.0.1");
    tab.press("Enter");
    tab.shows("#limits tbody", "client\t3 of 5\tall available in 60 min\tReset Block 1 h");
    assert_eq!(tab.value::<Vec<String>>(TOO_WIDE), [""; 0]);

    // The next stops after the field and its button are the first row's buttons.
    for _ in 0..3 {
        tab.press("Tab");
    }
    let focus = "document.activeElement.getAttribute('aria-label')";
    assert_eq!(tab.value::<String>(focus), "Block 1 h: client");
    tab.press("Enter");
    tab.shows("#limits tbody", "client\t0 of 5\tblocked for 60 min\tReset Unblock");
    tab.until(&format!("{focus} === 'Unblock: client'"));
    assert_eq!(client.get("/items").await.status, 429);
    tab.shows("#overrides tbody", "client");
    tab.press("Enter");
    tab.shows("#limits tbody", "client\t3 of 5");
    tab.until(&format!("{focus} === 'Block 1 h: client'"));
    tab.run("document.activeElement.previousElementSibling.focus()");
    tab.press("Enter");
    tab.shows("#limits tbody", "client\t5 of 5\t–\tReset Block 1 h");
    tab.until(&format!("{focus} === 'Reset: client'"));
    assert_eq!(client.get("/items").await.status, 200);
    assert_eq!(tab.complaints(), [""; 0]);
}

/// A level's card is in its base's card. A name with a slash alone makes no level.
#[tokio::test(flavor = "multi_thread")]
async fn levels_are_a_tree() {
    let (target, folder) = demo::start(&[]);
    let lines = format!(
        "  target: http://{}\n  \
         strategy: sliding_window_log\n  \
         levels: {{team: {{key: header, name: X-Team, trustedProxies: [127.0.0.1]}}, all: everyone}}\n  \
         global: {{limit: 10, windowSeconds: 60}}\n  \
         client: {{limit: 5, windowSeconds: 60, levels: {{team: {{limit: 6, windowSeconds: 60}}, \
         all: {{limit: 8, windowSeconds: 60}}}}}}\n  \
         apis: [{{identifier: other/team, path: /other, limit: 9, windowSeconds: 60}}]\n",
        target.address()
    );
    let process = gateway::start(&lines, folder.path());
    let admin = gateway::address(&process, "admin");
    let tab = Tab::open(&format!("http://{admin}"), folder.path());
    tab.shows("#policies", "client/team");
    let tree = "(function of(list) { return [...list.children].map((card) =>
        [card.firstChild.localName, card.firstChild.innerText, of(card.lastChild)]); })
        (document.querySelector('#policies'))";
    let (none, level) = (serde_json::json!([]), |name| serde_json::json!(["h4", name, []]));
    let expected = serde_json::json!([
        ["h3", "global", none],
        ["h3", "client", [level("client/team"), level("client/all")]],
        ["h3", "other/team", none],
        ["h3", "cors/preflights", none],
    ]);
    assert_eq!(tab.value::<serde_json::Value>(tree), expected);
    let client = Client::new(gateway::address(&process, "listening"));
    for _ in 0..5 {
        client.get("/items").await;
    }
    tab.shows("#policies .levels:not([hidden])", "5 allowed, 0 denied");
    for width in [320, 1_400] {
        tab.look(width, 800, "light");
        tab.until(&format!("innerWidth === {width}"));
        assert_eq!(tab.value::<Vec<String>>(TOO_WIDE), [""; 0], "{width}");
    }
    assert_eq!(tab.complaints(), [""; 0]);
}
