//! A separate redis-server, and a client that knows the script. It can pipeline thousands of calls
//! where a test would otherwise wait for each.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]

pub mod pair;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tollgate_core::{Algorithm, LeakyMode, Micros, Refill, Resolution, Timestamp};
use tollgate_redis::protocol::{Batch, CROSS_SLOT_TEXT, Reply, SHA1, TEXT};
use tollgate_redis::{RedisStore, RedisStoreBuilder};
use tollgate_test_servers::Redis;

pub use tollgate_test_servers::Value;

/// Every rate limiting algorithm, in every mode. A queue's longest wait is in microseconds.
pub const fn modes(max_wait: u64) -> [Algorithm; 9] {
    let max_wait = Some(Micros::new(max_wait));
    [
        Algorithm::FixedWindowCounter,
        Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
        Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth },
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket { refill: Refill::Greedy },
        Algorithm::TokenBucket { refill: Refill::Interval },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } },
    ]
}

/// Many servers share this machine.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Settings for a store that waits for a machine that is busy with other tests.
pub fn patient(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url).expect("a URL").timeout(PATIENCE)
}

/// Like [`patient`], in a separate namespace, so several tests can use the same server.
pub fn separate(url: &str) -> RedisStoreBuilder {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let number = STORES.fetch_add(1, Ordering::Relaxed);
    patient(url).namespace(format!("tollgate:store-{number}"))
}

/// Connects a store.
pub async fn connected(builder: RedisStoreBuilder) -> RedisStore {
    let store = builder.connect().expect("settings");
    let connected = tokio::time::timeout(2 * PATIENCE, store.connected()).await;
    connected.expect("a connection");
    store
}

/// A server without persistence, on a Unix socket. It is stopped when dropped.
#[derive(Debug)]
pub struct Server(Redis);

impl Server {
    pub fn start() -> Self {
        Self(Redis::builder().without_port().start())
    }

    /// Returns the URL for a store.
    pub fn url(&self) -> String {
        self.0.socket_url()
    }

    pub fn allows_cross_slot(&self) -> bool {
        self.0.allows_cross_slot()
    }

    /// Opens a connection that knows the script.
    pub fn connect(&self) -> ScriptClient {
        let client = self.connect_with(TEXT);
        assert_eq!(client.sha1, SHA1.as_bytes());
        client
    }

    /// Opens a connection that is a replica to the server, which then counts the bytes that it
    /// sends to replicas. It sends no pings, so only writes count.
    pub fn replica(&self) -> ScriptClient {
        let mut replica = self.connect();
        for (name, value) in [
            ("repl-ping-replica-period", "86400"),
            ("repl-diskless-sync", "yes"),
            ("repl-diskless-sync-delay", "0"),
        ] {
            let set = replica.run(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]);
            assert_eq!(set, Value::Text(b"OK".to_vec()), "{name}");
        }
        // The program that reads the socket needs no file.
        replica.run(&[b"REPLCONF", b"capa", b"eof"]);
        let Value::Text(answer) = replica.run(&[b"PSYNC", b"?", b"-1"]) else { panic!("no PSYNC") };
        assert!(answer.starts_with(b"FULLRESYNC"), "{}", String::from_utf8_lossy(&answer));
        replica
    }

    /// Opens a connection that knows a variant of the script.
    pub fn connect_with(&self, text: &str) -> ScriptClient {
        let connection = self.0.connect().expect("a server that has answered");
        let is_cross_slot = text == CROSS_SLOT_TEXT;
        let mut client = ScriptClient { connection, sha1: Vec::new(), is_cross_slot };
        match client.run(&[b"SCRIPT", b"LOAD", text.as_bytes()]) {
            Value::Text(sha1) => client.sha1 = sha1,
            other => panic!("{other:?}"),
        }
        client
    }
}

#[derive(Debug)]
pub struct ScriptClient {
    connection: tollgate_test_servers::RedisClient,
    sha1: Vec<u8>,
    /// Whether the call's keys are among its arguments.
    is_cross_slot: bool,
}

impl ScriptClient {
    /// Sends a command; [`hear`](Self::hear) receives the answers in order.
    pub fn say(&mut self, command: &[&[u8]]) {
        self.connection.say(command);
    }

    pub fn say_call(&mut self, batch: &Batch, time: Option<Timestamp>) {
        let keys: Vec<_> = batch.keys().map(<[u8]>::to_vec).collect();
        let mut args = batch.args(time).to_vec();
        if !self.is_cross_slot {
            return self.say_script(&keys, &args);
        }
        args.resize(4, Vec::new());
        self.say_script(&[], &[args, keys].concat());
    }

    pub fn say_script(&mut self, keys: &[Vec<u8>], args: &[Vec<u8>]) {
        let count = keys.len().to_string();
        let sha1 = self.sha1.clone();
        let mut command: Vec<&[u8]> = vec![b"EVALSHA", &sha1, count.as_bytes()];
        command.extend(keys.iter().chain(args).map(Vec::as_slice));
        self.say(&command);
    }

    pub fn hear(&mut self) -> Value {
        self.connection.hear()
    }

    pub fn hear_reply(&mut self, batch: &Batch) -> Reply {
        match self.hear() {
            Value::Text(reply) => batch.parse(&reply).expect("a reply to this call"),
            other => panic!("{other:?}"),
        }
    }

    pub fn run(&mut self, command: &[&[u8]]) -> Value {
        self.connection.cmd(command)
    }

    /// Queries when a key expires, in milliseconds; -1 if never, -2 if there is no key.
    pub fn say_expiry(&mut self, key: &[u8]) {
        self.say(&[b"EVAL", EXPIRY.as_bytes(), b"1", key]);
    }

    /// Returns when a key expires, in milliseconds; -1 if never, -2 if there is no key.
    pub fn expiry(&mut self, key: &[u8]) -> Value {
        self.say_expiry(key);
        self.hear()
    }

    pub fn call(&mut self, batch: &Batch, time: Option<Timestamp>) -> Reply {
        self.say_call(batch, time);
        self.hear_reply(batch)
    }

    /// Returns how often a command ran, and its total time in microseconds.
    pub fn stats(&mut self, command: &str) -> (u64, u64) {
        self.connection.stats(command)
    }

    /// Returns how many bytes the server has sent to its replicas.
    pub fn replicated(&mut self) -> u64 {
        let info = self.info("replication");
        let offset = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
        offset.and_then(|text| text.parse().ok()).expect("an offset")
    }

    fn info(&mut self, section: &str) -> String {
        match self.run(&[b"INFO", section.as_bytes()]) {
            Value::Text(info) => String::from_utf8(info).expect("ASCII"),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the processor time that the server has used, in microseconds.
    pub fn cpu_time(&mut self) -> f64 {
        let info = self.info("cpu");
        let names = ["used_cpu_user:", "used_cpu_sys:"];
        let used = info.lines().filter_map(|line| {
            names.iter().find_map(|name| line.strip_prefix(name)?.parse::<f64>().ok())
        });
        used.sum::<f64>() * 1e6
    }
}

/// Returns when a key expires if its state is fresh at this instant. It expires one to two seconds
/// later, in milliseconds.
pub fn expiry_of(fresh_at: Timestamp) -> i64 {
    i64::try_from((fresh_at.as_micros() / 1_000_000 + 2) * 1_000).expect("a time")
}

/// Redis before 7 has no PEXPIRETIME. There the expiry is the remaining lifetime plus the time,
/// which is read twice until both readings are in the same millisecond.
const EXPIRY: &str = "
    if redis.REDIS_VERSION_NUM then return redis.call('PEXPIRETIME', KEYS[1]) end
    local function now()
      local time = redis.call('TIME')
      return time[1] * 1000 + math.floor(time[2] / 1000)
    end
    local at, left
    repeat
      at, left = now(), redis.call('PTTL', KEYS[1])
    until at == now()
    return left < 0 and left or at + left";
