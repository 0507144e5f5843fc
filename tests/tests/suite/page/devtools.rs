//! A client for Chromium's DevTools protocol: commands and events as JSON over a WebSocket.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket, client};

/// A connection to a page. Stores events in order of arrival.
pub(crate) struct DevTools {
    socket: WebSocket<TcpStream>,
    commands: u64,
    events: Vec<Value>,
}

impl DevTools {
    /// Connects to the first page of the browser at `browser`.
    pub(crate) fn connect(browser: &str) -> Self {
        let found = Self::open(browser).ask("Target.getTargets", &json!({}));
        let targets = found["targetInfos"].as_array().unwrap();
        let page = targets.iter().find(|target| target["type"] == "page").unwrap();
        let (server, _) = browser.split_once("/devtools/").unwrap();
        Self::open(&format!("{server}/devtools/page/{}", page["targetId"].as_str().unwrap()))
    }

    fn open(url: &str) -> Self {
        let address = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next()).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = client(url, stream).unwrap();
        Self { socket, commands: 0, events: Vec::new() }
    }

    /// Runs a command and returns its result.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.commands += 1;
        let command = json!({ "id": self.commands, "method": method, "params": params });
        self.socket.send(Message::text(command.to_string())).unwrap();
        loop {
            let mut message = self.receive(method);
            if message["id"] == self.commands {
                assert!(message["error"].is_null(), "{command}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Waits for an event, which may have arrived already.
    pub(crate) fn wait_for(&mut self, event: &str) {
        let start = Instant::now();
        while self.events.iter().all(|it| it["method"] != event) {
            assert!(start.elapsed() < PATIENCE, "timed out: {event}");
            let message = self.receive(event);
            self.events.push(message);
        }
    }

    /// All events until now.
    pub(crate) fn events(&mut self) -> &[Value] {
        // The response to a command arrives after all earlier events.
        self.ask("Runtime.evaluate", &json!({ "expression": "0" }));
        &self.events
    }

    fn receive(&mut self, awaited: &str) -> Value {
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => return serde_json::from_str(&text).unwrap(),
                Ok(_) => {}
                Err(error) => panic!("no answer to {awaited}: {error}"),
            }
        }
    }
}

/// Enough for a busy machine. On an idle machine, a browser starts in a second or two.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
