//! HTTP/2 frame by frame, for input that no client library would send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A connection on which the test writes each frame.
pub(crate) struct RawHttp2 {
    stream: TcpStream,
}

/// How the server ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With a response of this status.
    Status(u16),
    /// With RST_STREAM.
    Reset,
    /// With GOAWAY or by closing the connection.
    Closed,
}

impl RawHttp2 {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(PREFACE).unwrap();
        let mut http2 = Self { stream };
        http2.frame(SETTINGS, 0, 0, &[]);
        http2
    }

    /// Accepts a connection as the server.
    pub(crate) fn of_server(mut stream: TcpStream) -> Self {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        let mut http2 = Self { stream };
        http2.frame(SETTINGS, 0, 0, &[]);
        http2
    }

    /// The stream of the next request, or `None` if the client has closed the connection.
    pub(crate) fn next_request(&mut self) -> Option<u32> {
        loop {
            let (kind, flags, stream, _) = self.read()?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
                HEADERS => return Some(stream),
                _ => {}
            }
        }
    }

    /// The next complete request's stream, and its body's size.
    pub(crate) fn next_whole_request(&mut self) -> Option<(u32, usize)> {
        let mut body = 0;
        loop {
            let (kind, flags, stream, payload) = self.read()?;
            if kind == DATA {
                body += payload.len();
            }
            // HEADERS or DATA with END_STREAM.
            if kind <= HEADERS && flags & 1 == 1 {
                return Some((stream, body));
            }
        }
    }

    /// The kind, flags, stream and payload of the next frame.
    pub(crate) fn read(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((kind, flags, u32::from_be_bytes(id), payload))
    }

    /// Sends HEADERS with these fields, without validation.
    pub(crate) fn headers(&mut self, stream: u32, fields: &[(&str, &str)], is_last: bool) {
        let mut block = Vec::new();
        for (name, value) in fields {
            // HPACK: a literal without indexing, with a new name.
            block.push(0);
            for text in [name, value] {
                length(&mut block, text.len());
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.frame(HEADERS, END_HEADERS | u8::from(is_last), stream, &block);
    }

    pub(crate) fn data(&mut self, stream: u32, bytes: &[u8], is_last: bool) {
        self.frame(DATA, u8::from(is_last), stream, bytes);
    }

    /// Sends an arbitrary frame.
    pub(crate) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.send(&frame(kind, flags, stream, payload));
    }

    pub(crate) fn send(&mut self, frames: &[u8]) {
        // The server may already have closed the connection after a protocol error.
        let _ = self.stream.write_all(frames);
    }

    /// Reads until the server closes this stream or starts its response.
    pub(crate) fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            let Some((kind, _, id, payload)) = self.read() else { return Outcome::Closed };
            let is_ours = id == stream;
            match kind {
                HEADERS if is_ours => return Outcome::Status(status(&payload)),
                RST_STREAM if is_ours => return Outcome::Reset,
                GOAWAY => return Outcome::Closed,
                _ => {}
            }
        }
    }
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes an HPACK integer with a prefix of seven bits.
fn length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else {
        return block.push(length as u8);
    };
    block.push(127);
    while rest >= 128 {
        block.push(rest as u8 | 128);
        rest >>= 7;
    }
    block.push(rest as u8);
}

/// The status, which is a response's first field.
fn status(block: &[u8]) -> u16 {
    match block {
        // In HPACK's static table.
        [entry @ 0x88..=0x8E, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(entry - 0x88)],
        // Three Huffman-coded digits: `0` to `2` take five bits, the rest take six.
        [0x48, length, code @ ..] if length & 0x80 != 0 => {
            let code = code[..usize::from(length & 0x7F)].iter();
            let mut bits = code.flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
            let mut take = |count| bits.by_ref().take(count).fold(0, |all, bit| all << 1 | bit);
            (0..3).fold(0, |status, _| {
                let digit = match take(5) {
                    digit @ 0..=2 => digit,
                    start => (start << 1 | take(1)) - 0b01_1001 + 3,
                };
                status * 10 + u16::from(digit)
            })
        }
        _ => panic!("a response that does not begin with its status: {block:?}"),
    }
}

/// What a client sends before its first frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const ACK: u8 = 1;

const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_HEADERS: u8 = 4;
