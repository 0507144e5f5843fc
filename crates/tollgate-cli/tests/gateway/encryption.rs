//! TLS and the PROXY protocol.

use std::fs;
use std::process::{Command, Output};

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use crate::support::{Gateway, Upstream, exchange, exchange_bytes};

/// Writes a self-signed certificate for `gateway.test` and `localhost`, and its key.
pub(crate) fn certificate(folder: &TempDir, name: &str) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["gateway.test", "localhost"].map(str::to_owned)).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    fs::write(folder.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
    fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

fn encrypted(upstream: &Upstream) -> (Gateway, String) {
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    let lines = format!(
        "listen: [{{address: '127.0.0.1:0', tls: {{certificate: tls.pem, key: tls.key}}}}]\n{}",
        upstream.target()
    );
    (Gateway::start_in(folder, &lines), lines)
}

fn curl(gateway: &Gateway, arguments: &[&str]) -> Output {
    let port = gateway.address.port();
    Command::new("curl")
        .args(["-sS", "--fail", "--max-time", "20", "--cacert"])
        .arg(gateway.file("tls.pem"))
        .args(["--resolve", &format!("gateway.test:{port}:127.0.0.1")])
        .args(arguments)
        .arg(format!("https://gateway.test:{port}/"))
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_works_for_both_http_versions() {
    let upstream = Upstream::new().await;
    let (gateway, _) = encrypted(&upstream);
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let said = text(&curl(&gateway, &[flag, "-w", " %{http_version}"]));
        assert_eq!(said, format!("ok {version}"));
        let seen = upstream.last();
        assert_eq!(seen.header("x-forwarded-proto"), "https");
        assert!(seen.header("forwarded").contains(";proto=https;host=\"gateway.test:"));
    }
    // Plain HTTP to a TLS listener gets no response.
    let said = exchange_bytes(gateway.address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!said.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificate_needs_no_restart() {
    let upstream = Upstream::new().await;
    let (gateway, _) = encrypted(&upstream);
    text(&curl(&gateway, &[]));
    let renewed = TempDir::new().unwrap();
    certificate(&renewed, "tls");
    // Between the two copies, the files do not match, so the gateway serves the old pair.
    for file in ["tls.pem", "tls.key"] {
        fs::copy(renewed.path().join(file), gateway.file(file)).unwrap();
    }
    gateway.until_config(|config| config["version"] == 2 && config["current"] == true).await;
    // By now, curl trusts only the new certificate.
    text(&curl(&gateway, &[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_upstream_needs_a_valid_certificate() {
    let upstream = Upstream::new().await;
    let (inner, _) = encrypted(&upstream);
    let port = inner.address.port();
    let gateway = Gateway::start(&format!("target: https://localhost:{port}\n"));
    // The gateway does not trust the upstream's self-signed certificate.
    let answer =
        exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("unreachable"), "{answer}");
    assert_eq!(upstream.seen().len(), 0);
}

const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn proxy_protocol_sets_the_client_address() {
    let upstream = Upstream::new().await;
    let listen = "listen: [{address: '127.0.0.1:0', proxyProtocol: [loopback]}]\n";
    let limit = "client: {limit: 1, windowSeconds: 3600}\n";
    let gateway = Gateway::start(&format!("{listen}{limit}{}", upstream.target()));
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend([198, 51, 100, 7, 127, 0, 0, 1, 0, 80, 0, 80]);
    v2.extend(PLAIN.as_bytes());
    for (bytes, client) in [
        (format!("PROXY TCP4 192.0.2.1 127.0.0.1 5000 80\r\n{PLAIN}").into_bytes(), "192.0.2.1"),
        (format!("PROXY TCP6 2001:db8::1 ::1 5000 80\r\n{PLAIN}").into_bytes(), "2001:db8::1"),
        (v2, "198.51.100.7"),
    ] {
        for status in ["200", "429"] {
            let answer = exchange_bytes(gateway.address, &bytes);
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{client}: {answer}");
        }
        assert_eq!(upstream.last().header("x-forwarded-for"), client);
    }
    // A missing or malformed PROXY header closes the connection.
    for bytes in [PLAIN.to_owned(), format!("PROXY TCP4 x y 1 2\r\n{PLAIN}")] {
        assert_eq!(exchange_bytes(gateway.address, bytes.as_bytes()), b"");
    }
    assert_eq!(upstream.seen().len(), 3);
}

/// In a container all connections appear to come from the bridge, and in a cluster from the node.
/// If private addresses were trusted by default, any client could forge its address.
#[tokio::test(flavor = "multi_thread")]
async fn bridge_address_is_not_trusted_by_default() {
    let upstream = Upstream::new().await;
    let listen = "listen: [{address: '127.0.0.1:0', proxyProtocol: [loopback]}]\n";
    let limit = "client: {limit: 2, windowSeconds: 3600}\n";
    let identity = "identity: {key: ipv4, header: X-Forwarded-For}\n";
    for (proxies, peer, believed) in [
        ("", "172.17.0.1", false),
        ("", "10.0.0.1", false),
        ("", "192.168.65.1", false),
        ("trustedProxies: [loopback]\n", "172.17.0.1", false),
        ("trustedProxies: [10.0.0.0/8]\n", "172.17.0.1", false),
        ("trustedProxies: [private]\n", "172.17.0.1", true),
        ("trustedProxies: [172.17.0.1]\n", "172.17.0.1", true),
        ("", "127.0.0.1", true),
    ] {
        let lines = format!("{listen}{limit}{identity}{proxies}{}", upstream.target());
        let gateway = Gateway::start(&lines);
        // The PROXY protocol simulates a peer address that tests cannot connect from.
        let statuses: Vec<_> = (1..=3)
            .map(|n| {
                let peer = format!("PROXY TCP4 {peer} 127.0.0.1 5000 80\r\n");
                let forwarded = format!("GET / HTTP/1.1\r\nX-Forwarded-For: 198.51.100.{n}\r\n");
                let request = PLAIN.replacen("GET / HTTP/1.1\r\n", &forwarded, 1);
                let answer = exchange(gateway.address, &format!("{peer}{request}"));
                answer["HTTP/1.1 ".len()..][..3].to_owned()
            })
            .collect();
        let expected = if believed { ["200", "200", "200"] } else { ["200", "200", "429"] };
        assert_eq!(statuses, expected, "{proxies:?} {peer}");
        let told = upstream.last().header("x-forwarded-for").to_owned();
        let client = if believed { format!("198.51.100.3, {peer}") } else { peer.to_owned() };
        assert_eq!(told, client, "{proxies:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_protocol_requires_a_listed_peer() {
    let upstream = Upstream::new().await;
    let listen = "listen: [{address: '127.0.0.1:0', proxyProtocol: [192.0.2.0/24]}]\n";
    let gateway = Gateway::start(&format!("{listen}{}", upstream.target()));
    let bytes = format!("PROXY TCP4 192.0.2.1 127.0.0.1 5000 80\r\n{PLAIN}");
    assert_eq!(exchange_bytes(gateway.address, bytes.as_bytes()), b"");
    assert_eq!(upstream.seen().len(), 0);
}
