//! `balancer.sh` against one server, and against three servers that take turns.

use std::ffi::OsString;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use demo::args::Args;
use demo::{app, limits};
use tokio::net::TcpListener;
use tollgate::MemoryStore;
use tollgate::store::{ManualClock, Micros, Timestamp};
use tower::ServiceExt;

use super::support::Replica;

fn balancer(args: &[&str]) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/balancer.sh");
    Command::new("bash").arg(script).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn scenario_passes_on_one_server() {
    let replica = Replica::start(&["--server-id", "api1"]);
    let output = balancer(&[&replica.url()]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    for line in [
        "  1  GET     200  remaining  99  api1",
        " 10  POST    201  remaining  70  api1",
        " 15  SEARCH  200  remaining  55  api1",
        " 20  DELETE  204  remaining   5  api1",
        " 21  POST    201  remaining   0  api1",
        " 22  GET     429  remaining   0  api1",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    assert!(!printed.contains("took turns"), "{printed}");
}

#[test]
fn scenario_stops_at_first_difference() {
    let replica = Replica::start(&["--limit", "99"]);
    let output = balancer(&[&replica.url()]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("FAILED at request 1: remaining '98', expected 99"), "{printed}");
    assert!(!printed.contains("  2  GET"), "{printed}");
}

#[test]
fn missing_server_exits_with_2() {
    // An unused port below 1024, which no other test can take.
    let output = balancer(&["http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: no answer from http://127.0.0.1:1: "));
}

#[test]
fn invalid_arguments_exit_with_2() {
    for (args, expected) in [
        (&["--servers", "few"][..], "error: --servers 'few': expected a whole number from 1"),
        (&["--window"], "error: --window '': expected a whole number from 1"),
        (&["--wiat"], "error: unknown option --wiat; see -h"),
        (&["http://a", "http://b"], "error: expected one URL, got more; see -h"),
    ] {
        let output = balancer(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).starts_with(expected), "{args:?}: {output:?}");
    }
}

/// Three replicas in this process with a shared store. A load balancer selects replicas with `due`.
fn three(due: fn(usize) -> usize) -> Router {
    let store = MemoryStore::new();
    let replicas = ["api1", "api2", "api3"].map(|name| {
        let line = ["demo", "--server-id", name].map(OsString::from);
        let args = Args::from_command_line(line).unwrap();
        app::router(&args.server_id, limits::layer(&args, store.clone()).unwrap())
    });
    let requests = Arc::new(AtomicUsize::new(0));
    Router::new().fallback_service(tower::service_fn(move |request| {
        let due = due(requests.fetch_add(1, Ordering::Relaxed));
        replicas[due].clone().oneshot(request)
    }))
}

/// Runs the scenario against three replicas.
async fn balanced(due: fn(usize) -> usize) -> Output {
    against(three(due), &["--servers", "3"]).await
}

async fn against(app: Router, args: &[&str]) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let args: Vec<_> = args.iter().map(ToString::to_string).chain([url]).collect();
    let ask = move || balancer(&args.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// The server's clock is frozen during the scenario, however long that takes. During the wait, it
/// advances by the length of the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_waits_for_retry_after() {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let args = Args::from_command_line(["demo", "--window", "1s"].map(OsString::from)).unwrap();
    let app = app::router(&args.server_id, limits::layer(&args, store).unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let app = app.layer(axum::middleware::map_request(move |request: Request| {
        if requests.fetch_add(1, Ordering::Relaxed) == SCENARIO {
            clock.advance(Micros::new(1_000_000));
        }
        std::future::ready(request)
    }));
    let output = against(app, &["--window", "1", "--wait"]).await;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    assert!(printed.contains("as Retry-After says\n 29  GET     200  remaining "), "{printed}");
}

/// The number of requests before the wait.
const SCENARIO: usize = 28;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_passes_on_three_servers() {
    let output = balanced(|request| request % 3).await;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    for line in [
        "  1  GET     200  remaining  99  api1",
        "  2  GET     200  remaining  98  api2",
        "  3  GET     200  remaining  97  api3",
        // Each server has its own items. This item was created on another server.
        " 20  DELETE  404  remaining   5  api2",
        // All replicas deny requests beyond the quota.
        " 22  GET     429  remaining   0  api1",
        " 23  POST    429  remaining   0  api2",
        " 24  SEARCH  429  remaining   0  api3",
        "3 servers took turns: api1 api2 api3",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_out_of_turn_fails() {
    for (due, expected) in [
        ((|request| request % 2) as fn(usize) -> usize, "3: api1 answered out of turn"),
        (|request| request / 2 % 3, "2: api1 answered out of turn, expected another"),
        (|request| [0, 1, 2, 1][request % 4], "4: api2 answered out of turn, expected api1"),
    ] {
        let output = balanced(due).await;
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(&format!("FAILED at request {expected}")), "{printed}");
    }
}
