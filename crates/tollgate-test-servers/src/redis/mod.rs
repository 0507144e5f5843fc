//! A single redis-server.

mod ability;
mod builder;
#[cfg(feature = "faults")]
mod certificate;
mod clock;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::client::{RedisClient, Value, field};
use crate::{Failure, Port, Process, until};

pub use builder::RedisBuilder;

/// A redis-server for a single test. Dropping this value kills the server and removes its folder.
///
/// All methods take `&self`, so a task can stop the server while other tasks use it. Methods that
/// inspect the server ([`cmd`](Self::cmd), [`info`](Self::info)) open a new connection over the
/// Unix socket as the default user.
#[derive(Debug)]
pub struct Redis {
    // Fields drop in order, so the process must precede its folder.
    state: Mutex<State>,
    folder: TempDir,
    port: Option<Port>,
    tls: bool,
    password: Option<String>,
    is_sentinel: bool,
    /// In microseconds.
    clock_ahead: i64,
}

#[derive(Debug)]
enum State {
    Runs(Process),
    Stopped(Process),
    Down,
}

impl Redis {
    /// Starts a server on a port of 127.0.0.1, without persistence, password or TLS.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Configures a server.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// The URL for clients: `redis://…`, or `rediss://…` with TLS. It includes the default user's
    /// password, if any.
    ///
    /// # Panics
    ///
    /// If the server was built [without a port](RedisBuilder::without_port).
    #[must_use]
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => self.url_of("", password),
            None => format!("{}://{}", self.scheme(), self.address()),
        }
    }

    /// The URL for a user. Name and password are not escaped.
    ///
    /// # Panics
    ///
    /// If the server was built [without a port](RedisBuilder::without_port).
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("{}://{user}:{password}@{}", self.scheme(), self.address())
    }

    /// The URL of the Unix socket: `redis+unix:///…`, without TLS and without the password.
    #[must_use]
    pub fn socket_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The path of the Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The server's TCP address.
    ///
    /// # Panics
    ///
    /// If the server was built [without a port](RedisBuilder::without_port).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.as_ref().expect("this server was built without_port()").address()
    }

    /// The path to the PEM certificate of the authority that signed the server's certificate.
    ///
    /// # Panics
    ///
    /// If the server was built without TLS.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        assert!(self.tls, "this server was built without tls()");
        self.folder.path().join(AUTHORITY)
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Panics
    ///
    /// If the server is down, or does not reply within 10 s.
    #[track_caller]
    pub fn cmd(&self, command: &[impl AsRef<[u8]>]) -> Value {
        match self.try_cmd(command) {
            Ok(value) => value,
            Err(error) => panic!("redis-server does not reply: {error}\n{}", self.log()),
        }
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    ///
    /// If the server is down, or does not reply within 10 s.
    pub fn try_cmd(&self, command: &[impl AsRef<[u8]>]) -> io::Result<Value> {
        // Sentinels and tests close open connections, so use a new connection each time.
        self.connect()?.try_cmd(command)
    }

    /// Opens a new connection over the Unix socket as the default user.
    ///
    /// # Errors
    ///
    /// If the server is down, or does not reply within 10 s.
    pub fn connect(&self) -> io::Result<RedisClient> {
        let mut client = RedisClient::unix(&self.socket())?;
        if let Some(password) = &self.password {
            // If AUTH fails, the next command fails too and returns the error.
            client.try_cmd(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Returns a field from `INFO ALL`, such as `connected_clients`.
    ///
    /// # Panics
    ///
    /// If INFO has no such field.
    #[must_use]
    #[track_caller]
    pub fn info(&self, name: &str) -> String {
        let info = self.ask_info("ALL");
        let value = field(info.text(), name);
        value.unwrap_or_else(|| panic!("INFO has no {name}")).to_owned()
    }

    /// How often the server has run a command since it started.
    #[must_use]
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let info = self.ask_info("commandstats");
        let Some(line) = field(info.text(), &format!("cmdstat_{command}")) else { return 0 };
        let count = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        count.and_then(|count| count.parse().ok()).expect("a count")
    }

    /// Suspends the server (SIGSTOP). Connections remain open and the kernel still receives bytes,
    /// but the server sends no replies.
    ///
    /// A stopped replica also receives its master's writes and applies them after
    /// [`cont`](Self::cont), even if the master is down by then. To lose those writes, send
    /// `CLIENT KILL TYPE REPLICA` to the master after stopping the replica.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[track_caller]
    pub fn stop(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Down) {
            State::Down => panic!("a server that is down cannot be stopped"),
            State::Runs(process) | State::Stopped(process) => {
                process.freeze();
                *state = State::Stopped(process);
            }
        }
    }

    /// Resumes the server after [`stop`](Self::stop). It first handles the requests that arrived
    /// meanwhile.
    ///
    /// # Panics
    ///
    /// If the server is down.
    #[track_caller]
    pub fn cont(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Down) {
            State::Down => panic!("a server that is down cannot continue: call restart()"),
            State::Runs(process) | State::Stopped(process) => {
                process.thaw();
                *state = State::Runs(process);
            }
        }
    }

    /// Kills the server (SIGKILL), even if it is stopped. Its port remains reserved.
    pub fn kill(&self) {
        let mut state = self.state();
        if let State::Runs(process) | State::Stopped(process) = &mut *state {
            process.kill();
        }
        *state = State::Down;
    }

    /// Kills the server if it still runs, starts it again on the same port, and waits until it
    /// replies. Data survives only with [`append_only`](RedisBuilder::append_only).
    ///
    /// # Panics
    ///
    /// If the server does not start.
    #[track_caller]
    pub fn restart(&self) {
        self.try_restart().unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// Like [`restart`](Self::restart).
    ///
    /// # Errors
    /// If the server does not start.
    pub fn try_restart(&self) -> Result<(), Failure> {
        self.try_launch()?;
        self.try_wait()
    }

    /// Like [`restart`](Self::restart) but without waiting, so a test can observe a server that is
    /// still loading its data.
    ///
    /// # Panics
    ///
    /// If redis-server is not installed.
    #[track_caller]
    pub fn launch(&self) {
        self.try_launch().unwrap_or_else(|failure| panic!("{failure}"));
    }

    fn try_launch(&self) -> Result<(), Failure> {
        self.kill();
        let folder = self.folder.path();
        let config = folder.join(CONFIG);
        let skew = (self.clock_ahead != 0).then(|| clock::shift(folder, self.clock_ahead));
        let mut args = vec![config.as_os_str()];
        if self.is_sentinel {
            args.push("--sentinel".as_ref());
        }
        let variables = skew.iter().flatten().cloned().collect::<Vec<_>>();
        let process = Process::start(NAME, "redis-server", args, &variables, folder)?;
        *self.state() = State::Runs(process);
        Ok(())
    }

    /// Waits until the server replies to PING and, if it is a replica, follows its master.
    ///
    /// # Panics
    ///
    /// If this takes longer than 20 s or the server exits. The message includes the last line of
    /// its log.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        self.try_wait().unwrap_or_else(|failure| panic!("{failure}"));
    }

    fn try_wait(&self) -> Result<(), Failure> {
        let pong = Value::Text(b"PONG".to_vec());
        let is_ready = |_: &Process| {
            self.try_cmd(&["PING"]).is_ok_and(|answer| answer == pong) && self.follows()
        };
        match &mut *self.state() {
            State::Runs(process) | State::Stopped(process) => process.until(is_ready),
            State::Down => Err(Failure::new("redis is down")),
        }
    }

    /// The exit status, or `None` while the server runs and after [`kill`](Self::kill).
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        match &mut *self.state() {
            State::Runs(process) | State::Stopped(process) => process.ended(),
            State::Down => None,
        }
    }

    /// The process id, or `None` after [`kill`](Self::kill).
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        match &*self.state() {
            State::Runs(process) | State::Stopped(process) => Some(process.id()),
            State::Down => None,
        }
    }

    /// Whether the server runs and is not stopped.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &mut *self.state() {
            State::Runs(process) => process.ended().is_none(),
            State::Stopped(_) | State::Down => false,
        }
    }

    /// Adds a line to redis.conf for the next start. If a setting appears twice, Redis uses the
    /// last line.
    ///
    /// # Panics
    ///
    /// If the disk is full.
    pub fn configure(&self, name: &str, value: &str) {
        let path = self.folder.path().join(CONFIG);
        let config = fs::read_to_string(&path).expect("written by the builder");
        fs::write(&path, format!("{config}{name} {value}\n")).expect("a full disk?");
    }

    /// Fills an [`append_only`](RedisBuilder::append_only) server with 600 keys. Its next start
    /// then takes more than a second, during which it replies `LOADING`.
    ///
    /// # Panics
    ///
    /// If the server is down or does not rewrite its append-only file within 20 s.
    pub fn fill_for_a_slow_start(&self) {
        for (name, value) in [("rdbcompression", "no"), ("appendfsync", "no")] {
            self.cmd(&["CONFIG", "SET", name, value]);
        }
        // A loading server handles requests only every 2 MB.
        let value = "x".repeat(32 << 10);
        for key in 0..600 {
            self.cmd(&["SET", &format!("filler:{key}"), &value]);
        }
        self.cmd(&["BGREWRITEAOF"]);
        until("the log is rewritten", Duration::from_secs(20), || {
            let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
            fields.iter().all(|field| self.info(field) == "0").then_some(())
        });
        // In microseconds.
        self.configure("key-load-delay", "2000");
    }

    /// The last 20 lines of the log.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The server's working directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Sends INFO up to four times, because sentinels close all connections to a server when they
    /// change its role. Other commands are not retried because they may change data.
    #[track_caller]
    fn ask_info(&self, section: &str) -> Value {
        let command = ["INFO", section];
        let answers = std::iter::repeat_with(|| self.try_cmd(&command).ok()).take(3);
        answers.flatten().next().unwrap_or_else(|| self.cmd(&command))
    }

    fn follows(&self) -> bool {
        let Ok(info) = self.try_cmd(&["INFO", "replication"]) else { return false };
        matches!(&info, Value::Text(_))
            && field(info.text(), "master_link_status").is_none_or(|link| link == "up")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "rediss" } else { "redis" }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Faster than SIGTERM, after which Redis exits only at its next timer.
        self.kill();
    }
}

const NAME: &str = "redis";
const CONFIG: &str = "redis.conf";
const LOG: &str = "redis.log";
const AUTHORITY: &str = "authority.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
