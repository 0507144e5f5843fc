//! The answer to a request head that hyper cannot parse.
//!
//! hyper answers such a request itself, without a body and without a call to the service. The
//! gateway replaces the bytes of this answer, because its clients and operators should learn what
//! is wrong. It does not repair the head: RFC 9112 §3.2 advises against it, because the head may be
//! written to mean something else to another server.

use std::error::Error;
use std::io;

use bytes::Bytes;
use http::Response;

use crate::head::fault::Fault;

/// Renders the answer to a fault.
pub type FaultAnswer = fn(Fault) -> Response<Bytes>;

/// Chooses how to answer an invalid head, by its first bytes.
pub type ChooseAnswer = fn(&[u8]) -> FaultAnswer;

/// The gateway's answer instead of hyper's. `None` if these bytes are another answer.
pub(super) fn replaced(answer: &[u8], render: FaultAnswer) -> Option<Bytes> {
    let head = std::str::from_utf8(answer).ok()?.strip_prefix("HTTP/1.1 ")?;
    let head = head.strip_suffix("\r\n\r\n").filter(|head| !head.contains("\r\n\r\n"))?;
    let mut lines = head.split("\r\n");
    let fault = match lines.next()?.get(..3)? {
        "400" => Fault::Head,
        "414" => Fault::LongTarget,
        "431" => Fault::LongHead,
        _ => return None,
    };
    let (length, others): (Vec<_>, _) = lines.partition(|line| *line == "content-length: 0");
    if length.is_empty() {
        return None;
    }
    let response = render(fault);
    let mut bytes = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    for line in others {
        bytes.extend([line.as_bytes(), b"\r\n"].concat());
    }
    for (name, value) in response.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    let body = response.body();
    bytes.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
    bytes.extend(body);
    Some(bytes.into())
}

/// Why a connection failed, if its last request head was invalid.
pub fn invalid_head(error: &io::Error) -> Option<&hyper::Error> {
    let inner: &(dyn Error + 'static) = error.get_ref()?;
    inner.downcast_ref::<hyper::Error>().filter(|error| error.is_parse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_of_hyper_are_replaced() {
        let answer = |status: &str, more: &str| {
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n{more}\r\n\r\n");
            replaced(head.as_bytes(), |fault| {
                let mut response = Response::new(Bytes::from(fault.code()));
                *response.status_mut() = fault.status();
                response
            })
        };
        for (status, code) in [
            ("400 Bad Request", "bad-head"),
            ("414 URI Too Long", "url-too-long"),
            ("431 Request Header Fields Too Large", "head-too-large"),
        ] {
            let answer = answer(status, "content-length: 0\r\ndate: today").unwrap();
            let answer = std::str::from_utf8(&answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            let start = format!("HTTP/1.1 {status}\r\nconnection: close\r\ndate: today\r\n");
            assert!(head.starts_with(&start), "{head}");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            assert!(body.contains(code), "{body}");
        }
        for (status, more) in [
            ("200 OK", "content-length: 0"),
            ("400 Bad Request", "content-length: 10"),
            ("400 Bad Request", "content-length: 0\r\n\r\nHTTP/1.1 200 OK"),
        ] {
            assert_eq!(answer(status, more), None, "{status} {more}");
        }
    }
}
