//! A headless browser with a single page.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tollgate_test_servers::Process;
use tollgate_test_servers::until;

use super::devtools::{DevTools, PATIENCE};

/// The elements that are wider than the screen.
pub(crate) const TOO_WIDE: &str = r"[...document.querySelectorAll('*')]
    .filter((it) => it.getBoundingClientRect().right > innerWidth + 0.5
        || (it === document.documentElement && it.scrollWidth > innerWidth))
    .map((it) => `${it.localName}.${it.className} ${it.getBoundingClientRect().right}`)";

/// A page in its own browser, which is stopped on drop.
pub(crate) struct Tab {
    tools: RefCell<DevTools>,
    _process: Process,
}

impl Tab {
    /// Opens `url`. The browser stores its files in `folder`.
    pub(crate) fn open(url: &str, folder: &Path) -> Self {
        let process = start(folder);
        let mut tools = DevTools::connect(&address(&process));
        for domain in ["Log", "Page", "Runtime"] {
            tools.ask(&format!("{domain}.enable"), &json!({}));
        }
        tools.ask("Page.navigate", &json!({ "url": url }));
        tools.wait_for("Page.loadEventFired");
        Self { tools: RefCell::new(tools), _process: process }
    }

    /// Runs a command of the DevTools protocol and returns its result.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Value {
        self.tools.borrow_mut().ask(method, params)
    }

    /// Evaluates a JavaScript expression.
    pub(crate) fn value<T: DeserializeOwned>(&self, expression: &str) -> T {
        let value = self.evaluate(expression);
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Runs JavaScript statements.
    pub(crate) fn run(&self, statements: &str) {
        self.evaluate(&format!("(() => {{ {statements} }})()"));
    }

    fn evaluate(&self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let mut done = self.ask("Runtime.evaluate", &params);
        let thrown = &done["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        done["result"]["value"].take()
    }

    /// The text of the first element that matches the selector, or an empty string.
    pub(crate) fn text(&self, selector: &str) -> String {
        self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''"))
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) {
        let start = Instant::now();
        while !self.value::<bool>(&format!("Boolean({expression})")) {
            if start.elapsed() > PATIENCE {
                let shown: String = self.value("document.body.innerText");
                panic!("timed out: {expression}\n{shown}\n{:?}", self.complaints());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the first element that matches the selector contains this text.
    pub(crate) fn shows(&self, selector: &str, text: &str) {
        self.until(&format!("document.querySelector({selector:?})?.innerText.includes({text:?})"));
    }

    /// Presses a key: `Tab`, `Enter`, or a letter.
    pub(crate) fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            " " => (32, " "),
            letter => (0, letter),
        };
        for (kind, text) in [("keyDown", text), ("keyUp", "")] {
            let event = json!({
                "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code,
            });
            self.ask("Input.dispatchKeyEvent", &event);
        }
    }

    /// Presses Tab until the expression is true.
    pub(crate) fn tab_to(&self, expression: &str) {
        for _ in 0..60 {
            self.press("Tab");
            if self.value(&format!("Boolean({expression})")) {
                return;
            }
        }
        panic!("no key leads to {expression}");
    }

    /// Emulates a screen size and a colour scheme.
    pub(crate) fn look(&self, width: i64, height: i64, scheme: &str) {
        let screen = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.ask("Emulation.setDeviceMetricsOverride", &screen);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask("Emulation.setEmulatedMedia", &media);
    }

    /// A screenshot of the full page as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let mut clip = self.ask("Page.getLayoutMetrics", &json!({}))["cssContentSize"].take();
        clip["scale"] = 1.into();
        let params = json!({ "captureBeyondViewport": true, "clip": clip });
        let picture = self.ask("Page.captureScreenshot", &params);
        BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    /// Errors and warnings that a user would find in the console.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut tools = self.tools.borrow_mut();
        let bad = tools.events().iter().filter(|event| is_complaint(event));
        bad.map(Value::to_string).collect()
    }
}

fn is_complaint(event: &Value) -> bool {
    let params = &event["params"];
    match event["method"].as_str() {
        Some("Runtime.exceptionThrown") => true,
        Some("Runtime.consoleAPICalled") => {
            ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind)
        }
        // Denials and unreachable replicas are not errors of the page.
        Some("Log.entryAdded") => params["entry"]["source"] != "network",
        _ => false,
    }
}

/// Starts Chromium as a `Process`, which is stopped even if the test is killed.
fn start(folder: &Path) -> Process {
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let mut args = vec![
        "--headless=new",
        "--remote-debugging-port=0",
        &profile,
        "--no-first-run",
        "--disable-gpu",
        "--hide-scrollbars",
        // Containers have little shared memory.
        "--disable-dev-shm-usage",
        // Chromium itself must send no requests: only the page does, to its own servers.
        "--disable-background-networking",
        "--disable-component-update",
    ];
    // Chromium does not start its sandbox for root, because user namespaces do not confine root.
    // The tests only open our own pages.
    if std::fs::metadata("/proc/self").is_ok_and(|of_this| of_this.uid() == 0) {
        args.push("--no-sandbox");
    }
    args.push("about:blank");
    let home = ("HOME".to_owned(), folder.display().to_string());
    Process::start("chromium", "chromium", args, &[home], folder)
        .unwrap_or_else(|failure| panic!("{failure}"))
}

/// The DevTools address that Chromium prints.
fn address(process: &Process) -> String {
    until("chromium starts", PATIENCE, || {
        let said = process.output();
        let address = said.lines().find_map(|line| line.strip_prefix("DevTools listening on "));
        address.map(|address| address.trim().to_owned())
    })
}
