//! Greedy clients, and a gateway with a low limit on open files.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use tokio::task::JoinSet;

use crate::support::{self, Client, Gateway, RawClient, Upstream, until, whole};

const FILES: usize = 300;

/// With these timeouts, a connection with an incomplete request remains open.
const PATIENT: &str = "timeouts: {requestHeader: 1h, keepAlive: 1h, connect: 1m}\n";

/// Connects from another loopback address.
fn connect_from(last: u8, address: SocketAddr) -> TcpStream {
    support::connect_from(Ipv4Addr::new(127, 0, 0, last), address)
}

/// Opens 400 connections, ten per address, and sends half a header on each.
fn flood(address: SocketAddr) -> Vec<TcpStream> {
    let half = |number: u16| {
        let mut stream = connect_from(2 + (number / 10) as u8, address);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-").unwrap();
        stream
    };
    (0..400).map(half).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_requests_do_not_exhaust_files() {
    const OPEN: usize = 40;
    let (upstream, gate) = Upstream::gated("/").await;
    let lines = format!("{}{PATIENT}", upstream.target());
    let gateway = Gateway::start_with_file_limit(FILES, &lines);
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let open = |number: usize| connect_from(200 + (number / 10) as u8, gateway.address);
    let mut open: Vec<_> = (0..OPEN).map(|number| RawClient::of(open(number))).collect();
    let _flood = flood(gateway.address);
    gateway.until_logged("connections are open, as many as `maxConnections` allows");

    // All of these requests are in flight at the same time, so each needs an upstream connection.
    open.iter_mut().for_each(|client| client.send(request));
    upstream.until_seen(OPEN).await;
    assert_eq!(gateway.admin("/healthz").await.status, 200);
    assert_eq!(gateway.admin("/readyz").await.status, 200);
    gateway.rewrite(&format!("{lines}client: {{limit: 1000, window: 1h}}\n"));
    gateway.until_config(|config| config["version"] == 2).await;
    gate.add_permits(OPEN);
    for client in &mut open {
        assert!(client.answer().starts_with("HTTP/1.1 200"));
    }
    let files = gateway.open_files();
    assert!(files < FILES, "{files} files are open");
    assert!(!gateway.log().contains("cannot accept a connection"), "{}", gateway.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_a_free_target_connection() {
    const REQUESTS: usize = 200;
    let (upstream, gate) = Upstream::gated("/").await;
    let lines = |connect: &str| {
        format!("{}timeouts: {{connect: {connect}, response: 1h}}\n", upstream.target())
    };
    let gateway = Gateway::start_with_file_limit(FILES, &lines("1h"));
    let mut asked = JoinSet::new();
    // Uses two clients because an HTTP/2 connection has at most a hundred concurrent streams.
    for client in [Client::http2(gateway.address), Client::http2(gateway.address)] {
        for _ in 0..REQUESTS / 2 {
            let client = client.clone();
            asked.spawn(async move { client.get("/").await });
        }
    }
    upstream.until_seen(100).await;
    gate.add_permits(REQUESTS);
    while let Some(answer) = asked.join_next().await {
        assert_eq!(answer.unwrap().status, 200);
    }
    assert_eq!(upstream.connections(), 100, "the target has a hundred connections at most");

    // A request that waits too long gets a 503 with a reason.
    gateway.rewrite(&lines("2s"));
    gateway.until_config(|config| config["version"] == 2).await;
    for client in [Client::http2(gateway.address), Client::http2(gateway.address)] {
        for _ in 0..REQUESTS / 2 {
            let client = client.clone();
            asked.spawn(async move { client.get("/").await });
        }
    }
    for _ in 0..REQUESTS / 2 {
        let answer = asked.join_next().await.unwrap().unwrap();
        assert_eq!((answer.status.as_u16(), answer.code()), (503, "too-many-connections".into()));
    }
    gate.add_permits(REQUESTS / 2);
    while let Some(answer) = asked.join_next().await {
        assert_eq!(answer.unwrap().status, 200);
    }
    gateway.until_logged("too-many-connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_limit_beyond_open_files_is_rejected() {
    let upstream = Upstream::new().await;
    let lines = |most: usize| {
        let listen = format!("listen: {{address: '127.0.0.1:0', maxConnections: {most}}}\n");
        format!("{listen}{}", upstream.target())
    };
    const WHY: &str = "this process may open 300 files, which is enough for 99 client connections, \
                       but the configuration needs 400 (`maxConnections` of all listeners): raise \
                       the limit on open files to 928 (`ulimit -Hn`), or lower `maxConnections`";
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), whole(&lines(400))).unwrap();
    let output = Command::new("bash")
        .args(["-c", "ulimit -n 300 && exec timeout 20 \"$0\" serve limits.yaml"])
        .arg(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&format!("error[TG0411]: {WHY}")), "{said}");

    // A reload is rejected for the same reason.
    let gateway = Gateway::start_with_file_limit(FILES, &lines(99));
    gateway.rewrite(&lines(400));
    let config = gateway.until_config(|config| config["failedReloads"] == 1).await;
    assert_eq!(config["lastError"]["message"], format!("{WHY} [TG0411]"));
    assert_eq!(Client::new(gateway.address).get("/").await.status, 200);
}

/// Sends a request. Returns true if the gateway responds, and false if it closes the connection.
fn is_served(stream: &mut TcpStream) -> bool {
    // The gateway may close the connection before it has read the request.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    !is_closed(stream)
}

/// Returns true if the gateway closes the connection, and false if it sends data.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 4096]) {
        Ok(read) => read == 0,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("neither data nor a close: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_per_address_are_limited() {
    let upstream = Upstream::new().await;
    let listen = "listen: {address: '127.0.0.1:0', maxConnectionsPerAddress: 3}\n";
    let lines = format!("{listen}{}{PATIENT}", upstream.target());
    let gateway = Gateway::start(&lines);
    let mut open: Vec<_> = (0..3).map(|_| connect_from(2, gateway.address)).collect();
    assert!(open.iter_mut().all(is_served));
    assert!(!is_served(&mut connect_from(2, gateway.address)));
    gateway.until_logged("127.0.0.2 has 3 connections open, as many as `maxConnectionsPerAddress`");
    assert!(is_served(&mut connect_from(3, gateway.address)));
    let metrics = gateway.metrics().await;
    assert!(metrics.contains("tollgate_gateway_refused_total 1\n"), "{metrics}");
    open.pop();
    until("the closed connection no longer counts", async || {
        is_served(&mut connect_from(2, gateway.address))
    })
    .await;
    // A trusted proxy is exempt because it represents many clients.
    gateway.rewrite(&format!("{lines}trustedProxies: [loopback]\n"));
    gateway.until_config(|config| config["version"] == 2).await;
    let mut more: Vec<_> = (0..10).map(|_| connect_from(2, gateway.address)).collect();
    assert!(more.iter_mut().all(is_served));
}

#[tokio::test(flavor = "multi_thread")]
async fn address_limit_defaults_to_a_quarter() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start_with_file_limit(FILES, &format!("{}{PATIENT}", upstream.target()));
    let mut open: Vec<_> = (0..24).map(|_| connect_from(2, gateway.address)).collect();
    assert!(open.iter_mut().all(is_served));
    assert!(!is_served(&mut connect_from(2, gateway.address)));
    assert!(is_served(&mut connect_from(3, gateway.address)));
}

/// An IPv6 client usually owns at least a /64.
#[tokio::test(flavor = "multi_thread")]
async fn ipv6_networks_share_the_address_limit() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&format!(
        "listen: {{address: '127.0.0.1:0', proxyProtocol: [loopback], maxConnectionsPerAddress: 2}}\n{}{PATIENT}",
        upstream.target()
    ));
    let mut open = Vec::new();
    for (client, expected) in [
        ("2001:db8:0:1::1", true),
        ("2001:db8:0:1:ffff::2", true),
        ("2001:db8:0:1::3", false),
        ("2001:db8:0:2::1", true),
    ] {
        let mut stream = connect_from(1, gateway.address);
        let header = format!("PROXY TCP6 {client} 2001:db8::9 1000 80\r\n");
        stream.write_all(header.as_bytes()).unwrap();
        assert_eq!(is_served(&mut stream), expected, "{client}");
        open.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_connections_are_limited_but_health_checks_succeed() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start_with_file_limit(FILES, &upstream.target());
    let mut half: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = connect_from(2, gateway.admin);
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-").unwrap();
            stream
        })
        .collect();
    assert_eq!(gateway.admin("/healthz").await.status, 200);
    // Newer connections have replaced the oldest.
    assert!(half[..60].iter_mut().all(is_closed));
    let files = gateway.open_files();
    assert!(files < 100, "{files} files are open");
}
