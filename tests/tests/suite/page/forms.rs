//! The page's accessibility: narrow screens, dark mode, keyboard and screen reader.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::browser::{TOO_WIDE, Tab};
use super::support::Stage;

/// One browser for all three, because its start takes longer than the checks.
#[test]
fn everybody_can_use_the_page() {
    let stage = Stage::new(&["--admin-subjects", "clear"]);
    stage.wait_until_live();
    let tab = &stage.tab;
    tab.until("!document.querySelector('#sending').hidden");
    tab.shows("#policies", "100 of 100 left");
    screen_readers_get_roles_and_names(tab);
    keyboard_sends_requests_and_opens_responses(tab);
    page_fits_every_width_with_enough_contrast(tab);
    assert_eq!(tab.complaints(), [""; 0]);
}

fn keyboard_sends_requests_and_opens_responses(tab: &Tab) {
    for (button, words) in [
        ("GET", "1 × GET: 1 × 200; by 1 × api"),
        ("SEARCH", "1 × SEARCH: 1 × 200; by 1 × api"),
        ("POST", "1 × POST: 1 × 201; by 1 × api"),
        ("DELETE", "1 × DELETE: 1 × "),
        // 81 units remain, so 16 requests for 5 units are allowed.
        ("POST × 20", "20 × POST: 16 × 201, 4 × 429; by "),
    ] {
        tab.tab_to(&format!("document.activeElement.innerText === {button:?}"));
        let outline: String = tab.value("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid", "{button}: the focus is visible");
        tab.press("Enter");
        tab.shows("#summary", words);
    }
    // The requests are distributed evenly over the replicas.
    let summary = tab.text("#summary");
    for name in ["× api1", "× api2", "× api3"] {
        assert!(summary.contains(name), "{summary}");
    }
    let servers: BTreeSet<String> = tab
        .value("[...document.querySelectorAll('summary')].map((row) => row.children[2].innerText)");
    assert_eq!(servers.len(), 3, "{servers:?}");
    tab.tab_to("document.activeElement.localName === 'summary'");
    tab.press("Enter");
    for field in ["ratelimit-policy", "x-ratelimit-remaining", "x-server-id", "x-request-id"] {
        tab.shows("#answers details[open]", field);
    }
}

fn page_fits_every_width_with_enough_contrast(tab: &Tab) {
    tab.shows("#summary", "429");
    tab.run(
        "document.querySelector('#token').value = '0123456789abcdef';
         document.querySelector('#use').click()",
    );
    tab.shows("#denials", "global");
    for scheme in ["light", "dark"] {
        for width in [320, 360, 768, 1400] {
            tab.look(width, 800, scheme);
            tab.until(&format!("innerWidth === {width}"));
            let wide: Vec<String> = tab.value(TOO_WIDE);
            assert!(wide.is_empty(), "{scheme} at {width}: {wide:?}");
        }
        let pale: Vec<String> = tab.value(TOO_PALE);
        assert!(pale.is_empty(), "{scheme}: {pale:#?}");
    }
    let ground = "getComputedStyle(document.body).backgroundColor";
    let dark: String = tab.value(ground);
    tab.look(390, 800, "light");
    assert_ne!(dark, tab.value::<String>(ground), "there are two schemes");
}

/// Texts with a contrast below 4.5 against their background (WCAG 2, AA).
const TOO_PALE: &str = r"(() => {
    const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = numbers(colour).map((v) => v / 255)
            .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (it) => {
        const colour = getComputedStyle(it).backgroundColor;
        return numbers(colour)[3] === 0 ? ground(it.parentElement) : colour;
    };
    const texts = [...document.querySelectorAll('body *')].filter((it) => it.checkVisibility()
        && [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    if (texts.length < 40) return ['too few texts: ' + texts.length];
    return texts.map((it) => {
        const style = getComputedStyle(it);
        const colour = it instanceof SVGElement ? style.fill : style.color;
        const [a, b] = [light(colour), light(ground(it))].sort((a, b) => b - a);
        return [(a + 0.05) / (b + 0.05), it.textContent];
    }).filter(([contrast]) => !(contrast >= 4.5)).map(String);
})()";

fn screen_readers_get_roles_and_names(tab: &Tab) {
    let nodes = tab.accessibility_tree();
    let named = |role: &str| {
        let of_role = nodes.iter().filter(move |(it, _)| it == role);
        of_role.map(|(_, name)| name.as_str()).collect::<Vec<_>>()
    };
    for role in ["banner", "main"] {
        assert_eq!(named(role).len(), 1, "{role}");
    }
    for (role, names) in [
        (
            "region",
            &["Denied clients", "Quotas", "Requests per second", "Replicas", "Send requests"][..],
        ),
        ("meter", &["global"]),
        ("heading", &["Tollgate", "Quotas", "global", "Requests per second", "Replicas", "api1"]),
        ("button", &["GET", "GET × 20", "DELETE × 20", "Show"]),
        ("textbox", &["Token"]),
        ("image", &["Requests per second at global"]),
    ] {
        for name in names {
            assert!(named(role).contains(name), "no {role} {name:?} in {:?}", named(role));
        }
        assert!(named(role).iter().all(|name| !name.is_empty()), "{role}: {:?}", named(role));
    }
    // Screen readers announce live regions, so these must not change while only time passes.
    tab.run(
        "window.told = 0; for (const it of document.querySelectorAll('[role=status]'))
             new MutationObserver((all) => window.told += all.length)
                 .observe(it, { childList: true, characterData: true, subtree: true })",
    );
    let before: f64 = tab.value("performance.now()");
    tab.until(&format!("performance.now() > {before} + 3500"));
    assert_eq!(tab.value::<u32>("window.told"), 0);
}

impl Tab {
    /// The role and name of every element in the accessibility tree.
    fn accessibility_tree(&self) -> Vec<(String, String)> {
        let tree = self.ask("Accessibility.getFullAXTree", &json!({}));
        let text = |value: &Value| value["value"].as_str().unwrap_or("").to_owned();
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let nodes = nodes.filter(|node| node["ignored"] == false);
        nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }
}
