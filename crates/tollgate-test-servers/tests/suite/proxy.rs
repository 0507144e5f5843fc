//! The proxy's counts, delays and port. Its faults are covered by the tests that use them.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tollgate_test_servers::{Proxy, Redis, RedisClient, Value, until};

fn pair() -> (Redis, Proxy, RedisClient) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address());
    let mut client = RedisClient::tcp(proxy.address()).expect("a proxy");
    assert_eq!(client.cmd(&["PING"]).text(), "PONG");
    (redis, proxy, client)
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
