//! TLS and the PROXY protocol.

use std::fs;
use std::process::{Command, Output};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::support::{Gateway, Upstream, exchange, exchange_bytes};

/// Writes a self-signed certificate for `gateway.test`, `localhost` and 127.0.0.1, and its key.
pub(crate) fn certificate(folder: &TempDir, name: &str) {
    certificate_for(folder, name, &["gateway.test", "localhost", "127.0.0.1"]);
}

fn certificate_for(folder: &TempDir, name: &str, hosts: &[&str]) {
    let key = KeyPair::generate().unwrap();
    let params =
        CertificateParams::new(hosts.iter().map(|it| it.to_string()).collect::<Vec<_>>()).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    fs::write(folder.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
    fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// Writes a certificate authority and a certificate that it has signed.
pub(crate) fn authority(folder: &TempDir, name: &str) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([format!("{name}.test")]).unwrap();
    let client = params.signed_by(&key, &issuer).unwrap();
    for (file, text) in [
        (format!("{name}-ca.pem"), authority.pem()),
        (format!("{name}.pem"), client.pem()),
        (format!("{name}.key"), key.serialize_pem()),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
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
    curl_to(gateway, "gateway.test", "tls.pem", arguments)
}

/// Asks for this host, and trusts only this certificate.
fn curl_to(gateway: &Gateway, host: &str, certificate: &str, arguments: &[&str]) -> Output {
    let port = gateway.address.port();
    Command::new("curl")
        .args(["-sS", "--fail", "--max-time", "20", "--cacert"])
        .arg(gateway.file(certificate))
        .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
        .args(arguments)
        .arg(format!("https://{host}:{port}/"))
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
async fn server_name_selects_the_certificate() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    certificate_for(&folder, "shop", &["Shop.test", "*.shop.test"]);
    certificate_for(&folder, "pay", &["pay.shop.test"]);
    let tls = "{certificate: tls.pem, key: tls.key, sni: \
               [{certificate: shop.pem, key: shop.key}, {certificate: pay.pem, key: pay.key}]}";
    let lines = format!("listen: {{address: '127.0.0.1:0', tls: {tls}}}\n{}", upstream.target());
    let gateway = Gateway::start_in(folder, &lines);
    for (host, certificate, expected) in [
        ("gateway.test", "tls.pem", true),
        ("shop.test", "shop.pem", true),
        ("SHOP.test", "shop.pem", true),
        ("a.shop.test", "shop.pem", true),
        // An exact name precedes a wildcard.
        ("pay.shop.test", "pay.pem", true),
        // A wildcard covers one label.
        ("a.b.shop.test", "shop.pem", false),
        // Without a server name, the client gets the first certificate.
        ("127.0.0.1", "tls.pem", true),
    ] {
        let output = curl_to(&gateway, host, certificate, &[]);
        assert_eq!(output.status.success(), expected, "{host} {certificate}: {output:?}");
    }
    let renewed = TempDir::new().unwrap();
    certificate_for(&renewed, "shop", &["shop.test"]);
    for file in ["shop.pem", "shop.key"] {
        fs::copy(renewed.path().join(file), gateway.file(file)).unwrap();
    }
    gateway.until_config(|config| config["version"] == 2 && config["current"] == true).await;
    text(&curl_to(&gateway, "shop.test", "shop.pem", &[]));
}

/// A request with a client certificate, and its status. `None` if the gateway rejects the
/// certificate.
pub(crate) fn with_certificate(gateway: &Gateway, client: Option<&str>) -> Option<String> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"]);
    curl.arg(gateway.file("tls.pem"));
    if let Some(name) = client {
        curl.arg("--cert").arg(gateway.file(&format!("{name}.pem")));
        curl.arg("--key").arg(gateway.file(&format!("{name}.key")));
    }
    let url = format!("https://localhost:{}/", gateway.address.port());
    let output = curl.arg(url).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_identifies_the_client() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    let mut authorities = String::new();
    for name in ["ann", "bob", "stranger"] {
        authority(&folder, name);
        if name != "stranger" {
            let file = folder.path().join(format!("{name}-ca.pem"));
            authorities += &fs::read_to_string(file).unwrap();
        }
    }
    fs::write(folder.path().join("ca.pem"), authorities).unwrap();
    let tls = "{certificate: tls.pem, key: tls.key, clientCa: ca.pem, \
               clientCertificate: optional}";
    let gateway = Gateway::start_in(
        folder,
        &format!(
            "listen: {{address: '127.0.0.1:0', tls: {tls}}}
client: {{limit: 1, windowSeconds: 3600}}
identity: [certificate, ip]
{}",
            upstream.target()
        ),
    );
    for client in [Some("ann"), Some("bob"), None] {
        for status in ["200", "429"] {
            assert_eq!(with_certificate(&gateway, client).as_deref(), Some(status), "{client:?}");
        }
    }
    assert_eq!(with_certificate(&gateway, Some("stranger")), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn target_is_verified_by_its_own_authority() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    authority(&folder, "inner");
    let tls = "{certificate: tls.pem, key: tls.key, clientCa: inner-ca.pem}";
    let lines = format!("listen: {{address: '127.0.0.1:0', tls: {tls}}}\n{}", upstream.target());
    let inner = Gateway::start_in(folder, &lines);
    for (tls, status) in [
        ("ca: tls.pem, clientCertificate: {certificate: inner.pem, key: inner.key}", "200"),
        // The target rejects a client without a certificate.
        ("ca: tls.pem", "502"),
        // This authority has not signed the target's certificate.
        ("ca: inner-ca.pem, clientCertificate: {certificate: inner.pem, key: inner.key}", "502"),
    ] {
        let folder = TempDir::new().unwrap();
        for file in ["tls.pem", "inner.pem", "inner.key", "inner-ca.pem"] {
            fs::copy(inner.file(file), folder.path().join(file)).unwrap();
        }
        let port = inner.address.port();
        let target = format!("target: {{url: 'https://localhost:{port}', tls: {{{tls}}}}}\n");
        let gateway = Gateway::start_in(folder, &target);
        let answer = exchange(gateway.address, PLAIN);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{tls}: {answer}");
    }
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
