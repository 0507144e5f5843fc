//! Redis pauses briefly and repeatedly, like it does when it forks, on a busy machine.

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
/// Per replica.
const CONNECTIONS: usize = 32;

/// The size of the test.
#[derive(Clone, Copy)]
struct Scale {
    limit: u64,
    lasts: Duration,
    /// Per processor.
    busy_loops: usize,
}

/// Counts the responses to all clients while the test runs.
#[derive(Debug, Default)]
struct Answers {
    passed: AtomicU64,
    denied: AtomicU64,
    refused: AtomicU64,
}

impl Answers {
    /// Whether at least one request was allowed and at least one was not.
    fn are_mixed(&self) -> bool {
        let has = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        has(&self.passed) && (has(&self.denied) || has(&self.refused))
    }
}

/// The final numbers of responses.
#[derive(Debug)]
struct Totals {
    passed: u64,
    denied: u64,
    refused: u64,
    /// The time from before the first request until after the last response.
    took: Duration,
}

impl Totals {
    /// The units that a bucket grants in this time: it starts full and is refilled once per window.
    fn granted(&self, limit: u64) -> u64 {
        let took = u64::try_from(self.took.as_millis()).unwrap();
        limit + limit * took.div_ceil(1000) / WINDOW.as_secs()
    }
}

/// Runs two replicas under load while their Redis pauses twice per second.
async fn pausing(scale: Scale, flags: &[&str]) -> Totals {
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
    // On a slow machine, continue until some requests are allowed and some are not.
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
    let totals = Totals { passed, denied, refused, took: began.elapsed() };
    println!("{flags:?}: {totals:?}");
    totals
}

/// Sends requests over one connection with hand-written HTTP. A full client would need too much
/// processor time.
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

/// Redis grants the quota, and each of the two replicas at most another half.
async fn the_quota_and_the_local_shares_pass(scale: Scale) {
    let totals = pausing(scale, &[]).await;
    assert!(totals.refused == 0 && totals.denied > 0, "{totals:?}");
    let granted = totals.granted(scale.limit);
    assert!(totals.passed <= 2 * granted, "at most {}: {totals:?}", 2 * granted);
    // A replica denies a request only after Redis has granted the quota, or after the replica has
    // granted its own half.
    assert!(totals.passed >= scale.limit / 2, "at least {}: {totals:?}", scale.limit / 2);
}

/// Requests that Redis cannot decide are rejected, so the quota is never exceeded.
async fn only_the_quota_passes_if_closed(scale: Scale) {
    let totals = pausing(scale, &["--on-store-error", "closed"]).await;
    let granted = totals.granted(scale.limit);
    assert!((1..=granted).contains(&totals.passed), "at most {granted}: {totals:?}");
}

/// Small by default. With `TOLLGATE_HEAVY=1`, which `cargo xtask test --all` sets, the test is
/// larger and runs busy loops.
fn scale() -> Scale {
    if env::var("TOLLGATE_HEAVY").is_ok_and(|value| value == "1") {
        Scale { limit: 1000, lasts: Duration::from_secs(8), busy_loops: 2 }
    } else {
        Scale { limit: 100, lasts: Duration::from_secs(2), busy_loops: 0 }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_pauses_allow_only_local_shares() {
    the_quota_and_the_local_shares_pass(scale()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_pauses_never_exceed_closed_quota() {
    only_the_quota_passes_if_closed(scale()).await;
}
