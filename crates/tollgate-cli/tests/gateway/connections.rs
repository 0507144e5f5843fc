//! Large numbers of connections, and malicious clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::frames::{CONTINUATION, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame};
use crate::support::{Client, Gateway, Outcome, RawHttp2, Upstream, is_heavy};

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_cheap_and_usable() {
    // With a limit of 20 000 open files, this leaves enough for the target's connections.
    let count = if is_heavy() { 9_500 } else { 400 };
    // This process holds the client end of every connection.
    let files = std::process::Command::new("bash").args(["-c", "ulimit -n"]).output().unwrap();
    let files: u64 = String::from_utf8(files.stdout).unwrap().trim().parse().unwrap_or(u64::MAX);
    assert!(files > count + 100, "raise the limit of open files above {count}: ulimit -n 20000");

    let upstream = Upstream::new().await;
    let listen = "listen: [{address: '127.0.0.1:0', maxConnectionsPerAddress: 20000}]\n";
    let client = "client: {limit: 100000, windowSeconds: 3600}\n";
    let (gateway, client) = Gateway::with_client(&[listen, &upstream.target(), client].concat());
    client.get("/").await;
    let before = gateway.resident();
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let address = gateway.address;
    let waiting = tokio::task::spawn_blocking(move || {
        let mut waiting = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(request).unwrap();
            is_answered(&mut stream);
            waiting.push(stream);
        }
        waiting
    });
    let mut waiting = waiting.await.unwrap();
    let each = (gateway.resident() - before) / count;
    println!("{count} connections that wait: {each} KiB each");
    assert!(each <= 20, "{each} KiB each");
    assert_eq!(client.get("/").await.status, 200);
    let again = tokio::task::spawn_blocking(move || {
        for stream in waiting.iter_mut().step_by(97) {
            stream.write_all(request).unwrap();
            is_answered(stream);
        }
        waiting.len() as u64
    });
    assert_eq!(again.await.unwrap(), count);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_version_is_detected_across_reads() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&upstream.target());
    let post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let get = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, END, 1, GET)].concat();
    for (bytes, answer) in [(&post[..], &b"HTTP/1.1 200"[..]), (&get, &[0, 0, 0, SETTINGS])] {
        for first in [1, 2, 3, 16, 23, 24, 30] {
            let (mut stream, mut start) = (TcpStream::connect(gateway.address).unwrap(), [0; 12]);
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.write_all(&bytes[..first]).unwrap();
            // This gives the gateway time to read the first piece.
            assert_eq!(client.get("/").await.status, 200);
            stream.write_all(&bytes[first..]).unwrap();
            stream.read_exact(&mut start).unwrap();
            // The server's first frame is SETTINGS; only its type is fixed.
            let start = if answer.len() == 4 { &[0, 0, 0, start[3]][..] } else { &start };
            assert_eq!(start, answer, "after {first} bytes");
        }
    }
}

/// A configuration that limits the listener to `max` connections.
fn with_max_connections(upstream: &Upstream, max: usize, timeouts: &str) -> String {
    let listen = format!("listen: [{{address: '127.0.0.1:0', maxConnections: {max}}}]\n");
    format!("{listen}{}timeouts: {{{timeouts}}}\n", upstream.target())
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_connections_wait_for_a_free_slot() {
    let upstream = Upstream::new().await;
    // These timeouts are too long for the gateway to close a connection during the test.
    let timeouts = "keepAlive: 1h, requestHeader: 1h";
    let gateway = Gateway::start(&with_max_connections(&upstream, 2, timeouts));
    let address = gateway.address;
    let open = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream
    };
    let [mut first, mut second] = [open(), open()];
    is_answered(&mut first);
    is_answered(&mut second);
    let mut third = open();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(third.read(&mut [0; 1]).is_err(), "both connections are still open");
    gateway.until_logged("2 connections are open, as many as `maxConnections` allows");
    let metrics = gateway.metrics().await;
    for line in ["tollgate_gateway_connections 2\n", "tollgate_gateway_full_total 1\n"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    third.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    drop(first);
    is_answered(&mut third);
    // Raising the limit takes effect immediately.
    let mut fourth = open();
    gateway.rewrite(&with_max_connections(&upstream, 3, timeouts));
    is_answered(&mut fourth);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_raises_its_open_file_limit() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    let limits = gateway.limits();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = files.split_whitespace().skip(3).take(2).collect();
    assert!(numbers[0] == numbers[1] && numbers[0] != "1024", "{files}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connection_yields_to_a_waiting_client() {
    let upstream = Upstream::new().await;
    // `requestHeader` also sets how often the gateway checks its connections.
    let gateway =
        Gateway::start(&with_max_connections(&upstream, 1, "keepAlive: 1h, requestHeader: 200ms"));
    let mut idle = TcpStream::connect(gateway.address).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    is_answered(&mut idle);
    assert_eq!(Client::new(gateway.address).get("/").await.status, 200);
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "it was closed");
}

fn is_answered(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.ends_with(b"\r\n\r\nok") {
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..read]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

const END: u8 = 0x5;
const ENHANCE_YOUR_CALM: u8 = 11;

/// `:method: GET`, `:scheme: http`, `:path: /`, `:authority: a`, in HPACK.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 0x01, b'a'];

/// CVE-2023-44487: opening and immediately resetting streams is free for the client.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_reset_closes_the_connection() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    let mut bytes = Vec::new();
    for number in 0..2_000 {
        let stream = 2 * number + 1;
        bytes.extend(frame(HEADERS, END, stream, GET));
        bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    let mut attack = RawHttp2::new(gateway.address);
    attack.send(&bytes);
    let goodbye = std::iter::from_fn(|| attack.read()).find(|(kind, ..)| *kind == GOAWAY);
    let (.., goodbye) = goodbye.expect("the gateway says GOAWAY");
    assert_eq!(goodbye[7], ENHANCE_YOUR_CALM, "{goodbye:?}");
    assert!(upstream.seen().len() < 200, "{} requests reached the upstream", upstream.seen().len());
    assert_eq!(Client::http2(gateway.address).get("/").await.status, 200);
}

/// CVE-2024-27316: an endless header block.
#[tokio::test(flavor = "multi_thread")]
async fn continuation_flood_takes_little_memory() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    assert_eq!(Client::http2(gateway.address).get("/").await.status, 200);
    let before = gateway.resident();
    // A literal header of 16 KB without indexing, named `a`.
    let field = [b"\0\x01a\x7f\x81\x7c".as_slice(), &[b'x'; 16_000]].concat();
    for (piece, times) in
        [(&field[..], 4_000), (b"\0\x01a\x01b".as_slice(), 100_000), (b"", 100_000)]
    {
        let mut attack = RawHttp2::new(gateway.address);
        attack.frame(HEADERS, 0, 1, GET);
        for _ in 0..times {
            attack.frame(CONTINUATION, 0, 1, piece);
        }
        assert_eq!(attack.outcome(1), Outcome::Closed, "{} bytes", piece.len());
    }
    let taken = gateway.resident() - before;
    assert!(taken < 4 << 10, "{taken} KiB");
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(Client::http2(gateway.address).get("/").await.status, 200);
}

/// HPACK bomb: each byte refers to a header of 4 KB, so 16 KB expand to 64 MB.
#[tokio::test(flavor = "multi_thread")]
async fn hpack_bomb_takes_little_memory() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    assert_eq!(Client::http2(gateway.address).get("/").await.status, 200);
    let before = gateway.resident();
    // A literal header of 4000 bytes named `a`. Indexing assigns it 0xBE.
    let field = [b"\x40\x01a\x7f\xa1\x1e".as_slice(), &[b'x'; 4_000]].concat();
    for _ in 0..4 {
        let mut attack = RawHttp2::new(gateway.address);
        attack.frame(HEADERS, END, 1, &[GET, &field].concat());
        assert_eq!(attack.outcome(1), Outcome::Status(200));
        attack.frame(HEADERS, END, 3, &[GET, &[0xBE; 3]].concat());
        assert_eq!(attack.outcome(3), Outcome::Status(200));
        attack.frame(HEADERS, END, 5, &[GET, &[0xBE; 16_000]].concat());
        assert_ne!(attack.outcome(5), Outcome::Status(200));
    }
    let taken = gateway.resident() - before;
    assert!(taken < 4 << 10, "{taken} KiB");
    assert_eq!(upstream.seen().len(), 9);
    assert_eq!(Client::http2(gateway.address).get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_announces_its_concurrent_streams() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    let (kind, .., settings) = RawHttp2::new(gateway.address).read().unwrap();
    assert_eq!(kind, SETTINGS);
    let streams = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).unwrap();
    assert_eq!(u32::from_be_bytes(streams[2..].try_into().unwrap()), 100);
}
