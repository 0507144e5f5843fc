//! Configures and starts a single server.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

#[cfg(feature = "faults")]
use super::certificate;
use super::{AUTHORITY, CERTIFICATE, CONFIG, KEY, NAME, Redis, State};
use crate::{Failure, Port};

/// Builds a [`Redis`].
///
/// Values are written to redis.conf without quotes, so a value with spaces becomes several
/// arguments.
#[derive(Clone, Debug)]
#[must_use = "call start() to start the server"]
pub struct RedisBuilder {
    lines: String,
    /// `None` without a port, and 0 for a free port.
    port: Option<u16>,
    parent: PathBuf,
    /// Writes the certificates into the server's folder.
    tls: Option<fn(&Path)>,
    password: Option<String>,
    is_sentinel: bool,
    clock_ahead: i64,
}

impl RedisBuilder {
    pub(crate) fn new() -> Self {
        // By default a master delays the transfer in case more replicas connect.
        let lines = "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n".to_owned();
        Self {
            lines,
            port: Some(0),
            parent: std::env::temp_dir(),
            tls: None,
            password: None,
            is_sentinel: false,
            clock_ahead: 0,
        }
    }

    pub(crate) fn sentinel() -> Self {
        Self { lines: String::new(), is_sentinel: true, ..Self::new() }
    }

    /// Adds a line to redis.conf. If a name appears twice, Redis uses the last line.
    pub fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        let _ = writeln!(self.lines, "{name} {value}");
        self
    }

    /// Listens only on the Unix socket.
    pub fn without_port(mut self) -> Self {
        self.port = None;
        self
    }

    /// Listens on this port. Default: 0, which selects a free port.
    pub(crate) fn port(mut self, number: u16) -> Self {
        self.port = Some(number);
        self
    }

    /// Creates the server's folder in this one.
    pub(crate) fn within(mut self, folder: &Path) -> Self {
        folder.clone_into(&mut self.parent);
        self
    }

    /// Accepts only TLS on the port, with a certificate for 127.0.0.1 and localhost, signed by
    /// [`Redis::authority`]. The Unix socket does not use TLS.
    #[cfg(feature = "faults")]
    pub fn tls(mut self) -> Self {
        self.tls = Some(certificate::write);
        self
    }

    /// Sets the password of the default user. A replica uses it for its master too.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", password).set("masterauth", password)
    }

    /// Adds a user with ACL rules, for example `~tollgate:* +@read`; see `redis-cli ACL HELP`.
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.set("user", format_args!("{name} on >{password} {rules}"))
    }

    /// Sets the memory limit, for example `10mb`, and the eviction policy, for example
    /// `noeviction`.
    pub fn max_memory(self, bytes: &str, policy: &str) -> Self {
        self.set("maxmemory", bytes).set("maxmemory-policy", policy)
    }

    /// Sets the number of databases. Default: 16.
    pub fn databases(self, count: u32) -> Self {
        self.set("databases", count)
    }

    /// Writes each change to disk before replying, so a restart loses no data.
    pub fn append_only(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Sets how many microseconds the server's wall clock is ahead of the machine's, or behind if
    /// negative. Linux only.
    pub fn clock_ahead(mut self, micros: i64) -> Self {
        self.clock_ahead = micros;
        self
    }

    /// Makes the server a replica. The master must have a port without TLS, and both must use the
    /// same password, if any.
    pub fn replica_of(self, master: &Redis) -> Self {
        let address = master.address();
        self.set("replicaof", format_args!("{} {}", address.ip(), address.port()))
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    ///
    /// If redis-server is not installed or does not start.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Redis {
        self.try_start().unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Like [`start`](Self::start).
    ///
    /// # Errors
    /// The port is in use, or redis-server is missing or does not start.
    pub fn try_start(self) -> Result<Redis, Failure> {
        let redis = self.try_prepare()?;
        redis.try_restart()?;
        Ok(redis)
    }

    /// Creates the server's folder and configuration and claims its port, without starting it.
    pub(crate) fn prepare(self) -> Redis {
        self.try_prepare().unwrap_or_else(|failure| panic!("{failure}"))
    }

    fn try_prepare(self) -> Result<Redis, Failure> {
        let folder = tempfile::Builder::new().prefix("tollgate-").tempdir_in(&self.parent);
        let folder = folder.expect("a folder for temporary files that can be written");
        let redis = Redis {
            state: Mutex::new(State::Down),
            folder,
            port: self.port.map(|number| Port::given(number, NAME)).transpose()?,
            tls: self.tls.is_some(),
            password: self.password,
            is_sentinel: self.is_sentinel,
            clock_ahead: self.clock_ahead,
        };
        let number = redis.port.as_ref().map_or(0, Port::number);
        let mut config = format!("bind 127.0.0.1\nunixsocket {}\n", redis.socket().display(),);
        if let Some(write_certificates) = self.tls {
            write_certificates(redis.folder.path());
            let _ = write!(
                config,
                "port 0\ntls-port {number}\ntls-cert-file {CERTIFICATE}\ntls-key-file {KEY}\n\
                 tls-ca-cert-file {AUTHORITY}\ntls-auth-clients no\n",
            );
        } else {
            let _ = writeln!(config, "port {number}");
        }
        config.push_str(&self.lines);
        fs::write(redis.folder.path().join(CONFIG), config).expect("a full disk?");
        Ok(redis)
    }
}
