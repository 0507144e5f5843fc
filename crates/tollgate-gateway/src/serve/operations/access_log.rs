//! The access log: a line for each request, written by a separate thread.
//!
//! Requests never wait for the file. If the queue is full, the line is dropped and counted. The
//! file is reopened on SIGHUP, and within a second after it was moved.

use std::fmt::Write as _;
use std::fs::{Metadata, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use http::header::{HOST, HeaderMap, HeaderName, REFERER, USER_AGENT};
use http::{Request, Response};
use metrics::counter;
use serde_json::{Map, Value};
use tollgate_config::plan::{AccessLogFormat, AccessLogPlan};

use crate::serve::answers::AnsweredBy;
use tollgate_proxy::Connection;

#[derive(Clone, Debug, Default)]
pub(crate) struct AccessLog(Option<Arc<LineQueue>>);

#[derive(Debug)]
struct LineQueue {
    queue: Sender<Message>,
    queued: AtomicUsize,
    reopens: AtomicBool,
    plan: AccessLogPlan,
    sampling: RandomState,
}

enum Message {
    Line(Vec<u8>),
    /// Replies when all earlier lines are written.
    Flush(Sender<()>),
}

impl AccessLog {
    pub(crate) fn start(plan: Option<&AccessLogPlan>) -> Result<Self, String> {
        let Some(plan) = plan else { return Ok(Self(None)) };
        let (file, opened) = open(plan.file.as_deref()).map_err(|error| {
            let file = plan.file.as_deref().unwrap_or_else(|| Path::new("stdout"));
            format!(
                "cannot open the access log {}: {error}; change `accessLog.file` [TG0412]",
                file.display()
            )
        })?;
        let (queue, lines) = mpsc::channel();
        let shared = Arc::new(LineQueue {
            queue,
            queued: AtomicUsize::new(0),
            reopens: AtomicBool::new(false),
            plan: plan.clone(),
            sampling: RandomState::new(),
        });
        let writer = Writer { shared: Arc::clone(&shared), file, opened, looked: Instant::now() };
        let spawned = thread::Builder::new().name("access-log".to_owned());
        let spawned = spawned.spawn(move || writer.run(&lines));
        spawned.map_err(|error| format!("cannot start the access log thread: {error} [TG0416]"))?;
        Ok(Self(Some(shared)))
    }

    pub(crate) fn reopen(&self) {
        if let Some(shared) = &self.0 {
            shared.reopens.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until all queued lines are written, but not long, because the file may be stuck.
    pub(crate) fn finish(&self) {
        let Some(shared) = &self.0 else { return };
        let (written, done) = mpsc::channel();
        if shared.queue.send(Message::Flush(written)).is_ok() {
            let _ = done.recv_timeout(LAST);
        }
    }

    /// Starts a request's line, with the request as the client sent it. Boxed, because most
    /// gateways have no access log and every response body has space for this option.
    pub(crate) fn begin<B>(
        &self,
        request: &Request<B>,
        connection: &Connection,
    ) -> Option<Box<AccessLogEntry>> {
        let shared = self.0.as_ref()?;
        let address = connection.peer.ip().to_canonical();
        let headers = request.headers();
        let forwarded = text(headers, &FORWARDED_FOR);
        // Sampled by client, so the log contains either all requests from a client or none.
        let sampled = shared.sampling.hash_one((address, &forwarded)) as f64 / u64::MAX as f64;
        if sampled >= shared.plan.sample {
            return None;
        }
        let host = request.uri().authority().map(|host| host.as_str().to_owned());
        let uri = request.uri();
        let target = uri.path_and_query().map_or_else(|| uri.path(), |target| target.as_str());
        Some(Box::new(AccessLogEntry {
            shared: Arc::clone(shared),
            at: SystemTime::now(),
            began: Instant::now(),
            address: address.to_string(),
            method: request.method().as_str().to_owned(),
            target: shortened(target),
            version: request.version(),
            host: host.or_else(|| text(headers, &HOST)),
            forwarded,
            referer: text(headers, &REFERER),
            user_agent: text(headers, &USER_AGENT),
            outcome: OnceLock::new(),
            bytes: 0,
        }))
    }
}

/// A request's log line, written on drop.
#[derive(Debug)]
pub(crate) struct AccessLogEntry {
    shared: Arc<LineQueue>,
    at: SystemTime,
    began: Instant,
    address: String,
    method: String,
    target: String,
    version: http::Version,
    host: Option<String>,
    forwarded: Option<String>,
    referer: Option<String>,
    user_agent: Option<String>,
    outcome: OnceLock<(u16, Option<AnsweredBy>)>,
    bytes: u64,
}

impl AccessLogEntry {
    /// Records the outcome. Only the first call counts.
    pub(crate) fn answered<B>(&self, response: &Response<B>) {
        let answered = AnsweredBy::of(response.extensions()).cloned();
        // Forward auth records the original request's outcome before the answer to the proxy.
        let _ = self.outcome.set((response.status().as_u16(), answered));
    }

    pub(crate) const fn sent(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// For a client that left before the response, 499 as in nginx.
    fn outcome(&self) -> (u16, Option<AnsweredBy>) {
        self.outcome.get().cloned().unwrap_or((499, None))
    }

    fn json(&self, out: &mut String) {
        let (status, answered) = self.outcome();
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
        put("time", humantime::format_rfc3339_micros(self.at).to_string().into());
        put("address", self.address.as_str().into());
        put("method", self.method.as_str().into());
        put("target", self.target.as_str().into());
        put("status", status.into());
        put("bytes", self.bytes.into());
        put("seconds", self.began.elapsed().as_secs_f64().into());
        let optional = [
            ("host", &self.host),
            ("x_forwarded_for", &self.forwarded),
            ("referer", &self.referer),
            ("user_agent", &self.user_agent),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                put(name, value.as_str().into());
            }
        }
        match answered {
            Some(AnsweredBy::Denial { code, policies }) => {
                put("denial", code.into());
                if !policies.is_empty() {
                    put("policies", policies.into());
                }
            }
            Some(AnsweredBy::Gateway(fault)) => drop(put("denial", fault.code().into())),
            None => {}
        }
        let _ = writeln!(out, "{}", Value::Object(line));
    }

    fn combined(&self, out: &mut String) {
        // For example 2026-11-22T20:53:00Z.
        let at = humantime::format_rfc3339_seconds(self.at).to_string();
        let month = at[5..7].parse::<usize>().ok().and_then(|month| MONTHS.get(month - 1));
        let (year, day, time) = (&at[..4], &at[8..10], &at[11..19]);
        let (month, status) = (month.unwrap_or(&"Jan"), self.outcome().0);
        let _ = write!(out, "{} - - [{day}/{month}/{year}:{time} +0000] \"", self.address);
        let _ = write!(out, "{} {} {:?}\" ", self.method, Escaped(&self.target), self.version);
        let _ = write!(out, "{status} {}", self.bytes);
        for field in [&self.referer, &self.user_agent] {
            let _ = write!(out, " \"{}\"", Escaped(field.as_deref().unwrap_or("-")));
        }
        out.push('\n');
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        let mut line = String::with_capacity(256);
        match self.shared.plan.format {
            AccessLogFormat::Combined => self.combined(&mut line),
            AccessLogFormat::Json => self.json(&mut line),
        }
        let size = line.len();
        let queued = self.shared.queued.fetch_add(size, Ordering::Relaxed);
        let line = Message::Line(line.into_bytes());
        if queued + size > MOST_QUEUED || self.shared.queue.send(line).is_err() {
            self.shared.queued.fetch_sub(size, Ordering::Relaxed);
            counter!(DROPPED).increment(1);
        }
    }
}

/// A quoted field, escaped like in nginx.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => write!(f, "\\x{byte:02X}"),
            _ => f.write_char(char::from(byte)),
        })
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut lines = headers.get_all(name).iter();
    let mut text = String::from_utf8_lossy(lines.next()?.as_bytes()).into_owned();
    for line in lines {
        text.push_str(", ");
        text.push_str(&String::from_utf8_lossy(line.as_bytes()));
    }
    Some(shortened(&text))
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(MOST_OF_A_FIELD);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

struct Writer {
    shared: Arc<LineQueue>,
    file: Box<dyn Write + Send>,
    opened: Option<Identity>,
    looked: Instant,
}

/// Distinguishes a new file at the same path from the old file.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(file: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino())
}

#[cfg(not(unix))]
const fn identity(_: &Metadata) -> Identity {
    (0, 0)
}

fn open(path: Option<&Path>) -> io::Result<(Box<dyn Write + Send>, Option<Identity>)> {
    let Some(path) = path else { return Ok((Box::new(io::stdout()), None)) };
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let opened = file.metadata().ok().as_ref().map(identity);
    Ok((Box::new(file), opened))
}

impl Writer {
    fn run(mut self, lines: &Receiver<Message>) {
        let mut batch = Vec::new();
        // The writer owns a sender itself, so `recv` never fails and the thread runs as long as the
        // process.
        while let Ok(first) = lines.recv() {
            let mut flushed = Vec::new();
            for message in std::iter::once(first).chain(lines.try_iter()) {
                match message {
                    Message::Line(line) => batch.extend_from_slice(&line),
                    Message::Flush(done) => flushed.push(done),
                }
                if batch.len() >= BATCH {
                    break;
                }
            }
            self.write(&mut batch);
            for done in flushed {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, batch: &mut Vec<u8>) {
        self.look();
        if let Err(error) = self.file.write_all(batch).and_then(|()| self.file.flush()) {
            let lines = batch.iter().filter(|byte| **byte == b'\n').count();
            counter!(DROPPED).increment(lines as u64);
            tracing::error!(%error, lines, "cannot write to the access log");
        }
        self.shared.queued.fetch_sub(batch.len(), Ordering::Relaxed);
        batch.clear();
    }

    /// Reopens the file if necessary. If that fails, writes to the old file until it works.
    fn look(&mut self) {
        let Some(path) = self.shared.plan.file.as_deref() else { return };
        let is_asked = self.shared.reopens.swap(false, Ordering::Relaxed);
        if !is_asked && self.looked.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked = Instant::now();
        if is_asked || path.metadata().ok().as_ref().map(identity) != self.opened {
            match open(Some(path)) {
                Ok((file, opened)) => (self.file, self.opened) = (file, opened),
                Err(error) => tracing::error!(%error, "cannot reopen the access log"),
            }
        }
    }
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

pub(crate) const DROPPED: &str = "tollgate_gateway_access_log_dropped_total";
const MOST_QUEUED: usize = 4 << 20;
const MOST_OF_A_FIELD: usize = 4 << 10;
const BATCH: usize = 64 << 10;
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(1);
