//! A process stops with its owner, and a failed start is a one-line error.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate_test_servers::{Nginx, Process, Redis, RedisClient, until};

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
    let line = Nginx::start(address, &[address], folder.path()).unwrap_err().to_string();
    assert!(line.starts_with(&format!("nginx cannot listen on {address}: ")), "{line}");
    assert!(line.ends_with("choose another port") && !line.contains('\n'), "{line}");
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
    until("the port is free", LIMIT, || TcpListener::bind(address).ok());
}

#[test]
fn dropping_a_frozen_server_removes_process_and_folder() {
    let redis = Redis::start();
    let (address, folder) = (redis.address(), redis.folder().to_owned());
    redis.stop();
    drop(redis);
    assert!(RedisClient::tcp(address).is_err());
    assert!(!folder.exists());
}

#[test]
fn panic_stops_server() {
    let (send, receive) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let redis = Redis::start();
        send.send(redis.address()).unwrap();
        std::panic::resume_unwind(Box::new("a failure"));
    });
    test.join().expect_err("a panic");
    assert!(RedisClient::tcp(receive.recv().unwrap()).is_err());
}

#[test]
#[should_panic(expected = "redis ended with exit status: 1: argument must be a memory value")]
fn failed_restart_reports_the_last_output_line() {
    let redis = Redis::start();
    redis.configure("maxmemory", "plenty");
    redis.restart();
}

#[test]
fn process_stops_when_its_owner_is_killed() {
    // The test runs itself in a second process, which becomes a frozen server's owner.
    if std::env::var_os("OWNED").is_some() {
        let redis = Redis::start();
        redis.stop();
        eprintln!("owns {} {}", redis.id().unwrap(), redis.folder().display());
        until("the owner is killed", LIMIT, || redis.ended());
        panic!("the server ended before its owner");
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::process_stops_when_its_owner_is_killed", "--nocapture"])
        .env("OWNED", "")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stderr.take().unwrap()).lines().map_while(Result::ok);
    let owned = lines.into_iter().find_map(|line| Some(line.strip_prefix("owns ")?.to_owned()));
    let owned = owned.unwrap();
    let (id, folder) = owned.split_once(' ').unwrap();
    let (id, folder): (u32, _) = (id.parse().unwrap(), Path::new(folder));
    assert!(runs(id) && folder.exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
    until("the process exits", LIMIT, || (!runs(id)).then_some(()));
    until("its folder is removed", LIMIT, || (!folder.exists()).then_some(()));
}

const LIMIT: Duration = Duration::from_secs(10);
