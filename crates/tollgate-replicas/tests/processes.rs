//! A process stops with its owner, and a failed start is a one-line error.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tollgate_replicas::{Nginx, Process, Redis};

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "timed out after 10 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process with this id exists and is not a zombie.
fn runs(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn used_port_is_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let of_redis = Redis::start(address, folder.path()).unwrap_err().to_string();
    let of_nginx = Nginx::start(address, &[address], folder.path()).unwrap_err().to_string();
    for (line, name) in [(of_redis, "redis"), (of_nginx, "nginx")] {
        assert!(line.starts_with(&format!("{name} cannot listen on {address}: ")), "{line}");
        assert!(line.ends_with("choose another port") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn failed_start_reports_the_last_output_line() {
    let folder = tempfile::tempdir().unwrap();
    // nginx rejects an upstream without servers.
    let line = Nginx::start((Ipv4Addr::LOCALHOST, 0).into(), &[], folder.path()).unwrap_err();
    let line = line.to_string();
    assert!(line.starts_with("nginx ended with exit status: 1: "), "{line}");
    assert!(line.contains("no servers are inside upstream") && !line.contains('\n'), "{line}");
}

#[test]
fn missing_program_is_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let none: [&str; 0] = [];
    let line = Process::start("x", "no-such-program", none, &[], folder.path()).unwrap_err();
    assert_eq!(line.to_string(), "no-such-program is missing");
}

#[test]
fn nginx_frees_its_port() {
    let folder = tempfile::tempdir().unwrap();
    let replica = (Ipv4Addr::LOCALHOST, 1).into();
    let mut nginx =
        Nginx::start((Ipv4Addr::LOCALHOST, 0).into(), &[replica], folder.path()).unwrap();
    let address = nginx.address();
    // After SIGKILL nginx cannot stop its workers, which also hold the port.
    nginx.process.kill();
    nginx.restart().unwrap();
    assert_eq!(nginx.address(), address);
    drop(nginx);
    until("the port is free", || TcpListener::bind(address).is_ok());
}

#[test]
fn frozen_process_stops_on_drop() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start((Ipv4Addr::LOCALHOST, 0).into(), folder.path()).unwrap();
    let (id, address) = (redis.process.id(), redis.address());
    redis.process.freeze();
    drop(redis);
    assert!(!runs(id) && TcpStream::connect(address).is_err());
}

/// Starts a server, prints its id, and waits until the test below kills this process.
#[expect(clippy::unwrap_used, reason = "part of the test below")]
fn own_a_server(folder: &Path) {
    let mut redis = Redis::start((Ipv4Addr::LOCALHOST, 0).into(), folder).unwrap();
    redis.process.freeze();
    eprintln!("owns {}", redis.process.id());
    while redis.process.ended().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn process_stops_when_its_owner_is_killed() {
    // The test runs itself in a second process, which becomes the owner.
    if let Some(folder) = std::env::var_os("OWNED") {
        own_a_server(Path::new(&folder));
        panic!("the server ended before its owner");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_stops_when_its_owner_is_killed", "--nocapture"])
        .env("OWNED", folder.path())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stderr.take().unwrap()).lines().map_while(Result::ok);
    let id = lines.into_iter().find_map(|line| line.strip_prefix("owns ")?.parse().ok());
    let id: u32 = id.unwrap();
    assert!(runs(id));
    owner.kill().unwrap();
    owner.wait().unwrap();
    until("the process exits", || !runs(id));
    until("its folder is removed", || !folder.path().exists());
}
