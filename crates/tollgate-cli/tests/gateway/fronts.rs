//! Other proxies that forward requests themselves and leave the decision to the gateway.

mod envoy;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use http::Response;
use http_body_util::{BodyExt as _, Full};
use saphyr::LoadableYamlNode as _;
use serde_json::Value;
use tempfile::TempDir;
use tollgate_test_servers::{Port, Process};
use tollgate_test_servers::{until, until_async};

use crate::support::{
    Answer, Client, Gateway, PATIENCE, RawUpstream, Upstream, exchange_bytes, exchange_from,
};

/// Windows last for days, so the machine's speed does not matter.
const LIMITS: &str = "forwardAuth: {listen: 127.0.0.1:0, trustedProxies: [127.0.0.1]}
identity: [apiKey, ip]
apiKeys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}]
client: {strategy: sliding_window_log, limit: 4, windowSeconds: 864000}
apis:
- {identifier: login, method: POST, path: /login, strategy: sliding_window_log, limit: 1, windowSeconds: 864000}
- {identifier: slow, path: /slow, strategy: sliding_window_log, limit: 1, windowSeconds: 864000}
deny: {addresses: [127.0.0.9]}
";

fn deciding_gateway() -> (Gateway, SocketAddr) {
    let gateway = Gateway::start(LIMITS);
    let address = gateway.fronts["forwardAuth"];
    (gateway, address)
}

/// Starts a proxy with its configuration from `examples/fronts`, adapted to these addresses.
/// `changes` are further replacements.
fn proxy(
    program: &str,
    args: &[&str],
    files: &[&str],
    changes: &[(&str, &str)],
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
        // On a timeout Envoy would allow the request, and a busy machine may take longer.
        let text = text.replace("timeout: 0.1s", "timeout: 20s");
        // Envoy configures address and port separately.
        let ports = [(8000, port.address()), (8082, decisions), (8083, decisions), (3000, service)];
        let text = ports.iter().fold(text, |text, (port, address)| {
            let of = |port: u16| format!("port_value: {port}}}");
            text.replace(&of(*port), &of(address.port()))
        });
        let text = changes.iter().fold(text, |text, (old, new)| text.replace(old, new));
        fs::write(folder.path().join(file), text).unwrap();
    }
    // Programs that drop root privileges need access too.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let home = ("HOME".to_owned(), folder.path().display().to_string());
    let process = Process::start(program, program, args, &[home], folder.path()).unwrap();
    (process, folder, port)
}

/// If the tests run as root, `setpriv` drops the privileges.
fn unprivileged<'a>(program: &'a str, args: &[&'a str]) -> (&'a str, Vec<&'a str>) {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    // Envoy is in a folder that other users may not be able to read.
    if !is_root || program == "envoy" {
        return (program, args.to_vec());
    }
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
    ("setpriv", [&user[..], args].concat())
}

/// Checks that a proxy follows the gateway's decisions. Returns a client that has used its quota.
async fn check(program: &str, args: &[&str], files: &[&str]) -> RunningProxy {
    let (program, args) = unprivileged(program, args);
    let service = Upstream::new().await;
    let (gateway, decisions) = deciding_gateway();
    let (process, folder, port) = proxy(program, &args, files, &[], decisions, service.address);
    let log = || fs::read_to_string(folder.path().join(format!("{program}.log")));
    let listens = || TcpStream::connect(port.address()).ok();
    until(&format!("{program} listens"), PATIENCE, listens);

    let client = Client::new(port.address());
    let answer = client.get("/a?b=c").await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]), "{:?}", log());
    assert!(answer.header("ratelimit").contains("r=3"), "{answer:?}");
    assert_eq!(service.seen()[0].uri, "/a?b=c");

    // The real method and path count, no matter which headers the client forges.
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
    // The login limit applies only to POST.
    assert_eq!(client.get("/login").await.status, 200);
    assert_eq!(client.get("/%61").await.status, 200);
    is_denied(&client.send("GET", "/a", &forged, "").await.unwrap());
    // The proxy passes the client's credentials to the gateway.
    let key = client.send("GET", "/a", &[("x-api-key", "foo")], "").await.unwrap();
    assert_eq!(key.status, 200, "{key:?}");
    assert_eq!(service.seen().len(), 5);

    let request =
        format!("GET /a HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", port.address());
    let listed = exchange_from(Ipv4Addr::new(127, 0, 0, 9), port.address(), &request);
    assert!(listed.starts_with("HTTP/1.1 403"), "{listed}");
    assert_eq!(service.seen().len(), 5);
    RunningProxy { client, _running: (process, gateway, folder) }
}

/// A running proxy and its client.
struct RunningProxy {
    client: Client,
    _running: (Process, Gateway, TempDir),
}

fn is_denied(answer: &Answer) {
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.header("retry-after").parse::<u64>().unwrap() > 0);
    assert!(answer.header("ratelimit").contains("r=0"), "{answer:?}");
    assert!(!answer.header("ratelimit-policy").is_empty());
}

/// The headers that Traefik sends.
const TRAEFIK: [(&str, &str); 5] = [
    ("x-forwarded-method", "GET"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "shop.example"),
    ("x-forwarded-uri", "/slow?a=b"),
    ("x-forwarded-for", "203.0.113.7"),
];

#[tokio::test]
async fn only_trusted_hops_are_skipped() {
    let gateway = Gateway::start(&format!("trustedProxies: [203.0.113.7]\n{LIMITS}"));
    let client = Client::new(gateway.fronts["forwardAuth"]);
    let ask = async |hops: &str| {
        let mut headers = TRAEFIK;
        headers[4].1 = hops;
        client.send("GET", "/forward-auth", &headers, "").await.unwrap().status.as_u16()
    };
    assert_eq!(ask("198.51.100.1, 203.0.113.8").await, 200);
    assert_eq!(ask("198.51.100.2, 203.0.113.8").await, 429, "the first address may be forged");
    assert_eq!(ask("198.51.100.1, 203.0.113.7").await, 200);
    assert_eq!(ask("198.51.100.2, 203.0.113.7:4711").await, 200);
    assert_eq!(ask("198.51.100.2, 203.0.113.7").await, 429);
    assert_eq!(ask("2001:db8::1").await, 200);
    assert_eq!(ask("[2001:db8::1]:80").await, 429);
    assert_eq!(ask("127.0.0.9").await, 403, "it is on the blocklist");
    assert_eq!(ask("unknown").await, 400);
}

/// Proxies pass responses on to their clients, so only the log contains the cure.
#[tokio::test]
async fn log_suggests_a_fix_for_invalid_checks() {
    let (gateway, decisions) = deciding_gateway();
    let client = Client::new(decisions);
    const UNCHECKED: &str = "The request cannot be checked.";
    let ask = async |path: &str, headers: &[(&str, &str)]| {
        let answer = client.send("GET", path, headers, "").await.unwrap();
        let problem = answer.json();
        assert_eq!((answer.status.as_u16(), &problem["code"]), (400, &Value::from("bad-question")));
        problem["detail"].as_str().unwrap().to_owned()
    };
    let mut no_path = TRAEFIK;
    no_path[3] = ("x-forwarded-uri", "http://");
    assert_eq!(ask("/forward-auth", &no_path).await, "The path is not valid.");
    for (index, (name, _)) in TRAEFIK.iter().enumerate().filter(|(index, _)| *index != 1) {
        let mut headers = TRAEFIK.to_vec();
        headers.remove(index);
        assert_eq!(ask("/forward-auth", &headers).await, UNCHECKED);
        gateway.until_logged(&format!("incomplete check: let the proxy set `{name}`"));
        if *name != "x-forwarded-for" {
            let twice = [&TRAEFIK[..], &[(*name, "/free")]].concat();
            assert_eq!(ask("/forward-auth", &twice).await, UNCHECKED);
            gateway.until_logged(&format!("incomplete check: let the proxy replace `{name}`"));
        }
    }
    assert_eq!(ask("/", &TRAEFIK).await, UNCHECKED);
    gateway.until_logged("/auth-request (nginx)");
    let logged = gateway.log().matches(" [TG0418]").count();
    assert_eq!(ask("/", &TRAEFIK).await, UNCHECKED);
    assert_eq!(gateway.log().matches(" [TG0418]").count(), logged, "{}", gateway.log());
}

/// Odd requests, and the gateway's decision about each.
fn odd_requests(host: &str) -> Vec<(Vec<u8>, u16)> {
    let request = |target: &[u8], more: &str| {
        let rest = format!(" HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        [b"GET ", target, rest.as_bytes()].concat()
    };
    let fields = |count: usize| (0..count).map(|it| format!("x-{it}: 1\r\n")).collect::<String>();
    let targets: [(&[u8], u16); 13] = [
        ("/caf\u{e9}".as_bytes(), 200),
        (b"/caf\xe9", 200),
        (b"/a?q=\"x\"", 200),
        (b"/a<b>?<c>", 200),
        (b"/a`b", 200),
        (b"/a|b{c}?[d]^", 200),
        (b"//a//b", 200),
        (b"/a/../b;x", 200),
        (b"/a\\b", 400),
        (b"/a%2Fb", 400),
        (b"/a%00", 400),
        (b"/a%zz", 400),
        (b"/a%25252541", 400),
    ];
    let targets = targets.map(|(target, decided)| (request(target, ""), decided));
    let heads = [(98, 200), (150, 431), (300, 431)];
    let heads = heads.map(|(count, decided)| (request(b"/a", &fields(count - 2)), decided));
    let others = [
        (b"GET /a HTTP/1.0\r\n\r\n".to_vec(), 200),
        (b"GET /a HTTP/1.1\r\nHost: u@a\r\nConnection: close\r\n\r\n".to_vec(), 400),
        (request(b"/a", "X-A: a\u{1}b\r\n"), 400),
        ([&b"TRACE"[..], &request(b"/a", "")[3..]].concat(), 405),
    ];
    targets.into_iter().chain(heads).chain(others).collect()
}

/// Checks that a proxy passes on the decisions about odd requests. Except for nginx, proxies reject
/// some of these requests themselves.
fn check_odd_requests(program: &str, args: &[&str], files: &[&str]) {
    let (started, args) = unprivileged(program, args);
    let service = RawUpstream::new();
    let gateway = Gateway::start(
        "forwardAuth: {listen: 127.0.0.1:0, trustedProxies: [127.0.0.1]}
client: {strategy: sliding_window_log, limit: 1000, windowSeconds: 864000}
",
    );
    let decisions = gateway.fronts["forwardAuth"];
    let (_process, _folder, port) = proxy(started, &args, files, &[], decisions, service.address);
    until("the proxy listens", PATIENCE, || TcpStream::connect(port.address()).ok());
    let mut wrong = Vec::new();
    for (request, decided) in odd_requests(&port.address().to_string()) {
        let answer = exchange_bytes(port.address(), &request);
        let status = std::str::from_utf8(answer.get(9..12).unwrap_or_default());
        let status = status.unwrap().parse().unwrap_or(0);
        let is_own = program != "nginx" && [400, 404, 405, 426, 431, 501].contains(&status);
        if status != decided && !is_own {
            wrong.push((String::from_utf8_lossy(&request).into_owned(), status, decided));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_follows_decisions() {
    let nginx = ["-p", ".", "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off;"];
    check("nginx", &nginx, &["nginx.conf"]).await;
    check_odd_requests("nginx", &nginx, &["nginx.conf"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_follows_decisions() {
    let caddy = ["run", "--config", "Caddyfile"];
    check("caddy", &caddy, &["Caddyfile"]).await;
    check_odd_requests("caddy", &caddy, &["Caddyfile"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_follows_decisions() {
    let (haproxy, files) = (["-f", "haproxy.cfg"], ["haproxy.cfg", "tollgate.lua"]);
    check("haproxy", &haproxy, &files).await;
    check_odd_requests("haproxy", &haproxy, &files);
}

/// Only checks the configuration, because neither Debian nor PyPI packages Traefik.
#[test]
fn traefik_example_uses_gateway_paths() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fronts");
    let text = fs::read_to_string(examples.join("traefik.yaml")).unwrap();
    let file = &saphyr::Yaml::load_from_str(&text).unwrap()[0];
    let router = &file["http"]["routers"]["service"];
    let middleware = router["middlewares"][0].as_str().unwrap();
    let forward_auth = &file["http"]["middlewares"][middleware]["forwardAuth"];
    let address = forward_auth["address"].as_str().unwrap();
    assert_eq!(address, "http://127.0.0.1:8082/forward-auth");
    let service = router["service"].as_str().unwrap();
    let server = &file["http"]["services"][service]["loadBalancer"]["servers"][0]["url"];
    assert_eq!(server.as_str(), Some("http://127.0.0.1:3000"));
}
