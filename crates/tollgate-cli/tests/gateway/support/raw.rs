//! HTTP as raw bytes, for input that no client library would send, and to see the bytes that an
//! upstream receives.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use socket2::{Domain, Socket, Type};

use super::PATIENCE;

/// Sends these bytes and reads until the other side closes the connection.
pub(crate) fn exchange(address: SocketAddr, request: &str) -> String {
    String::from_utf8_lossy(&exchange_bytes(address, request.as_bytes())).into_owned()
}

/// Like [`exchange`], from this address of the machine.
pub(crate) fn exchange_from(ip: Ipv4Addr, address: SocketAddr, request: &str) -> String {
    let answer = exchange_with(connect_from(ip, address), request.as_bytes());
    String::from_utf8_lossy(&answer).into_owned()
}

/// Connects from this address of the machine.
pub(crate) fn connect_from(ip: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

pub(crate) fn exchange_bytes(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange_with(stream, request)
}

fn exchange_with(mut stream: TcpStream, request: &[u8]) -> Vec<u8> {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // The socket is reset if the other side closes before it has read everything.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        read => drop(read.unwrap()),
    }
    answer
}

/// A client that reads one response after another from the same connection.
pub(crate) struct RawClient {
    stream: TcpStream,
    read: Vec<u8>,
}

impl RawClient {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        Self::of(stream)
    }

    /// Uses an existing connection.
    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, read: Vec::new() }
    }

    /// Sends a request and returns the response.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.answer()
    }

    pub(crate) fn send(&mut self, request: &str) {
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    /// Reads the next response, which must have a `Content-Length`.
    pub(crate) fn answer(&mut self) -> String {
        self.message().expect("the connection closed without a response")
    }

    /// Reads the next message. `None` if the connection closes before it.
    pub(crate) fn message(&mut self) -> Option<String> {
        let head = read_until(&mut self.stream, &mut self.read, |bytes| find(bytes, b"\r\n\r\n"))?;
        let lines = String::from_utf8_lossy(&self.read[..head]).to_ascii_lowercase();
        let length = lines.lines().find_map(|line| line.strip_prefix("content-length: "));
        let whole = head + length.map_or(0, |length| length.parse().unwrap());
        let end = |bytes: &[u8]| (bytes.len() >= whole).then_some(whole);
        read_until(&mut self.stream, &mut self.read, end).expect("the response is incomplete");
        Some(String::from_utf8(self.read.drain(..whole).collect()).unwrap())
    }
}

/// A server that runs `serve` on a thread for each connection.
pub(crate) fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// An upstream that records the raw bytes it receives.
pub(crate) struct RawUpstream {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    heads: Arc<AtomicUsize>,
}

impl RawUpstream {
    /// Answers each request with these bytes.
    pub(crate) fn answering(answer: &'static str) -> Self {
        Self::start(answer, false)
    }

    /// Answers a single request per connection with these bytes, then closes the connection.
    pub(crate) fn closing(answer: &'static str) -> Self {
        Self::start(answer, true)
    }

    fn start(answer: &'static str, closes: bool) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let heads = Arc::<AtomicUsize>::default();
        let (seen, begun) = (Arc::clone(&requests), Arc::clone(&heads));
        let address = listen(move |stream| serve(stream, answer, closes, &seen, &begun));
        Self { address, requests, heads }
    }

    /// Answers each request with `ok`.
    pub(crate) fn new() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    }

    /// The requests so far: header and body, unmodified.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// How many request headers have arrived, even if the body was incomplete.
    pub(crate) fn heads(&self) -> usize {
        self.heads.load(Ordering::Relaxed)
    }

    /// The configuration line that selects this upstream.
    pub(crate) fn target(&self) -> String {
        format!("target: http://{}\n", self.address)
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &str,
    closes: bool,
    seen: &Mutex<Vec<String>>,
    heads: &AtomicUsize,
) {
    let mut buffer = Vec::new();
    loop {
        let Some(end) = read_until(&mut stream, &mut buffer, |bytes| find(bytes, b"\r\n\r\n"))
        else {
            return;
        };
        heads.fetch_add(1, Ordering::Relaxed);
        let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
        let is_chunked = head.contains("transfer-encoding: chunked");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        let whole = read_until(&mut stream, &mut buffer, |bytes| {
            if is_chunked {
                find(&bytes[end..], b"0\r\n\r\n").map(|length| end + length)
            } else {
                (bytes.len() >= end + length).then_some(end + length)
            }
        });
        let Some(whole) = whole else { return };
        let request: Vec<u8> = buffer.drain(..whole).collect();
        seen.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
        if stream.write_all(answer.as_bytes()).is_err() || closes {
            return;
        }
    }
}

/// Reads until `end` finds the end of the message. Returns `None` if the stream closes before that.
fn read_until(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    end: impl Fn(&[u8]) -> Option<usize>,
) -> Option<usize> {
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = end(buffer) {
            return Some(end);
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(read) => buffer.extend_from_slice(&piece[..read]),
        }
    }
}

/// The end of the first occurrence of `text`.
fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|part| part == text).map(|start| start + text.len())
}
