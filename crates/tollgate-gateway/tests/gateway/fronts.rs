//! Other proxies ask for decisions and forward by themselves.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_replicas::{Port, Process};
use tollgate_test_servers::until;

use crate::support::{Answer, Client, Gateway, Upstream};

/// Windows of days, so that it does not matter how fast the machine is.
const LIMITS: &str = "forwardAuth: {listen: 127.0.0.1:0, trustedProxies: [127.0.0.1]}
identity: [apiKey, ip]
apiKeys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}]
client: {strategy: sliding_window_log, limit: 4, windowSeconds: 864000}
apis:
- {identifier: login, method: POST, path: /login, strategy: sliding_window_log, limit: 1, windowSeconds: 864000}
- {identifier: slow, path: /slow, strategy: sliding_window_log, limit: 1, windowSeconds: 864000}
deny: {addresses: [127.0.0.9]}
";

fn deciding() -> (Gateway, SocketAddr) {
    let gateway = Gateway::start(LIMITS);
    let address = gateway.fronts["forwardAuth"];
    (gateway, address)
}

/// Starts a proxy with a configuration of `examples/fronts`, between these addresses.
fn proxy(
    program: &str,
    args: &[&str],
    files: &[&str],
    decisions: SocketAddr,
    service: SocketAddr,
) -> (Process, TempDir, Port) {
    let (folder, port) = (TempDir::new().unwrap(), Port::claim().unwrap());
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fronts");
    for file in files {
        let text = fs::read_to_string(examples.join(file)).unwrap();
        let text = text.replace("127.0.0.1:8000", &port.address().to_string());
        let text = text.replace("127.0.0.1:8082", &decisions.to_string());
        let text = text.replace("127.0.0.1:3000", &service.to_string());
        fs::write(folder.path().join(file), text).unwrap();
    }
    let home = ("HOME".to_owned(), folder.path().display().to_string());
    let process = Process::start(program, program, args, &[home], folder.path()).unwrap();
    (process, folder, port)
}

/// Checks that a proxy does as the answers say.
async fn check(program: &str, args: &[&str], files: &[&str]) {
    let service = Upstream::new().await;
    let (_gateway, decisions) = deciding();
    let (_process, folder, port) = proxy(program, args, files, decisions, service.address);
    let log = || fs::read_to_string(folder.path().join(format!("{program}.log")));
    let listens = || TcpStream::connect(port.address()).ok();
    until(&format!("{program} listens"), PATIENCE, listens);

    let client = Client::new(port.address());
    let answer = client.get("/a?b=c").await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]), "{:?}", log());
    assert!(answer.header("ratelimit").contains("r=3"), "{answer:?}");
    assert_eq!(service.seen()[0].uri, "/a?b=c");

    // The method and the path are those of the client, whatever the client writes into headers.
    let forged = [
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/free"),
        ("x-forwarded-host", "elsewhere"),
        ("x-original-method", "GET"),
        ("x-original-uri", "/free"),
        ("forwarded", "for=203.0.113.7"),
    ];
    let login = client.send("POST", "/login", &forged, "a body").await.unwrap();
    assert_eq!(login.status, 200, "{login:?}");
    assert_eq!(&*service.seen()[1].body, b"a body");
    let denied = client.send("POST", "/login", &forged, "a body").await.unwrap();
    is_denied(&denied);
    // Another method is under another limit.
    assert_eq!(client.get("/login").await.status, 200);
    assert_eq!(client.get("/%61").await.status, 200);
    is_denied(&client.send("GET", "/a", &forged, "").await.unwrap());
    // A credential passes through the question.
    let key = client.send("GET", "/a", &[("x-api-key", "foo")], "").await.unwrap();
    assert_eq!(key.status, 200, "{key:?}");
    assert_eq!(service.seen().len(), 5);

    let listed = ask_from([127, 0, 0, 9], port.address());
    assert!(listed.starts_with("HTTP/1.1 403"), "{listed}");
    assert_eq!(service.seen().len(), 5);
}

fn is_denied(answer: &Answer) {
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.header("retry-after").parse::<u64>().unwrap() > 0);
    assert!(answer.header("ratelimit").contains("r=0"), "{answer:?}");
    assert!(!answer.header("ratelimit-policy").is_empty());
}

/// The answer to a client with this address.
fn ask_from(ip: [u8; 4], to: SocketAddr) -> String {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET /a HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Headers as Traefik sends them.
const TRAEFIK: [(&str, &str); 5] = [
    ("x-forwarded-method", "GET"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "shop.example"),
    ("x-forwarded-uri", "/slow?a=b"),
    ("x-forwarded-for", "203.0.113.7"),
];

#[tokio::test]
async fn traefik_and_envoy_share_quotas_with_each_other() {
    let (_gateway, decisions) = deciding();
    let client = Client::new(decisions);
    let answer = client.send("GET", "/forward-auth", &TRAEFIK, "").await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
    assert!(answer.header("ratelimit").contains("r=0"), "{answer:?}");
    is_denied(&client.send("GET", "/forward-auth", &TRAEFIK, "").await.unwrap());
    let envoy = |address| [("x-forwarded-for", address), ("host", "shop.example")];
    let ask = async |address, path: &str| {
        client.send("GET", &format!("/ext-authz{path}"), &envoy(address), "").await.unwrap()
    };
    is_denied(&ask("203.0.113.7", "/slow").await);
    is_denied(&ask("203.0.113.7", "//./slow?c").await);
    assert_eq!(ask("203.0.113.8", "/slow").await.status, 200);
    // Another path with an escape that servers read in different ways.
    assert_eq!(ask("203.0.113.9", "/a%2Fb").await.status, 400);
}

#[tokio::test]
async fn the_last_address_counts_and_earlier_ones_only_if_it_is_trusted() {
    let gateway = Gateway::start(&format!("trustedProxies: [203.0.113.7]\n{LIMITS}"));
    let client = Client::new(gateway.fronts["forwardAuth"]);
    let ask = async |hops: &str| {
        let mut headers = TRAEFIK;
        headers[4].1 = hops;
        client.send("GET", "/forward-auth", &headers, "").await.unwrap().status.as_u16()
    };
    assert_eq!(ask("198.51.100.1, 203.0.113.8").await, 200);
    assert_eq!(ask("198.51.100.2, 203.0.113.8").await, 429, "the client wrote the first");
    assert_eq!(ask("198.51.100.1, 203.0.113.7").await, 200);
    assert_eq!(ask("198.51.100.2, 203.0.113.7:4711").await, 200);
    assert_eq!(ask("198.51.100.2, 203.0.113.7").await, 429);
    assert_eq!(ask("2001:db8::1").await, 200);
    assert_eq!(ask("[2001:db8::1]:80").await, 429);
    assert_eq!(ask("127.0.0.9").await, 403, "it is on the blocklist");
    assert_eq!(ask("unknown").await, 400);
}

#[tokio::test]
async fn a_wrong_question_is_answered_with_what_to_configure() {
    let (_gateway, decisions) = deciding();
    let client = Client::new(decisions);
    let ask = async |path: &str, headers: &[(&str, &str)]| {
        let answer = client.send("GET", path, headers, "").await.unwrap();
        (answer.status.as_u16(), answer.json()["detail"].as_str().unwrap().to_owned())
    };
    for (index, (name, _)) in TRAEFIK.iter().enumerate().filter(|(index, _)| *index != 1) {
        let mut headers = TRAEFIK.to_vec();
        headers.remove(index);
        let (status, detail) = ask("/forward-auth", &headers).await;
        assert!(status == 400 && detail.contains(name), "{name}: {status} {detail}");
        if *name != "x-forwarded-for" {
            let twice = [&TRAEFIK[..], &[(*name, "/free")]].concat();
            let (status, detail) = ask("/forward-auth", &twice).await;
            assert!(status == 400 && detail.contains("replace"), "{name}: {status} {detail}");
        }
    }
    let (status, detail) = ask("/", &TRAEFIK).await;
    assert!(status == 400 && detail.contains("/auth-request (nginx)"), "{detail}");

    let lines = LIMITS.replacen("[127.0.0.1]", "[192.0.2.1]", 1);
    let gateway = Gateway::start(&lines);
    let client = Client::new(gateway.fronts["forwardAuth"]);
    let answer = client.send("GET", "/forward-auth", &TRAEFIK, "").await.unwrap();
    assert_eq!(answer.status, 403);
    let cure = "Add 127.0.0.1 to `rateLimiter.forwardAuth.trustedProxies`.";
    assert_eq!(answer.json()["detail"], cure);
}

#[tokio::test]
async fn a_gateway_forwards_and_decides_under_the_same_quotas() {
    let service = Upstream::new().await;
    let lines = format!("listen: 127.0.0.1:0\n{}{LIMITS}", service.target());
    let gateway = Gateway::start(&lines);
    let through = Client::new(gateway.address);
    assert_eq!(through.get("/slow").await.status, 200);
    let mut headers = TRAEFIK;
    headers[4].1 = "127.0.0.1";
    let asking = Client::new(gateway.fronts["forwardAuth"]);
    is_denied(&asking.send("GET", "/forward-auth", &headers, "").await.unwrap());
    assert_eq!(service.seen().len(), 1);
}

/// Longer than anything takes that does happen.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn nginx_denies_with_429_and_all_headers() {
    let args = ["-p", ".", "-c", "nginx.conf", "-e", "stderr"];
    let args = [&args[..], &["-g", "daemon off; pid nginx.pid; user root;"]].concat();
    check("nginx", &args, &["nginx.conf"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_denies_with_429_and_all_headers() {
    check("caddy", &["run", "--config", "Caddyfile"], &["Caddyfile"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_denies_with_429_and_all_headers() {
    check("haproxy", &["-f", "haproxy.cfg"], &["haproxy.cfg", "tollgate.lua"]).await;
}
