//! How servers exit. Their settings and failures are covered by the tests that use them.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate_test_servers::{Redis, RedisClient, until};

#[test]
fn drop_removes_server_and_folder() {
    let redis = Redis::start();
    let (address, folder) = (redis.address(), redis.folder().to_owned());
    redis.stop();
    drop(redis);
    assert!(RedisClient::tcp(address).is_err());
    assert!(!folder.exists());
}

#[test]
fn test_panic_kills_server() {
    let (send, receive) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let redis = Redis::start();
        send.send(redis.address()).expect("the receiver is open");
        std::panic::resume_unwind(Box::new("a failure"));
    });
    test.join().expect_err("a panic");
    assert!(RedisClient::tcp(receive.recv().expect("an address")).is_err());
}

#[test]
fn killed_test_kills_server() {
    let mut test = Command::new(env!("CARGO_BIN_EXE_tollgate-test-servers"))
        .arg("redis")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("built by cargo");
    let mut url = String::new();
    BufReader::new(test.stdout.take().expect("asked for")).read_line(&mut url).expect("a URL");
    let address: SocketAddr =
        url.trim().strip_prefix("redis://").expect("a URL").parse().expect("");
    let folder = RedisClient::tcp(address).expect("a server").cmd(&["CONFIG", "GET", "dir"]);
    let folder = Path::new(folder.list()[1].text());
    assert!(folder.exists());

    test.kill().expect("still running");
    test.wait().expect("a child");
    until("the server ends", LIMIT, || RedisClient::tcp(address).is_err().then_some(()));
    until("its folder is removed", LIMIT, || (!folder.exists()).then_some(()));
}

#[test]
#[should_panic(expected = "redis-server has ended with exit status: 1")]
fn failed_start_reports_exit_status() {
    let _ = Redis::builder().set("maxmemory", "plenty").start();
}

const LIMIT: Duration = Duration::from_secs(10);
