//! A browser without a window, and one page in it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chromiumoxide::cdp::browser_protocol::emulation::{
    MediaFeature, SetDeviceMetricsOverrideParams, SetEmulatedMediaParams,
};
use chromiumoxide::cdp::browser_protocol::input::{DispatchKeyEventParams, DispatchKeyEventType};
use chromiumoxide::cdp::browser_protocol::log::EventEntryAdded;
use chromiumoxide::cdp::browser_protocol::page::CaptureScreenshotFormat;
use chromiumoxide::cdp::js_protocol::runtime::{
    ConsoleApiCalledType, EventConsoleApiCalled, EventExceptionThrown,
};
use chromiumoxide::page::ScreenshotParams;
use chromiumoxide::{Browser, Command, Page};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};
use tollgate_replicas::Process;

/// A page in a browser of its own. Both end with it.
pub(crate) struct Tab {
    page: Page,
    complaints: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
    _browser: Browser,
    _process: Process,
}

impl Tab {
    /// Opens `url`. Files of the browser go into `folder`.
    pub(crate) async fn open(url: &str, folder: &Path) -> Self {
        let process = start(folder);
        let (browser, mut handler) = Browser::connect(address(&process).await).await.unwrap();
        let mut tasks = vec![tokio::spawn(async move { while handler.next().await.is_some() {} })];
        let page = browser.new_page("about:blank").await.unwrap();
        page.enable_log().await.unwrap();
        page.enable_runtime().await.unwrap();
        let complaints = Arc::default();
        let thrown = page.event_listener::<EventExceptionThrown>().await.unwrap();
        tasks.push(hear(&complaints, thrown, |it| {
            Some(format!("thrown: {:?}", it.exception_details))
        }));
        let said = page.event_listener::<EventConsoleApiCalled>().await.unwrap();
        tasks.push(hear(&complaints, said, |it| {
            let is_bad = matches!(
                it.r#type,
                ConsoleApiCalledType::Error
                    | ConsoleApiCalledType::Warning
                    | ConsoleApiCalledType::Assert
            );
            is_bad.then(|| format!("console: {:?}", it.args))
        }));
        let logged = page.event_listener::<EventEntryAdded>().await.unwrap();
        tasks.push(hear(&complaints, logged, |it| {
            // A denial, and a replica that is away, are no mistakes of the page's.
            let is_of_network = it.entry.source.as_ref() == "network";
            (!is_of_network).then(|| format!("log: {} {:?}", it.entry.text, it.entry.url))
        }));
        page.goto(url).await.unwrap();
        Self { page, complaints, tasks, _browser: browser, _process: process }
    }

    /// The value of an expression of JavaScript.
    pub(crate) async fn value<T: DeserializeOwned>(&self, expression: &str) -> T {
        let value = self.page.evaluate(expression).await;
        let value = value.unwrap_or_else(|error| panic!("{expression}: {error}"));
        value.into_value().unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Runs statements of JavaScript.
    pub(crate) async fn run(&self, statements: &str) {
        let done = self.page.evaluate(format!("(() => {{ {statements} }})()")).await;
        // What has no value is no error, while what is thrown is one.
        done.unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// What the browser says to a command.
    pub(crate) async fn ask<C: Command>(&self, command: C) -> C::Response {
        self.page.execute(command).await.unwrap().result
    }

    /// What can be read of the first such element; empty if there is none.
    pub(crate) async fn text(&self, selector: &str) -> String {
        self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''")).await
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let start = Instant::now();
        while !self.value::<bool>(&format!("Boolean({expression})")).await {
            if start.elapsed() > PATIENCE {
                let shown: String = self.value("document.body.innerText").await;
                panic!("in vain: {expression}\n{shown}\n{:?}", self.complaints());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until such an element has this text in it.
    pub(crate) async fn shows(&self, selector: &str, text: &str) {
        self.until(&format!("document.querySelector({selector:?})?.innerText.includes({text:?})"))
            .await;
    }

    /// Presses a key: `Tab`, `Enter`, or a letter.
    pub(crate) async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            " " => (32, Some(" ")),
            letter => (0, Some(letter)),
        };
        for kind in [DispatchKeyEventType::KeyDown, DispatchKeyEventType::KeyUp] {
            let mut event = DispatchKeyEventParams::builder()
                .r#type(kind.clone())
                .key(key)
                .windows_virtual_key_code(code);
            if let (DispatchKeyEventType::KeyDown, Some(text)) = (kind, text) {
                event = event.text(text);
            }
            self.ask(event.build().unwrap()).await;
        }
    }

    /// Goes on with Tab until the element that has the focus makes this expression true.
    pub(crate) async fn tab_to(&self, expression: &str) {
        for _ in 0..60 {
            self.press("Tab").await;
            if self.value::<bool>(&format!("Boolean({expression})")).await {
                return;
            }
        }
        panic!("no key leads to {expression}");
    }

    /// A screen of this width and a colour scheme.
    pub(crate) async fn look(&self, width: i64, height: i64, scheme: &str) {
        let screen = SetDeviceMetricsOverrideParams::new(width, height, 1.0, width < 500);
        self.ask(screen).await;
        let scheme = MediaFeature::new("prefers-color-scheme", scheme);
        let media = SetEmulatedMediaParams::builder().feature(scheme).build();
        self.ask(media).await;
    }

    /// The whole page as a PNG.
    pub(crate) async fn picture(&self) -> Vec<u8> {
        let params = ScreenshotParams::builder().format(CaptureScreenshotFormat::Png);
        self.page.screenshot(params.full_page(true).build()).await.unwrap()
    }

    /// Errors and warnings that a user would find in the console.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap().clone()
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn hear<E: Send + Sync + 'static>(
    complaints: &Arc<Mutex<Vec<String>>>,
    mut events: impl Stream<Item = Arc<E>> + Unpin + Send + 'static,
    complaint: impl Fn(&E) -> Option<String> + Send + 'static,
) -> JoinHandle<()> {
    let complaints = Arc::clone(complaints);
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            complaints.lock().unwrap().extend(complaint(&event));
        }
    })
}

/// On a leash, so that it ends with its test in whatever way that ends.
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
        // It is to ask nobody but the page's own servers.
        "--disable-background-networking",
        "--disable-component-update",
    ];
    // Chromium's sandbox is made of namespaces of users, and it refuses to make one for root,
    // whom it could not hold. What it shows here is ours.
    if std::fs::metadata("/proc/self").is_ok_and(|of_this| of_this.uid() == 0) {
        args.push("--no-sandbox");
    }
    args.push("about:blank");
    let home = ("HOME".to_owned(), folder.display().to_string());
    Process::start("chromium", "chromium", args, &[home], folder)
        .unwrap_or_else(|failure| panic!("{failure}"))
}

/// Where it is told what to do, which it says itself.
async fn address(process: &Process) -> String {
    let start = Instant::now();
    loop {
        let said = process.said();
        if let Some(address) =
            said.lines().find_map(|line| line.strip_prefix("DevTools listening on "))
        {
            return address.trim().to_owned();
        }
        assert!(start.elapsed() < PATIENCE, "chromium is not up; it said: {said}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Enough for a busy machine: a browser takes a second or two to start on an idle one.
const PATIENCE: Duration = Duration::from_secs(30);
