//! Requests that are answered before their body is read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use http::Response;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::support::{Client, Gateway, RawClient, RawUpstream, Upstream, is_heavy, listen};

/// The body size. These clients do not read before they have sent the entire body.
const SIZE: usize = 10_000_000;

/// Sends POST requests, each over its own connection, and prints a line with the response for each.
const PYTHON: &str = "
import http.client, sys
for n in range(int(sys.argv[2])):
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    try:
        connection.request('POST', sys.argv[4], b'x' * int(sys.argv[3]), {'X-API-Key': 'k'})
        answer = connection.getresponse()
        print(answer.status, answer.getheader('connection'), len(answer.read()) > 20)
    except OSError as error:
        print(repr(error))
";

/// Does the same in Node.js.
const NODE: &str = "
const http = require('http');
const [address, times, size, path] = process.argv.slice(1);
const [hostname, port] = address.split(':');
const body = Buffer.alloc(Number(size), 'x');
const headers = { 'X-API-Key': 'k', 'Content-Length': body.length };
const post = left => {
  if (left === 0) return;
  const next = line => { console.log(line); post(left - 1); };
  const request = http.request({ hostname, port, path, headers, method: 'POST', agent: false });
  let status;
  request.on('error', error => status || next(error));
  request.on('response', answer => {
    status = answer.statusCode;
    let length = 0;
    answer.on('data', data => { length += data.length; });
    answer.on('end', () => {
      next([status, answer.headers.connection, length > 20 ? 'True' : 'False'].join(' '));
      request.destroy();
    });
  });
  request.end(body);
};
post(Number(times));
";

fn post(client: [&str; 3], gateway: &Gateway, times: usize, path: &str) -> Vec<String> {
    let [address, times, size] = [gateway.address.to_string(), times.to_string(), SIZE.to_string()];
    let output =
        Command::new(client[0]).args(&client[1..]).args([&address, &times, &size, path]).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", client[0]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

const CLIENTS: [[&str; 3]; 2] = [["python3", "-c", PYTHON], ["node", "-e", NODE]];

#[tokio::test(flavor = "multi_thread")]
async fn large_upload_receives_its_rejection() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "routes:\n\
         - {{name: api, path: /api/*, target: 'http://{}'}}\n\
         - {{name: small, path: /small, target: {{url: 'http://{}', maxBodyBytes: 9999999}}}}\n\
         - {{name: away, path: /away, target: 'http://127.0.0.1:1'}}\n\
         apis: [{{identifier: upload, path: /api/upload, limit: 1, window: 1h}}]\n",
        upstream.address, upstream.address
    );
    let gateway = Gateway::start(&lines);
    assert_eq!(Client::new(gateway.address).get("/api/upload").await.status, 200);
    let many = if is_heavy() { 50 } else { 4 };
    for (path, status, times) in [
        ("/api/upload", 429, many),
        ("/nowhere", 404, many),
        ("/api%2Fx", 400, many),
        ("/small", 413, many),
        ("/away", 502, many),
    ] {
        let expected = vec![format!("{status} close True"); times];
        for client in CLIENTS {
            assert_eq!(post(client, &gateway, times, path), expected, "{} {path}", client[0]);
        }
    }
    // With a chunked body, the gateway must count the bytes.
    let python = PYTHON.replace("b'x' * int(sys.argv[3])", "(b'x' * 1000 for _ in range(10000))");
    let expected = vec!["413 close True".to_owned(); many];
    assert_eq!(post(["python3", "-c", &python], &gateway, many, "/small"), expected);
    assert_eq!(upstream.seen().len(), 1);
}

/// curl and Java's client offer `h2c` on connections without TLS.
#[tokio::test(flavor = "multi_thread")]
async fn h2c_upload_receives_its_rejection() {
    let gateway =
        Gateway::start("routes: [{name: away, path: /away, target: 'http://127.0.0.1:1'}]\n");
    let python = PYTHON.replace("'k'}", "'k', 'Upgrade': 'h2c', 'Connection': 'Upgrade'}");
    let expected = vec!["404 close True".to_owned(); 5];
    assert_eq!(post(["python3", "-c", &python], &gateway, 5, "/nowhere"), expected);
}

/// curl 7.88 fails if an HTTP/2 stream is reset before it has sent the entire body.
#[tokio::test(flavor = "multi_thread")]
async fn http2_upload_receives_its_rejection() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "routes:\n\
         - {{name: api, path: /api/*, target: 'http://{}'}}\n\
         - {{name: small, path: /small, target: {{url: 'http://{}', maxBodyBytes: 999999}}}}\n\
         apis: [{{identifier: upload, path: /api/upload, limit: 1, window: 1h}}]\n",
        upstream.address, upstream.address
    );
    let gateway = Gateway::start(&lines);
    assert_eq!(Client::new(gateway.address).get("/api/upload").await.status, 200);
    let file = gateway.file("body");
    for size in [1_100_000, SIZE] {
        std::fs::write(&file, "x".repeat(size)).unwrap();
        for (path, status) in [("/api/upload", 429), ("/nowhere", 404), ("/small", 413)] {
            let output = Command::new("curl")
                .args(["-sS", "--http2-prior-knowledge", "-w", " %{http_code}", "--data-binary"])
                .arg(format!("@{}", file.display()))
                .arg(format!("http://{}{path}", gateway.address))
                .output()
                .unwrap();
            let answer = String::from_utf8(output.stdout).unwrap();
            assert!(answer.ends_with(&format!("}} {status}")), "{size} {path}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn early_target_response_is_forwarded() {
    let target = listen(|mut stream| {
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        let answer = format!("HTTP/1.1 413 No\r\nContent-Length: 30\r\n\r\n{}", "x".repeat(30));
        stream.write_all(answer.as_bytes()).unwrap();
        std::mem::forget(stream);
    });
    let gateway = Gateway::start(&format!("target: http://{target}\n"));
    for client in CLIENTS {
        assert_eq!(post(client, &gateway, 4, "/"), vec!["413 close True"; 4], "{}", client[0]);
    }
}

/// The body must not be parsed as the next request either.
#[test]
fn small_rejected_body_keeps_the_connection() {
    let upstream = RawUpstream::new();
    let gateway =
        Gateway::start(&format!("{}client: {{limit: 1, window: 1h}}\n", upstream.target()));
    let body = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = body.len();
    let plain = format!("Content-Length: {length}\r\n\r\n{body}");
    let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n");
    let mut client = RawClient::new(gateway.address);
    let mut ask = |status: &str, framed: &str| {
        let answer = client.ask(&format!("POST / HTTP/1.1\r\nHost: a\r\n{framed}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        answer.to_ascii_lowercase().contains("connection: close")
    };
    assert!(!ask("200", &plain) && !ask("429", &plain) && !ask("429", &plain));
    // Only the body's end would show how long it is.
    assert!(ask("429", &chunked));
    assert_eq!(client.message(), None);
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_header_receives_a_response() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    for _ in 0..10 {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}", "a".repeat(8 << 20));
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

/// An HTTP/2 target that responds when a body fills the first window, and reads the rest later.
async fn early_responder(listener: TcpListener, goes_on: oneshot::Receiver<()>) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    tokio::spawn(async move { while connection.accept().await.is_some() {} });
    let (mut body, mut length) = (request.into_body(), 0);
    while length < WINDOW {
        length += body.data().await.unwrap().unwrap().len();
    }
    let mut answer = respond.send_response(Response::new(()), false).unwrap();
    goes_on.await.unwrap();
    body.flow_control().release_capacity(length).unwrap();
    while let Some(data) = body.data().await {
        length += data.unwrap().len();
    }
    answer.send_data(format!("{length} bytes").into(), true).unwrap();
}

/// HTTP/2's initial window size.
const WINDOW: usize = 65_535;

#[tokio::test(flavor = "multi_thread")]
async fn early_response_does_not_stop_the_upload() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = format!("{{url: 'http://{}', protocol: http2}}", listener.local_addr().unwrap());
    let gateway = Gateway::start(&format!("target: {target}\n"));
    let (go_on, goes_on) = oneshot::channel();
    tokio::spawn(early_responder(listener, goes_on));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The last part of the body does not fit into the window.
    let length = WINDOW + 30_000;
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), &vec![b'x'; length]].concat()).unwrap();
    let mut answer = BufReader::new(stream).lines().map(Result::unwrap);
    assert_eq!(answer.next().unwrap(), "HTTP/1.1 200 OK");
    assert!(answer.any(|line| line.is_empty()), "the header is incomplete");
    go_on.send(()).unwrap();
    // The chunk length precedes it.
    assert_eq!(answer.nth(1), Some(format!("{length} bytes")));
}
