//! Configures and starts a single server.

use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;

use super::{CONFIG, Redis, State, certificate};
use tollgate_replicas::Port;

/// Builds a [`Redis`].
///
/// Values are written to redis.conf without quotes, so a value with spaces becomes several
/// arguments.
#[derive(Clone, Debug)]
#[must_use = "call start() to start the server"]
pub struct RedisBuilder {
    lines: String,
    has_port: bool,
    tls: bool,
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
            has_port: true,
            tls: false,
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
        self.has_port = false;
        self
    }

    /// Accepts only TLS on the port, with a certificate for 127.0.0.1 and localhost, signed by
    /// [`Redis::authority`]. The Unix socket does not use TLS.
    pub fn tls(mut self) -> Self {
        self.tls = true;
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
        let redis = self.prepare();
        redis.restart();
        redis
    }

    /// Creates the server's folder and configuration and claims its port, without starting it.
    pub(crate) fn prepare(self) -> Redis {
        let folder = tempfile::Builder::new().prefix("tollgate-").tempdir();
        let folder = folder.expect("a folder for temporary files that can be written");
        let redis = Redis {
            state: Mutex::new(State::Down),
            folder,
            port: self.has_port.then(|| Port::claim().expect("a free port")),
            tls: self.tls,
            password: self.password,
            is_sentinel: self.is_sentinel,
            clock_ahead: self.clock_ahead,
        };
        let number = redis.port.as_ref().map_or(0, Port::number);
        let mut config = format!("bind 127.0.0.1\nunixsocket {}\n", redis.socket().display(),);
        if self.tls {
            certificate::write(redis.folder.path());
            let _ = write!(
                config,
                "port 0\ntls-port {number}\ntls-cert-file {}\ntls-key-file {}\n\
                 tls-ca-cert-file {}\ntls-auth-clients no\n",
                certificate::CERTIFICATE,
                certificate::KEY,
                certificate::AUTHORITY,
            );
        } else {
            let _ = writeln!(config, "port {number}");
        }
        config.push_str(&self.lines);
        fs::write(redis.folder.path().join(CONFIG), config).expect("a full disk?");
        redis
    }
}
