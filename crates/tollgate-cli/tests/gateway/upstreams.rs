//! Routes with several servers, Unix sockets, and header and path rewriting.

mod headers;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Client, Gateway, RawClient, Upstream};

/// A server that answers with its name. `/health` fails while the given file exists.
const SERVER: &str = "
import http.server, os, socket, socketserver, sys
port, name = sys.argv[1], sys.argv[2].encode()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = '/' not in port
    def do_GET(self):
        length = int(self.headers.get('content-length', 0))
        self.rfile.read(length)
        status, body = 200, name
        if self.path == '/health' and os.path.exists(sys.argv[3]):
            status = 503
        self.send_response(status)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def address_string(self):
        return 'client'
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
server = UnixServer(port, Handler) if '/' in port else Server(('127.0.0.1', int(port)), Handler)
print(server.server_address if '/' in port else server.server_address[1], flush=True)
server.serve_forever()
";

/// A server that runs as a separate process.
struct Server {
    process: Child,
    name: &'static str,
    /// `/health` fails while this folder contains a file named `ill`.
    ill: tempfile::TempDir,
    port: String,
}

impl Server {
    fn start(name: &'static str) -> Self {
        let ill = tempfile::TempDir::new().unwrap();
        let (process, port) = Self::run("0", name, &ill);
        Self { process, name, ill, port }
    }

    fn run(port: &str, name: &str, ill: &tempfile::TempDir) -> (Child, String) {
        let mut process = Command::new("python3")
            .args(["-c", SERVER, port, name])
            .arg(ill.path().join("ill"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        (process, port.trim().to_owned())
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the server again, on the same port.
    fn restart(&mut self) {
        self.process = Self::run(&self.port, self.name, &self.ill).0;
    }

    fn set_ill(&self, is_ill: bool) {
        let file = self.ill.path().join("ill");
        if is_ill { std::fs::write(file, "").unwrap() } else { std::fs::remove_file(file).unwrap() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn target(servers: &[&Server], more: &str) -> String {
    let urls: Vec<_> =
        servers.iter().map(|server| format!("'http://127.0.0.1:{}'", server.port)).collect();
    format!("target: {{url: [{}], {more}}}\n", urls.join(", "))
}

/// Sends requests until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    /// The number of responses with an error status.
    failed: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(address: SocketAddr, method: &'static str) -> Self {
        let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..CLIENTS).map(|_| {
            let (stop, failed) = (Arc::clone(&stop), Arc::clone(&failed));
            tokio::spawn(async move {
                let client = Client::new(address);
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.send(method, "/", &[], "").await.unwrap();
                    if answer.status != 200 {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let clients = clients.collect();
        Self { stop, failed, clients }
    }

    /// Stops the clients and returns the number of failed requests.
    async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
        self.failed.load(Ordering::Relaxed)
    }
}

const CLIENTS: usize = 4;

/// Waits until `is_so` accepts the servers of several consecutive requests.
async fn until_served_by(client: &Client, is_so: impl Fn(&[String]) -> bool) {
    for _ in 0..2_000 {
        let mut served = Vec::new();
        for _ in 0..6 {
            served.push(String::from_utf8(client.get("/").await.body.to_vec()).unwrap());
        }
        if is_so(&served) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("requests still reach the wrong servers");
}

async fn until_served_by_all(client: &Client, names: &[&str]) {
    until_served_by(client, |served| {
        names.iter().all(|name| served.iter().any(|it| it == name))
            && served.iter().all(|it| names.contains(&it.as_str()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_server_costs_no_repeatable_request() {
    for (balance, method) in [("roundRobin", "GET"), ("leastBusy", "POST")] {
        let (one, mut other) = (Server::start("one"), Server::start("other"));
        let options = format!("balance: {balance}, retryAfter: 100ms");
        let (gateway, client) = Gateway::with_client(&target(&[&one, &other], &options));
        until_served_by_all(&client, &["one", "other"]).await;

        let load = Load::start(gateway.address, method);
        other.kill();
        gateway.until_logged("the upstream gets no requests for now");
        until_served_by_all(&client, &["one"]).await;
        let failed = load.stop().await;
        // A server may already have processed a POST, so it is not retried.
        let in_flight = if method == "GET" { 0 } else { CLIENTS };
        assert!(failed <= in_flight, "{balance}: {failed} failed\n{}", gateway.log());

        let load = Load::start(gateway.address, method);
        other.restart();
        until_served_by_all(&client, &["one", "other"]).await;
        assert_eq!(load.stop().await, 0, "{balance}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_checks_remove_and_restore_a_server() {
    let (one, other) = (Server::start("one"), Server::start("other"));
    let check =
        "healthCheck: {path: /health, interval: 20ms, timeout: 10s, healthy: 2, unhealthy: 2}";
    let (gateway, client) = Gateway::with_client(&target(&[&one, &other], check));
    until_served_by_all(&client, &["one", "other"]).await;
    one.set_ill(true);
    until_served_by_all(&client, &["other"]).await;
    let text = gateway.metrics().await;
    let up = |port: &str, up: u8| {
        format!("tollgate_gateway_upstream_up{{upstream=\"127.0.0.1:{port}\"}} {up}")
    };
    assert!(text.contains(&up(&one.port, 0)) && text.contains(&up(&other.port, 1)), "{text}");
    one.set_ill(false);
    until_served_by_all(&client, &["one", "other"]).await;
    // If all servers are unhealthy, requests are sent anyway.
    one.set_ill(true);
    other.set_ill(true);
    gateway.until_logged("checks fail");
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_fails_no_request() {
    let (one, mut gone) = (Server::start("one"), Server::start("gone"));
    gone.kill();
    let (gateway, client) =
        Gateway::with_client(&target(&[&gone, &one], "maxFailures: 2, retryAfter: 1h"));
    for method in ["GET", "POST", "DELETE"] {
        for _ in 0..4 {
            let answer = client.send(method, "/", &[], "body").await.unwrap();
            let expected = if method == "DELETE" { 501 } else { 200 };
            assert_eq!(answer.status, expected, "{method}");
        }
    }
    let metrics = gateway.metrics().await;
    let failures = format!(
        "tollgate_gateway_upstream_failures_total{{upstream=\"127.0.0.1:{}\"}} 2",
        gone.port
    );
    assert!(metrics.contains(&failures), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_socket_is_a_target() {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("app.sock");
    let path = socket.to_str().unwrap();
    let (mut server, _) = Server::run(path, "socket", &folder);
    let (_gateway, client) = Gateway::with_client(&format!("target: unix:{path}\n"));
    assert_eq!(client.get("/").await.body, "socket");
    assert_eq!(client.send("POST", "/a", &[], "body").await.unwrap().body, "socket");
    server.kill().unwrap();
    server.wait().unwrap();
    let answer = client.get("/").await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (502, "upstream-unreachable"));
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_server_disappears_from_metrics() {
    let (mut one, other) = (Server::start("one"), Server::start("other"));
    let (gateway, client) =
        Gateway::with_client(&target(&[&one, &other], "maxFailures: 1, retryAfter: 1h"));
    one.kill();
    until_served_by_all(&client, &["other"]).await;
    gateway.until_logged("the upstream gets no requests for now");
    let up = |port: &str| format!("tollgate_gateway_upstream_up{{upstream=\"127.0.0.1:{port}\"}} ");
    let text = gateway.metrics().await;
    assert!(text.contains(&(up(&one.port) + "0")), "{text}");
    assert!(text.contains(&(up(&other.port) + "1")), "{text}");
    gateway.rewrite(&target(&[&other], ""));
    gateway.until_config(|config| config["version"] == 2).await;
    let text = gateway.metrics().await;
    assert!(!text.contains(&up(&one.port)), "{text}");
    assert!(text.contains(&(up(&other.port) + "1")), "{text}");
    assert_eq!(text.matches("# TYPE tollgate_gateway_upstream_up ").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_keeps_connections_and_health() {
    let (upstream, mut gone) = (Upstream::new().await, Server::start("gone"));
    gone.kill();
    let target = format!(
        "target: {{url: ['http://{}', 'http://127.0.0.1:{}'], maxFailures: 1, retryAfter: 1h}}\n",
        upstream.address, gone.port
    );
    // With so few files, each additional target lowers the connection limit for all targets.
    let gateway = Gateway::start_with_file_limit(300, &target);
    let client = Client::new(gateway.address);
    for _ in 0..4 {
        assert_eq!(client.get("/").await.status, 200);
    }
    gateway.until_logged("the upstream gets no requests for now");
    for (version, further) in [(2, "http://127.0.0.1:1"), (3, "https://127.0.0.1:1"), (4, "")] {
        let route = if further.is_empty() {
            String::new()
        } else {
            format!("routes: [{{name: further, path: /further, target: '{further}'}}]\n")
        };
        gateway.rewrite(&format!("{route}{target}"));
        gateway.until_config(|config| config["version"] == version).await;
        let metrics = gateway.metrics().await;
        let down =
            format!("tollgate_gateway_upstream_up{{upstream=\"127.0.0.1:{}\"}} 0", gone.port);
        assert!(metrics.contains(&down), "{further}: {metrics}");
        assert_eq!(client.get("/").await.status, 200);
        assert_eq!(upstream.connections(), 1, "{further}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_body_is_rejected() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.with("maxBodyBytes: 1000\n"));
    let mut client = RawClient::new(gateway.address);
    // The client does not send any of the body.
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n";
    let answer = client.ask(head);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body-too-large"), "{answer}");
    assert_eq!(upstream.seen().len(), 0);

    let chunk = format!("1f4\r\n{}\r\n", "x".repeat(500));
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for (chunks, status) in [(2, 200), (3, 413)] {
        let body = chunk.repeat(chunks);
        let answer = RawClient::new(gateway.address).ask(&format!("{head}{body}0\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    assert_eq!(upstream.seen().len(), 1, "the oversized body must not arrive truncated");
    for client in [Client::new(gateway.address), Client::http2(gateway.address)] {
        for (length, status) in [(1_000, 200), (1_001, 413), (0, 200)] {
            let answer = client.send("POST", "/", &[], &"x".repeat(length)).await.unwrap();
            assert_eq!(answer.status, status, "{length}");
        }
    }
}
