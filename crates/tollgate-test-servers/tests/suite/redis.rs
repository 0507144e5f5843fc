//! A single server's settings, shutdown, and simulated failures.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_test_servers::{Client, Redis, Value, until};

#[test]
fn listens_on_port_and_socket() {
    let redis = Redis::start();
    assert_eq!(redis.url(), format!("redis://{}", redis.address()));
    assert_eq!(redis.cmd(&["SET", "key", "value"]).text(), "OK");
    let mut client = Client::tcp(redis.address()).expect("a server");
    assert_eq!(client.cmd(&["GET", "key"]).text(), "value");
    assert_eq!(client.cmd(&["GET", "nothing"]), Value::Nil);
    let url = redis.socket_url();
    let path = url.strip_prefix("redis+unix://").expect("a URL");
    let mut client = Client::unix(Path::new(path)).expect("a server");
    // Replies arrive in command order.
    client.say(&["STRLEN", "key"]);
    client.say(&["LRANGE", "nothing", "0", "1"]);
    client.say(&["HGET", "key", "field"]);
    assert_eq!([client.hear(), client.hear()], [Value::Number(5), Value::List(vec![])]);
    assert!(client.hear().error().expect("refused").starts_with("WRONGTYPE"));
    assert_eq!([redis.calls("get"), redis.calls("strlen"), redis.calls("incr")], [2, 1, 0]);
    assert_eq!(redis.info("connected_clients"), "3");
}

#[test]
fn drop_removes_server_and_folder() {
    let redis = Redis::start();
    let (address, folder) = (redis.address(), redis.folder().to_owned());
    redis.stop();
    drop(redis);
    assert!(Client::tcp(address).is_err());
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
    assert!(Client::tcp(receive.recv().expect("an address")).is_err());
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
    let folder = Client::tcp(address).expect("a server").cmd(&["CONFIG", "GET", "dir"]);
    let folder = Path::new(folder.list()[1].text());
    assert!(folder.exists());

    test.kill().expect("still running");
    test.wait().expect("a child");
    until("the server ends", LIMIT, || Client::tcp(address).is_err().then_some(()));
    until("its folder is removed", LIMIT, || (!folder.exists()).then_some(()));
}

#[test]
fn server_without_port_has_socket() {
    let redis = Redis::builder().without_port().start();
    assert_eq!(redis.cmd(&["CONFIG", "GET", "port"]).list()[1].number(), 0);
}

#[test]
fn passwords_and_acls_are_enforced() {
    let redis =
        Redis::builder().password("secret").user("reader", "other", "~open:* +@read").start();
    assert_eq!(redis.url(), format!("redis://:secret@{}", redis.address()));
    assert_eq!(redis.url_of("reader", "x"), format!("redis://reader:x@{}", redis.address()));
    let mut client = Client::tcp(redis.address()).expect("a server");
    let refusal = |value: &Value| value.error().expect("refused")[..6].to_owned();
    assert_eq!(refusal(&client.cmd(&["GET", "open:a"])), "NOAUTH");
    assert_eq!(refusal(&client.cmd(&["AUTH", "wrong"])), "WRONGP");
    assert_eq!(client.cmd(&["AUTH", "reader", "other"]).text(), "OK");
    assert_eq!(client.cmd(&["GET", "open:a"]), Value::Nil);
    assert_eq!(refusal(&client.cmd(&["GET", "closed"])), "NOPERM");
    assert_eq!(refusal(&client.cmd(&["SET", "open:a", "1"])), "NOPERM");
    redis.restart();
    assert_eq!(redis.cmd(&["PING"]).text(), "PONG");
}

#[test]
fn tls_requires_a_trusted_authority() {
    let redis = Redis::builder().tls().start();
    assert_eq!(redis.url(), format!("rediss://{}", redis.address()));
    for name in ["127.0.0.1", "localhost"] {
        let authority = CertificateDer::from_pem_file(redis.authority()).expect("a certificate");
        let mut trusted = RootCertStore::empty();
        trusted.add(authority).expect("a certificate");
        assert_eq!(tls(&redis, trusted, name).expect("a handshake").text(), "PONG");
    }
    let error = tls(&redis, RootCertStore::empty(), "localhost").expect_err("no trusted authority");
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    // A client without TLS gets no reply.
    assert!(Client::tcp(redis.address()).expect("a port").try_cmd(&["PING"]).is_err());
}

fn tls(redis: &Redis, trusted: RootCertStore, name: &'static str) -> std::io::Result<Value> {
    let config = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    let name = name.try_into().expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let stream = std::net::TcpStream::connect(redis.address())?;
    Client::over(StreamOwned::new(session, stream)).try_cmd(&["PING"])
}

#[test]
fn writes_fail_at_the_memory_limit() {
    let redis = Redis::builder().max_memory("4mb", "noeviction").databases(2).start();
    let big = "x".repeat(1 << 20);
    let refusal = (0..8).find_map(|key| {
        let answer = redis.cmd(&["SET", &format!("key:{key}"), &big]);
        answer.error().map(str::to_owned)
    });
    assert!(refusal.expect("no write failed").starts_with("OOM"));
    assert_eq!(redis.cmd(&["SELECT", "1"]).text(), "OK");
    assert!(redis.cmd(&["SELECT", "2"]).error().is_some());
}

#[test]
fn stopped_server_replies_after_cont() {
    let redis = Redis::start();
    let mut client = Client::tcp(redis.address()).expect("a server");
    redis.stop();
    assert!(!redis.is_up());
    client.say(&["INCR", "count"]);
    client.send().expect("buffered by the kernel");
    // The kernel still accepts connections.
    assert!(Client::tcp(redis.address()).is_ok());
    redis.cont();
    assert!(redis.is_up());
    assert_eq!(client.hear(), Value::Number(1));
}

#[test]
fn restart_keeps_port_but_not_data() {
    let redis = Redis::start();
    redis.cmd(&["SET", "key", "value"]);
    let address = redis.address();
    redis.kill();
    assert!(!redis.is_up());
    assert!(Client::tcp(address).is_err());
    assert!(redis.try_cmd(&["PING"]).is_err());
    redis.restart();
    assert_eq!(redis.address(), address);
    assert_eq!(redis.cmd(&["GET", "key"]), Value::Nil);
}

#[test]
fn append_only_restart_loads_data() {
    let redis = Redis::builder().append_only().start();
    redis.fill_for_a_slow_start();
    let start = Instant::now();
    redis.launch();
    let refusal = until("the server replies LOADING", LIMIT, || {
        redis.try_cmd(&["GET", "filler:0"]).ok()?.error().map(str::to_owned)
    });
    assert!(refusal.starts_with("LOADING"), "{refusal}");
    redis.wait_until_ready();
    assert!(start.elapsed() > Duration::from_millis(500));
    assert_eq!(redis.cmd(&["DBSIZE"]), Value::Number(600));
}

#[test]
fn replica_is_read_only() {
    let master = Redis::builder().password("secret").start();
    master.cmd(&["SET", "key", "value"]);
    let replica = Redis::builder().password("secret").replica_of(&master).start();
    assert_eq!(replica.cmd(&["GET", "key"]).text(), "value");
    assert!(replica.cmd(&["SET", "key", "2"]).error().expect("refused").starts_with("READONLY"));
}

#[test]
#[should_panic(expected = "redis-server has ended with exit status: 1")]
fn failed_start_reports_exit_status() {
    let _ = Redis::builder().set("maxmemory", "plenty").start();
}

const LIMIT: Duration = Duration::from_secs(10);
