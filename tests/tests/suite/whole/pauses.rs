//! Redis stops for a moment now and then, as when it forks, on a machine that is busy.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// The answers to all clients, while they ask.
#[derive(Debug, Default)]
struct Answers {
    passed: AtomicU64,
    denied: AtomicU64,
    refused: AtomicU64,
}

impl Answers {
    /// Whether a request passed and another one did not.
    fn are_mixed(&self) -> bool {
        let has = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        has(&self.passed) && (has(&self.denied) || has(&self.refused))
    }
}

/// The number of answers of each kind in the end.
#[derive(Debug)]
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
    let answers = Arc::new(Answers::default());
    let mut tasks = JoinSet::new();
    for replica in &replicas {
        for _ in 0..CONNECTIONS {
            let (address, answers) = (replica.address(), Arc::clone(&answers));
            let is_over = Arc::clone(&is_over);
            tasks.spawn(async move { ask_until(address, &answers, &is_over).await });
        }
    }
    // However slow the machine is, some requests pass and some do not.
    while began.elapsed() < scale.lasts || !answers.are_mixed() {
        sleep(BETWEEN_PAUSES).await;
        redis.process.freeze();
        sleep(PAUSE).await;
        redis.process.thaw();
    }
    is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let [passed, denied, refused] = [&answers.passed, &answers.denied, &answers.refused]
        .map(|count| count.load(Ordering::Relaxed));
    let told = Told { passed, denied, refused, took: began.elapsed() };
    println!("{flags:?}: {told:?}");
    told
}

/// Asks over one connection, by hand: a client that does more would be the load of the machine.
async fn ask_until(address: SocketAddr, answers: &Answers, is_over: &AtomicBool) {
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
        let count = match &*status {
            "200" => &answers.passed,
            "429" => &answers.denied,
            "503" => &answers.refused,
            status => panic!("{status}"),
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Redis grants the quota, and each of the two replicas at most half of the quota besides.
async fn the_quota_and_the_local_shares_pass(scale: Scale) {
    let told = pausing(scale, &[]).await;
    assert!(told.refused == 0 && told.denied > 0, "{told:?}");
    let granted = told.granted(scale.limit);
    assert!(told.passed <= 2 * granted, "at most {}: {told:?}", 2 * granted);
    // A replica denies a request only after Redis has granted the quota, or after the replica has
    // granted its own half of it.
    assert!(told.passed >= scale.limit / 2, "at least {}: {told:?}", scale.limit / 2);
}

/// Requests that Redis cannot decide are refused: no more than the quota passes.
async fn only_the_quota_passes_if_closed(scale: Scale) {
    let told = pausing(scale, &["--on-store-error", "closed"]).await;
    let granted = told.granted(scale.limit);
    assert!((1..=granted).contains(&told.passed), "at most {granted}: {told:?}");
}

/// Small by default. With `TOLLGATE_HEAVY=1`, as `cargo xtask test --all` sets it, the machine is busy
/// besides.
fn scale() -> Scale {
    if env::var("TOLLGATE_HEAVY").is_ok_and(|value| value == "1") {
        Scale { limit: 1000, lasts: Duration::from_secs(8), busy_loops: 2 }
    } else {
        Scale { limit: 100, lasts: Duration::from_secs(2), busy_loops: 0 }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quota_and_the_local_shares_pass_while_redis_stops_now_and_then() {
    the_quota_and_the_local_shares_pass(scale()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_quota_passes_if_closed_while_redis_stops_now_and_then() {
    only_the_quota_passes_if_closed(scale()).await;
}
