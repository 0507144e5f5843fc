//! The forwarding headers that proxies write.
//!
//! They are parsed from the right, because the nearest proxy wrote the right end. Text further
//! left, even an open quote, cannot change that end.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::TrustedProxies;
use super::address::{parse, trim};

/// More hops indicate an attack, not a chain of proxies.
const MAX_HOPS: usize = 32;

/// The maximum number of bytes to parse, counted from the right end. 32 addresses fit.
const MAX_BYTES: usize = 4 * 1024;

#[derive(Clone, Debug)]
pub(super) enum Forwarding {
    /// `X-Forwarded-For`: each proxy appends an address.
    List(HeaderName),
    /// RFC 7239: the same, in `for=` among other parameters.
    Forwarded(HeaderName),
    /// A single address, which the proxy overwrites.
    Single(HeaderName),
}

impl Forwarding {
    pub(super) fn list() -> Self {
        Self::List(HeaderName::from_static("x-forwarded-for"))
    }

    /// Returns the client behind a trusted `peer` (`None`: a Unix socket), or the last certain
    /// address.
    pub(super) fn client(
        &self,
        headers: &HeaderMap,
        proxies: &TrustedProxies,
        peer: Option<IpAddr>,
    ) -> Option<IpAddr> {
        match self {
            Self::List(name) => walk(headers, name, proxies, peer, last_of_list, parse),
            Self::Forwarded(name) => walk(headers, name, proxies, peer, last_forwarded, for_of),
            Self::Single(name) => {
                let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
                match (values.next(), values.next()) {
                    (Some(value), None) => parse(value).or(peer),
                    _ => peer,
                }
            }
        }
    }
}

/// Splits off the last element. Returns `None` if it starts before the last `room` bytes.
type SplitLast = fn(line: &[u8], room: usize) -> Option<(Option<&[u8]>, &[u8])>;

fn walk(
    headers: &HeaderMap,
    name: &HeaderName,
    proxies: &TrustedProxies,
    peer: Option<IpAddr>,
    split_last: SplitLast,
    address: fn(&[u8]) -> Option<IpAddr>,
) -> Option<IpAddr> {
    let mut known = peer;
    let mut room = MAX_BYTES;
    let mut hops = 0;
    // Several lines form one list (RFC 9110 §5.3), so the last line is its right end.
    for line in headers.get_all(name).iter().rev() {
        let mut rest = Some(line.as_bytes());
        while let Some(line) = rest {
            hops += 1;
            let element = split_last(line, room).filter(|_| hops <= MAX_HOPS);
            let hop = element.and_then(|(left, element)| {
                room = room.saturating_sub(element.len() + 1);
                rest = left;
                address(element)
            });
            match hop {
                None => return known,
                Some(ip) if !proxies.contains(ip) => return Some(ip),
                proxy => known = proxy,
            }
        }
    }
    known
}

fn within(line: &[u8], room: usize) -> (usize, &[u8]) {
    let start = line.len().saturating_sub(room);
    (start, &line[start..])
}

fn last_of_list(line: &[u8], room: usize) -> Option<(Option<&[u8]>, &[u8])> {
    let (start, end) = within(line, room);
    match end.iter().rposition(|byte| *byte == b',') {
        Some(comma) => Some((Some(&line[..start + comma]), &end[comma + 1..])),
        None => (start == 0).then_some((None, line)),
    }
}

/// Like [`last_of_list`], but for quoted strings, which may contain commas. For example, proxies
/// copy `host=` from the client. A quote after an odd number of backslashes is part of a string.
/// The opening quote is always after `=`, so both directions find the same strings. If quotes do
/// not match, [`for_of`] rejects the element.
fn last_forwarded(line: &[u8], room: usize) -> Option<(Option<&[u8]>, &[u8])> {
    let (start, end) = within(line, room);
    let mut quoted = false;
    for (at, byte) in end.iter().enumerate().rev() {
        match byte {
            b'"' => {
                let slashes = end[..at].iter().rev().take_while(|b| **b == b'\\').count();
                let content = quoted && slashes % 2 == 1;
                quoted ^= !content;
            }
            b',' if !quoted => return Some((Some(&line[..start + at]), &end[at + 1..])),
            _ => {}
        }
    }
    (start == 0).then_some((None, line))
}

/// Returns the address from the single `for=` in an element such as
/// `for="[2001:db8::1]:80";proto=https`.
///
/// Like proxies, it allows more than RFC 7239: spaces around `;`, and an unquoted port.
fn for_of(element: &[u8]) -> Option<IpAddr> {
    let mut client = None;
    let mut rest = trim(element);
    while !rest.is_empty() {
        if let Some(more) = rest.strip_prefix(b";") {
            rest = trim(more);
            continue;
        }
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        if name.iter().any(|byte| matches!(byte, b';' | b'"')) {
            return None;
        }
        let (value, after) = value_of(value)?;
        if name.eq_ignore_ascii_case(b"for") {
            if client.is_some() {
                return None;
            }
            client = Some(parse(value)?);
        }
        rest = trim(after);
        if !rest.is_empty() && !rest.starts_with(b";") {
            return None;
        }
    }
    client
}

/// Splits `text` into the value at its start and the rest. Escapes are retained because addresses
/// have none.
fn value_of(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| *byte == b';');
        let (value, after) = text.split_at(end.unwrap_or(text.len()));
        return (!value.contains(&b'"')).then_some((value, after));
    };
    let mut escaped = false;
    let end = quoted.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })?;
    Some((&quoted[..end], &quoted[end + 1..]))
}
