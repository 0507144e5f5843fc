//! Redis stops for a moment now and then, as when it forks, on a machine that is busy.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate_replicas::{Plan, Redis, Replica};

const WINDOW: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(80);
const BETWEEN_PAUSES: Duration = Duration::from_millis(420);
/// On each replica.
const CONNECTIONS: usize = 32;

/// How much of it.
#[derive(Clone, Copy)]
struct Scale {
    limit: u64,
    lasts: Duration,
    /// For each processor.
    busy_loops: usize,
}

/// The answers of all clients.
#[derive(Debug, Default)]
struct Told {
    passed: u64,
    denied: u64,
    refused: u64,
    /// From before the first request until after the last.
    took: Duration,
}

impl Told {
    /// The units that a bucket grants meanwhile: it is full, and is refilled once in each window.
    fn granted(&self, limit: u64) -> u64 {
        let took = u64::try_from(self.took.as_millis()).unwrap();
        limit + limit * took.div_ceil(1000) / WINDOW.as_secs()
    }
}

/// Two replicas of the demo over one Redis, under load, while Redis stops twice a second.
async fn pausing(scale: Scale, flags: &[&str]) -> Told {
    let folder = tempfile::tempdir().unwrap();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let redis = Redis::start(local, folder.path()).unwrap();
    let (url, limit) = (redis.url(), scale.limit.to_string());
    let usual =
        ["--store", &url, "--algorithm", "token_bucket", "--limit", &limit, "--window", "2s"];
    let replicas = ["api1", "api2"].map(|name| {
        let plan = Plan {
            program: env!("CARGO_BIN_EXE_replica").into(),
            name: name.to_owned(),
            listen: local,
            flags: usual.iter().chain(flags).map(|&flag| flag.to_owned()).collect(),
            variables: vec![("RUST_LOG".to_owned(), "warn".to_owned())],
            folder: folder.path().to_owned(),
        };
        Replica::start(plan).unwrap()
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..scale.busy_loops * processors {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || while !is_over.load(Ordering::Relaxed) {});
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for replica in &replicas {
        for _ in 0..CONNECTIONS {
            let (address, is_over) = (replica.address(), Arc::clone(&is_over));
            tasks.spawn(async move { ask_until(address, &is_over).await });
        }
    }
    while began.elapsed() < scale.lasts {
        sleep(BETWEEN_PAUSES).await;
        redis.process.freeze();
        sleep(PAUSE).await;
        redis.process.thaw();
    }
    is_over.store(true, Ordering::Relaxed);
    let mut told = Told::default();
    for one in tasks.join_all().await {
        told.passed += one.passed;
        told.denied += one.denied;
        told.refused += one.refused;
    }
    told.took = began.elapsed();
    println!("{flags:?}: {told:?}");
    told
}

/// Asks over one connection, by hand: a client that does more would be the load of the machine.
async fn ask_until(address: SocketAddr, is_over: &AtomicBool) -> Told {
    let mut told = Told::default();
    let mut stream = BufStream::new(TcpStream::connect(address).await.unwrap());
    let (mut line, mut body) = (String::new(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(b"GET /items HTTP/1.1\r\nhost: replica\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let (mut status, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].to_owned();
            }
        }
        line.clear();
        body.resize(length, 0);
        stream.read_exact(&mut body).await.unwrap();
        match &*status {
            "200" => told.passed += 1,
            "429" => told.denied += 1,
            "503" => told.refused += 1,
            status => panic!("{status}"),
        }
    }
    told
}

/// Redis grants the quota, and each of the two replicas at most half of the quota besides.
async fn the_quota_and_the_local_shares_pass(scale: Scale) {
    let told = pausing(scale, &[]).await;
    assert_eq!(told.refused, 0, "{told:?}");
    let granted = told.granted(scale.limit);
    assert!(told.passed <= 2 * granted, "at most {}: {told:?}", 2 * granted);
    // On a machine that is too busy to ask for more than the quota, all requests pass.
    let asked = told.passed + told.denied;
    let least = (granted * 3 / 5).min(asked / 2);
    assert!(told.passed >= least, "at least {least}: {told:?}");
}

/// Requests that Redis cannot decide are refused: no more than the quota passes.
async fn only_the_quota_passes_if_closed(scale: Scale) {
    let told = pausing(scale, &["--on-store-error", "closed"]).await;
    let granted = told.granted(scale.limit);
    assert!(told.passed <= granted, "at most {granted}: {told:?}");
}

const SMALL: Scale = Scale { limit: 100, lasts: Duration::from_secs(2), busy_loops: 0 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quota_and_the_local_shares_pass_while_redis_stops_now_and_then() {
    the_quota_and_the_local_shares_pass(SMALL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_quota_passes_if_closed_while_redis_stops_now_and_then() {
    only_the_quota_passes_if_closed(SMALL).await;
}

/// With `TOLLGATE_HEAVY=1`, as `cargo xtask test --all` sets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_machine_whose_redis_stops_now_and_then_keeps_the_quota() {
    if env::var("TOLLGATE_HEAVY").is_ok_and(|value| value == "1") {
        let scale = Scale { limit: 1000, lasts: Duration::from_secs(8), busy_loops: 2 };
        the_quota_and_the_local_shares_pass(scale).await;
        only_the_quota_passes_if_closed(scale).await;
    }
}
