//! One redis-server.

mod ability;
mod builder;
mod certificate;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::client::{Client, Value, field};
use crate::process::Process;
use crate::wait::until;
use tollgate_replicas::Port;

pub use builder::RedisBuilder;

/// A redis-server of this test's own. It ends with this value and leaves nothing behind.
///
/// All methods take `&self`, so that a server can be stopped by one task while others
/// use it. Those that look into it ([`cmd`](Self::cmd), [`info`](Self::info)) take a
/// connection of their own over the socket, as the default user.
#[derive(Debug)]
pub struct Redis {
    // Fields are dropped in this order: the process before the folder it works in.
    state: Mutex<State>,
    folder: TempDir,
    port: Option<Port>,
    tls: bool,
    password: Option<String>,
    is_sentinel: bool,
}

#[derive(Debug)]
enum State {
    Runs(Process),
    Stopped(Process),
    Down,
}

impl Redis {
    /// A server on a port of 127.0.0.1, without persistence, password or TLS.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with more to it.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// Where clients connect: `redis://…`, or `rediss://…` if it speaks TLS, with the
    /// password of the default user if it has one.
    ///
    /// # Panics
    ///
    /// If the server was told to have no port.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => self.url_of("", password),
            None => format!("{}://{}", self.scheme(), self.address()),
        }
    }

    /// Where a user connects. Name and password go into the URL as they are.
    ///
    /// # Panics
    ///
    /// If the server was told to have no port.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("{}://{user}:{password}@{}", self.scheme(), self.address())
    }

    /// Where clients connect through the file system: `redis+unix:///…`, without TLS and
    /// without the password.
    #[must_use]
    pub fn socket_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The socket in the file system.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The address of its port.
    ///
    /// # Panics
    ///
    /// If the server was told to have no port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.as_ref().expect("this server was built without_port()").address()
    }

    /// The certificate, in PEM, of the authority that signed the server's own, for clients
    /// who shall trust it.
    ///
    /// # Panics
    ///
    /// If the server does not speak TLS.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        assert!(self.tls, "this server was built without tls()");
        self.folder.path().join(certificate::AUTHORITY)
    }

    /// Says a command and waits for its answer.
    ///
    /// # Panics
    ///
    /// If the server is down, or silent for ten seconds.
    #[track_caller]
    pub fn cmd(&self, command: &[impl AsRef<[u8]>]) -> Value {
        match self.try_cmd(command) {
            Ok(value) => value,
            Err(error) => panic!("redis-server does not answer: {error}\n{}", self.log()),
        }
    }

    /// Says a command and waits for its answer.
    ///
    /// # Errors
    ///
    /// If the server is down, or silent for ten seconds.
    pub fn try_cmd(&self, command: &[impl AsRef<[u8]>]) -> io::Result<Value> {
        // A connection each time, because sentinels and tests close those that they find.
        self.connect()?.try_cmd(command)
    }

    /// A new connection over the socket, as the default user.
    ///
    /// # Errors
    ///
    /// If the server is down, or silent for ten seconds.
    pub fn connect(&self) -> io::Result<Client> {
        let mut client = Client::unix(&self.socket())?;
        if let Some(password) = &self.password {
            // If the answer is a refusal, the next command says so again.
            client.try_cmd(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// A field of `INFO ALL`, such as `connected_clients`.
    ///
    /// # Panics
    ///
    /// If the server does not know it.
    #[must_use]
    #[track_caller]
    pub fn info(&self, name: &str) -> String {
        let info = self.ask_info("ALL");
        let value = field(info.text(), name);
        value.unwrap_or_else(|| panic!("INFO has no {name}")).to_owned()
    }

    /// How often a command ran since the server was started.
    #[must_use]
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let info = self.ask_info("commandstats");
        let Some(line) = field(info.text(), &format!("cmdstat_{command}")) else { return 0 };
        let count = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        count.and_then(|count| count.parse().ok()).expect("a count")
    }

    /// Halts it (SIGSTOP): connections stay, the system goes on accepting what is sent, and
    /// nobody answers.
    ///
    /// That holds for a replica too: it has what its master wrote meanwhile as soon as it
    /// goes on, though the master be dead by then. If that shall be lost, say `CLIENT KILL
    /// TYPE REPLICA` to the master once the replica is stopped.
    ///
    /// # Panics
    ///
    /// If it is down.
    #[track_caller]
    pub fn stop(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Down) {
            State::Down => panic!("a server that is down cannot be stopped"),
            State::Runs(process) | State::Stopped(process) => {
                process.stop();
                *state = State::Stopped(process);
            }
        }
    }

    /// Lets it go on after [`stop`](Self::stop): it first works off what has arrived.
    ///
    /// # Panics
    ///
    /// If it is down.
    #[track_caller]
    pub fn cont(&self) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Down) {
            State::Down => panic!("a server that is down cannot go on: restart() it"),
            State::Runs(process) | State::Stopped(process) => {
                process.cont();
                *state = State::Runs(process);
            }
        }
    }

    /// Ends it at once (SIGKILL), running or stopped. Its port stays reserved.
    pub fn kill(&self) {
        *self.state() = State::Down;
    }

    /// Starts it again on the same port, after [`kill`](Self::kill) if it still runs, and
    /// waits until it answers. It remembers what it was told to keep, such as with
    /// [`append_only`](RedisBuilder::append_only).
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[track_caller]
    pub fn restart(&self) {
        self.launch();
        self.wait_until_ready();
    }

    /// As [`restart`](Self::restart), but does not wait: it may be loading for a while.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[track_caller]
    pub fn launch(&self) {
        self.kill();
        let folder = self.folder.path();
        let config = folder.join(CONFIG);
        let mut args = vec![config.as_os_str()];
        if self.is_sentinel {
            args.push("--sentinel".as_ref());
        }
        let process = Process::start("redis-server", &args, folder, &folder.join(LOG));
        *self.state() = State::Runs(process);
    }

    /// Waits until it answers PING, as a replica also until it follows its master.
    ///
    /// # Panics
    ///
    /// If it does not within twenty seconds, with the last lines that it has logged.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        let what = "redis-server answers";
        until(what, Duration::from_secs(20), || {
            if let State::Runs(process) = &mut *self.state()
                && let Some(status) = process.ended()
            {
                panic!("redis-server has ended with {status}:\n{}", self.log());
            }
            let pong = self.try_cmd(&["PING"]).ok()?;
            (pong == Value::Text(b"PONG".to_vec()) && self.follows()).then_some(())
        });
    }

    /// Whether it runs, and is not stopped.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &mut *self.state() {
            State::Runs(process) => process.ended().is_none(),
            State::Stopped(_) | State::Down => false,
        }
    }

    /// Adds a line to the configuration of the next start, where the last of a name counts.
    ///
    /// # Panics
    ///
    /// If the disk is full.
    pub fn configure(&self, name: &str, value: &str) {
        let path = self.folder.path().join(CONFIG);
        let config = fs::read_to_string(&path).expect("written by the builder");
        fs::write(&path, format!("{config}{name} {value}\n")).expect("a full disk?");
    }

    /// Fills an [`append_only`](RedisBuilder::append_only) server with 600 keys, so that its next
    /// start takes more than a second. Until then it answers LOADING.
    ///
    /// # Panics
    ///
    /// If the server is down, or does not rewrite its log within twenty seconds.
    pub fn fill_for_a_slow_start(&self) {
        for (name, value) in [("rdbcompression", "no"), ("appendfsync", "no")] {
            self.cmd(&["CONFIG", "SET", name, value]);
        }
        // A server that loads looks at its clients every two megabytes.
        let value = "x".repeat(32 << 10);
        for key in 0..600 {
            self.cmd(&["SET", &format!("filler:{key}"), &value]);
        }
        self.cmd(&["BGREWRITEAOF"]);
        until("the log is rewritten", Duration::from_secs(20), || {
            let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
            fields.iter().all(|field| self.info(field) == "0").then_some(())
        });
        // Microseconds.
        self.configure("key-load-delay", "2000");
    }

    /// The last lines that it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The folder it works in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Sentinels close the connections of all clients when they change what a server is.
    /// To ask once more does no harm, as it might with any other command.
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

const CONFIG: &str = "redis.conf";
const LOG: &str = "log";
