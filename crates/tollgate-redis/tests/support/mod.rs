//! A redis-server of one's own and a client of sixty lines, which can keep thousands of
//! calls under way where a test would else wait for each.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]

pub mod pair;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tollgate_core::Timestamp;
use tollgate_redis::protocol::{Batch, Reply, SHA1, TEXT};

/// A server without persistence. It ends with its handle.
///
/// It listens on a socket in the file system: a port that was free may be another
/// server's by the time this one asks for it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    pub fn start() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "tollgate-{}-{}.sock",
            std::process::id(),
            STARTED.fetch_add(1, Ordering::Relaxed)
        );
        let socket = std::env::temp_dir().join(name);
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket"])
            .arg(&socket)
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot start redis-server: {error}; run `cargo xtask test`, which installs it"
                )
            });
        Self { child, socket }
    }

    /// Where it is, for a store. It may take a moment to be there.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }

    /// A connection that knows the script.
    pub fn connect(&self) -> Client {
        let client = self.connect_with(TEXT);
        assert_eq!(client.sha1, SHA1.as_bytes());
        client
    }

    /// A connection that is a replica to the server: from now on the server counts the bytes
    /// that it tells replicas. It sends no pings, so that only writes count.
    pub fn replica(&self) -> Client {
        let mut replica = self.connect();
        for (name, value) in [
            ("repl-ping-replica-period", "86400"),
            ("repl-diskless-sync", "yes"),
            ("repl-diskless-sync-delay", "0"),
        ] {
            let set = replica.run(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]);
            assert_eq!(set, Value::Text(b"OK".to_vec()), "{name}");
        }
        // What takes the data from the socket needs no file.
        replica.run(&[b"REPLCONF", b"capa", b"eof"]);
        let Value::Text(answer) = replica.run(&[b"PSYNC", b"?", b"-1"]) else { panic!("no PSYNC") };
        assert!(answer.starts_with(b"FULLRESYNC"), "{}", String::from_utf8_lossy(&answer));
        replica
    }

    /// A connection that knows a variant of the script.
    pub fn connect_with(&self, text: &str) -> Client {
        let deadline = Instant::now() + Duration::from_secs(10);
        let stream = loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => panic!("redis-server: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let stream = BufReader::new(stream);
        let mut client = Client { out: Vec::new(), stream, sha1: Vec::new() };
        match client.run(&[b"SCRIPT", b"LOAD", text.as_bytes()]) {
            Value::Text(sha1) => client.sha1 = sha1,
            other => panic!("{other:?}"),
        }
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Nil,
    Number(i64),
    Text(Vec<u8>),
    Error(String),
    List(Vec<Self>),
}

#[derive(Debug)]
pub struct Client {
    out: Vec<u8>,
    stream: BufReader<UnixStream>,
    sha1: Vec<u8>,
}

impl Client {
    /// Says a command; [`hear`](Self::hear) gets the answers in their order.
    pub fn say(&mut self, command: &[&[u8]]) {
        let _ = write!(self.out, "*{}\r\n", command.len());
        for word in command {
            let _ = write!(self.out, "${}\r\n", word.len());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub fn say_call(&mut self, batch: &Batch, time: Option<Timestamp>) {
        let args = batch.args(time);
        let count = batch.keys().len().to_string();
        let sha1 = self.sha1.clone();
        let mut command: Vec<&[u8]> = vec![b"EVALSHA", &sha1, count.as_bytes()];
        command.extend(batch.keys());
        command.extend(args.iter().map(Vec::as_slice));
        self.say(&command);
    }

    pub fn hear(&mut self) -> Value {
        if !self.out.is_empty() {
            self.stream.get_mut().write_all(&self.out).expect("redis-server reads");
            self.out.clear();
        }
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("redis-server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Value::Text(rest.as_bytes().to_vec()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Number(number()),
            "$" | "*" if number() < 0 => Value::Nil,
            "$" => {
                let mut text = vec![0; usize::try_from(number()).expect("a length") + 2];
                self.stream.read_exact(&mut text).expect("redis-server answers");
                text.truncate(text.len() - 2);
                Value::Text(text)
            }
            "*" => Value::List((0..number()).map(|_| self.hear()).collect()),
            _ => panic!("not RESP: {line}"),
        }
    }

    pub fn hear_reply(&mut self, batch: &Batch) -> Reply {
        match self.hear() {
            Value::Text(reply) => batch.parse(&reply).expect("a reply to this call"),
            other => panic!("{other:?}"),
        }
    }

    pub fn run(&mut self, command: &[&[u8]]) -> Value {
        self.say(command);
        self.hear()
    }

    pub fn call(&mut self, batch: &Batch, time: Option<Timestamp>) -> Reply {
        self.say_call(batch, time);
        self.hear_reply(batch)
    }

    /// How often a command ran, and the microseconds it took in all.
    pub fn stats(&mut self, command: &str) -> (u64, u64) {
        let info = self.info("commandstats");
        let name = format!("cmdstat_{command}:");
        let Some(line) = info.lines().find_map(|line| line.strip_prefix(&name)) else {
            return (0, 0);
        };
        let field = |name: &str| {
            let field = line.split(',').find_map(|field| field.strip_prefix(name));
            field.and_then(|text| text.parse().ok()).expect("a count")
        };
        (field("calls="), field("usec="))
    }

    /// How many bytes the server has told its replicas.
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

    /// Microseconds of processor time that the server has used.
    pub fn cpu_time(&mut self) -> f64 {
        let info = self.info("cpu");
        let names = ["used_cpu_user:", "used_cpu_sys:"];
        let used = info.lines().filter_map(|line| {
            names.iter().find_map(|name| line.strip_prefix(name)?.parse::<f64>().ok())
        });
        used.sum::<f64>() * 1e6
    }
}
