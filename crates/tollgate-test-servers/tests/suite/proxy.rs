//! Proxy forwarding, simulated failures, and counts.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tollgate_test_servers::{Client, Flow, Proxy, Redis, Value, until};

fn pair() -> (Redis, Proxy, Client) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address());
    let mut client = Client::tcp(proxy.address()).expect("a proxy");
    assert_eq!(client.cmd(&["PING"]).text(), "PONG");
    (redis, proxy, client)
}

/// Waits until the server has run a command `count` times.
fn reaches(redis: &Redis, command: &str, count: u64) {
    until("a request reaches the server", LIMIT, || (redis.calls(command) == count).then_some(()));
}

#[test]
fn both_directions_are_counted() {
    let (redis, proxy, mut client) = pair();
    assert_eq!(proxy.url(), format!("redis://{}", proxy.address()));
    let big = "x".repeat(1 << 20);
    client.say(&["SET", "key", &big]);
    client.say(&["get", "key"]);
    assert_eq!(client.hear().text(), "OK");
    assert_eq!(client.hear().text(), big);
    assert_eq!(redis.calls("get"), 1);
    let (requests, replies) = (proxy.requests(), proxy.replies());
    assert_eq!([requests.messages(), replies.messages()], [3, 3]);
    assert_eq!([requests.calls("GET"), requests.calls("ping"), requests.calls("x")], [1, 1, 0]);
    assert_eq!(replies.bytes(), "+PONG\r\n+OK\r\n$1048576\r\n\r\n".len() as u64 + (1 << 20));
    assert!(requests.bytes() > 1 << 20);
    assert_eq!(proxy.connections(), 1);
    drop(client);
    until("the connection ends", LIMIT, || (proxy.connections() == 0).then_some(()));
}

#[test]
fn black_hole_drops_requests() {
    let (redis, proxy, mut client) = pair();
    proxy.black_hole();
    let mut other = Client::tcp(proxy.address()).expect("accepted");
    for client in [&mut client, &mut other] {
        client.say(&["INCR", "count"]);
        client.send().expect("taken");
    }
    until("both were swallowed", LIMIT, || (proxy.requests().calls("INCR") == 2).then_some(()));
    proxy.pass();
    // The earlier command was dropped, so the first reply belongs to this one.
    assert_eq!(client.cmd(&["INCR", "count"]), Value::Number(1));
    assert_eq!(redis.calls("incr"), 1);
}

#[test]
fn swallowed_replies_are_lost() {
    let (redis, proxy, mut client) = pair();
    proxy.swallow_replies();
    client.say(&["INCR", "count"]);
    client.send().expect("taken");
    reaches(&redis, "incr", 1);
    until("the reply was swallowed", LIMIT, || (proxy.replies().messages() == 2).then_some(()));
    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    assert!(client.try_hear().is_err());
    proxy.pass();
    let mut client = Client::tcp(proxy.address()).expect("a proxy");
    assert_eq!(client.cmd(&["GET", "count"]).text(), "1");
}

#[test]
fn delayed_replies_overlap_in_order() {
    let (_redis, proxy, mut client) = pair();
    let late = Duration::from_millis(500);
    proxy.delay(late);
    let start = Instant::now();
    for _ in 0..120 {
        client.say(&["INCR", "count"]);
        client.send().expect("taken");
    }
    let (mut heard, mut shortest) = (start, late);
    for count in 1..=120 {
        assert_eq!(client.hear(), Value::Number(count));
        assert!(start.elapsed() >= late);
        shortest = shortest.min(heard.elapsed());
        heard = Instant::now();
    }
    // If delays did not overlap, replies would be at least `late` apart.
    assert!(shortest < late / 2, "{shortest:?} between two replies");
}

#[test]
fn held_requests_are_forwarded_on_pass() {
    let (redis, proxy, mut client) = pair();
    proxy.flows(Flow::Hold, Flow::Pass);
    client.say(&["INCR", "count"]);
    client.send().expect("taken");
    until("the proxy has it", LIMIT, || (proxy.requests().calls("INCR") == 1).then_some(()));
    assert_eq!(redis.calls("incr"), 0);
    proxy.pass();
    assert_eq!(client.hear(), Value::Number(1));
}

#[test]
fn refusing_spares_open_connections() {
    let (_redis, proxy, mut client) = pair();
    proxy.refuse();
    assert!(Client::tcp(proxy.address()).is_err());
    assert_eq!(client.cmd(&["PING"]).text(), "PONG");
    proxy.cut();
    assert!(client.try_cmd(&["PING"]).is_err());
    proxy.accept();
    assert!(Client::tcp(proxy.address()).is_ok());
}

#[test]
fn server_crash_closes_connections() {
    let (redis, proxy, mut client) = pair();
    redis.kill();
    assert!(client.try_hear().is_err());
    assert!(Client::tcp(proxy.address()).and_then(|mut it| it.try_cmd(&["PING"])).is_err());
    redis.restart();
    let mut client = Client::tcp(proxy.address()).expect("a proxy");
    assert_eq!(client.cmd(&["PING"]).text(), "PONG");
}

#[test]
fn delayed_bytes_arrive_after_server_closes() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(server.local_addr().expect("bound"));
    let mut client = TcpStream::connect(proxy.address()).expect("a proxy");
    proxy.delay(Duration::from_millis(50));
    let (mut serving, _) = server.accept().expect("a client");
    serving.write_all(&[7; 100_000]).expect("a client");
    drop(serving);
    let mut said = Vec::new();
    client.read_to_end(&mut said).expect("an end");
    assert_eq!(said, [7; 100_000]);
}

#[test]
fn drop_frees_the_port() {
    let (_redis, proxy, mut client) = pair();
    let address = proxy.address();
    drop(proxy);
    assert!(client.try_hear().is_err());
    TcpListener::bind(address).expect("free");
}

const LIMIT: Duration = Duration::from_secs(10);
