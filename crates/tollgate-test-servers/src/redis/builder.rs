//! What a server is told before it starts.

use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;

use super::{CONFIG, Redis, State, certificate};
use tollgate_replicas::Port;

/// Says what a [`Redis`] shall be, and starts it.
///
/// Values are written into its configuration as they are, so a value with spaces is
/// several.
#[derive(Clone, Debug)]
#[must_use = "a server that is not started serves nobody"]
pub struct RedisBuilder {
    lines: String,
    has_port: bool,
    tls: bool,
    password: Option<String>,
    is_sentinel: bool,
}

impl RedisBuilder {
    pub(crate) fn new() -> Self {
        // A replica gets its copy at once, where the default waits for others who may ask.
        let lines = "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n".to_owned();
        Self { lines, has_port: true, tls: false, password: None, is_sentinel: false }
    }

    pub(crate) fn sentinel() -> Self {
        Self { lines: String::new(), is_sentinel: true, ..Self::new() }
    }

    /// Any line of redis.conf; of those with one name the last counts.
    pub fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        let _ = writeln!(self.lines, "{name} {value}");
        self
    }

    /// Only the socket in the file system, no port.
    pub fn without_port(mut self) -> Self {
        self.has_port = false;
        self
    }

    /// TLS and nothing else on the port, with a certificate for 127.0.0.1 and localhost
    /// whose authority is [`Redis::authority`]. The socket stays plain.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The password of the default user, here and at the master if there is one.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", password).set("masterauth", password)
    }

    /// Another user, with rules as in `~tollgate:* +@read`; see `redis-cli ACL HELP`.
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.set("user", format_args!("{name} on >{password} {rules}"))
    }

    /// The most memory, as in `10mb`, and what goes when there is none left, as in
    /// `noeviction`.
    pub fn max_memory(self, bytes: &str, policy: &str) -> Self {
        self.set("maxmemory", bytes).set("maxmemory-policy", policy)
    }

    /// How many databases there are; sixteen if nothing is said.
    pub fn databases(self, count: u32) -> Self {
        self.set("databases", count)
    }

    /// Keeps each write on disk before it answers, so that a restart forgets nothing.
    pub fn append_only(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Follows a master, which must have a plain port and, if it has a password, this one.
    pub fn replica_of(self, master: &Redis) -> Self {
        let address = master.address();
        self.set("replicaof", format_args!("{} {}", address.ip(), address.port()))
    }

    /// Starts it and waits until it answers.
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

    /// A server that can be launched: with its folder, its configuration and its port.
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
