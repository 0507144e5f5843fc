//! Memory used by clients that request a lot and read little.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{Gateway, is_heavy};

/// The maximum memory for a stream or an HTTP/1 connection, in KiB.
const STREAM: u64 = 256;

/// The maximum memory for an HTTP/2 connection with a hundred streams, in KiB. Debug builds have
/// larger futures.
const CONNECTION: u64 = if cfg!(debug_assertions) { 5 << 10 } else { 4 << 10 };

/// Chunk sizes; the largest exceeds every buffer. Debug builds need half a minute to fill the
/// buffers with single bytes.
fn chunks() -> &'static [usize] {
    if is_heavy() { &[1, 5, 100, 1_000, 8_000, 16 << 10, 100_000] } else { &[10, 8_000] }
}

/// A target that answers `/ok` with a short body, and any other request with endless chunks of the
/// same size.
struct Flood {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
}

impl Flood {
    fn new(chunk: usize) -> Self {
        let socket = small_socket();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1_024).unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&sent);
        let one = [format!("{chunk:x}\r\n").as_bytes(), &vec![b'x'; chunk], b"\r\n"].concat();
        // Each segment contains many chunks, so the gateway reads a full buffer of chunks.
        let many = one.repeat((1 << 14) / one.len() + 1);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // The gateway may disconnect at any time.
                tokio::spawn(flood(stream, many.clone(), Arc::clone(&counter)));
            }
        });
        Self { address, sent }
    }
}

async fn flood(mut stream: TcpStream, many: Vec<u8>, sent: Arc<AtomicU64>) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    if head.starts_with(b"GET /ok ") {
        return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    loop {
        stream.write_all(&many).await?;
        sent.fetch_add(many.len() as u64, Ordering::Relaxed);
    }
}

/// A socket with small buffers. With loopback's large segments, the kernel would buffer megabytes
/// before any bytes wait in the gateway.
fn small_socket() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket2::SockRef::from(&socket).set_tcp_mss(536).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.set_send_buffer_size(4_096).unwrap();
    socket
}

/// The paths `/` and `/ok`, HPACK-encoded.
const ENDLESS: &[u8] = b"\x84";
const SHORT: &[u8] = b"\x04\x03/ok";

/// Encodes `streams` requests over HTTP/2 with the largest windows.
fn over_http2(streams: u32, path: &[u8]) -> Vec<u8> {
    let head = [b"\x82\x86", path, b"\x01\x01a"].concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff");
    bytes.extend(b"\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0");
    for number in 0..streams {
        bytes.extend([0, 0, head.len() as u8, 1, 5]);
        bytes.extend((2 * number + 1).to_be_bytes());
        bytes.extend(&head);
    }
    bytes
}

/// Waits until the gateway uses no processor time and the target sends no bytes.
async fn until_idle(gateway: &Gateway, sent: &AtomicU64) {
    let started = Instant::now();
    let (mut before, mut same) = ((0, 0), 0);
    while same < 10 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let now = (sent.load(Ordering::Relaxed), gateway.processor_time());
        same = if now == before { same + 1 } else { 0 };
        before = now;
        assert!(started.elapsed() < PATIENCE, "the gateway is still busy: {now:?}");
    }
}

/// Sends a request to each worker, because a worker's first request allocates its stack. The
/// gateway assigns a connection to the worker with the fewest.
async fn warm_up(gateway: &Gateway) -> Vec<TcpStream> {
    let mut answered = Vec::new();
    for _ in 0..WORKERS {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(&over_http2(1, SHORT)).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            answer.push(stream.read_u8().await.unwrap());
        }
        answered.push(stream);
    }
    answered
}

const WORKERS: usize = 2;

/// Opens `times` connections that send this request without reading the response. Returns the
/// memory that each takes, in KiB.
async fn cost(gateway: &Gateway, sent: &AtomicU64, request: &[u8], times: u64) -> u64 {
    let _answered = timeout(PATIENCE, warm_up(gateway)).await.unwrap();
    let mut unread = Vec::new();
    let mut before = 0;
    // The first connection also allocates shared memory, so measure after it.
    for round in [1, times] {
        before = gateway.resident();
        for _ in 0..round {
            let mut stream = small_socket().connect(gateway.address).await.unwrap();
            stream.write_all(request).await.unwrap();
            unread.push(stream);
        }
        until_idle(gateway, sent).await;
    }
    (gateway.resident() - before) / times
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_take_bounded_memory() {
    for &chunk in chunks() {
        let flood = Flood::new(chunk);
        let mut costs = Vec::new();
        for (request, times, most) in [
            (over_http2(100, ENDLESS), 1, CONNECTION),
            (over_http2(1, ENDLESS), 4, STREAM),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 4, STREAM),
        ] {
            let workers = WORKERS.to_string();
            let variables = [("TOKIO_WORKER_THREADS", &*workers)];
            let target = format!("target: http://{}\n", flood.address);
            let gateway = Gateway::start_with_variables(&variables, &target);
            let cost = cost(&gateway, &flood.sent, &request, times).await;
            costs.push(cost);
            assert!(cost <= most, "chunks of {chunk} bytes: {costs:?} KiB");
        }
        println!("chunks of {chunk} bytes: {costs:?} KiB");
    }
}

/// No step takes this long in a passing test.
const PATIENCE: Duration = Duration::from_secs(120);
