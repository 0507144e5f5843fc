//! What gRPC needs: to be recognised, and an answer in its own form.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};

use crate::RequestHead;
use crate::key::route;

/// Whether a request is a gRPC call.
///
/// Its content type is not enough, because the client writes that: a call would be cheaper than
/// another POST, and its denial has the status 200. So the request also has to be for a gRPC
/// service. `is_grpc` says whether all services are, and where it says nothing, the route does:
/// the pattern that a router has matched, else the path, has the form `/package.Service/Method`.
pub(crate) fn is_call(head: &RequestHead<'_>, is_grpc: Option<bool>) -> bool {
    let is_method =
        || is_method(route::pattern(head.extensions).unwrap_or_else(|| head.uri.path()));
    says_call(head) && is_grpc.unwrap_or_else(is_method)
}

/// Whether a client says that its request is a gRPC call.
pub(crate) fn says_call(head: &RequestHead<'_>) -> bool {
    *head.method == Method::POST && has_grpc_type(head.headers)
}

/// Whether the content type is `application/grpc`, alone or followed by `+` and a codec or `;`
/// and parameters. `application/grpc-web` is something else.
fn has_grpc_type(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let Some((start, rest)) = content_type.as_bytes().split_at_checked(GRPC.len()) else {
        return false;
    };
    start.eq_ignore_ascii_case(GRPC.as_bytes())
        && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// Whether a pattern or path is that of a gRPC method: `/package.Service/` and one segment.
fn is_method(path: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    parts.is_some_and(|(service, method)| {
        service.contains('.')
            && service.split('.').all(is_name)
            && !method.is_empty()
            && !method.contains('/')
    })
}

/// A call that ends before it began: its status stands in the headers.
pub(crate) fn trailers_only(status: &'static str, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(status));
    // What `percent_encoded` makes is printable; without a message the status would do.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(percent_encoded(message))) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

/// As the gRPC protocol has it: bytes outside of printable ASCII, and `%`.
fn percent_encoded(message: &str) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte),
            _ => {
                let hex = |digit: u8| HEX[usize::from(digit & 0xf)];
                encoded.extend_from_slice(&[b'%', hex(byte >> 4), hex(byte)]);
            }
        }
    }
    encoded
}

const GRPC: &str = "application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_from_its_neighbours() {
        for (content_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("Application/GRPC", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grpcs", false),
            ("application/json", false),
            ("", false),
        ] {
            let value = HeaderValue::from_static(content_type);
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, value)]);
            assert_eq!(has_grpc_type(&headers), expected, "{content_type}");
        }
        assert!(!has_grpc_type(&HeaderMap::new()));
    }

    #[test]
    fn a_method_is_told_from_other_paths_and_patterns() {
        for (path, expected) in [
            ("/grpc.health.v1.Health/Check", true),
            ("/grpc.health.v1.Health/{*rest}", true),
            ("/_a.b2/c", true),
            ("/Greeter/SayHello", false),
            ("/comments", false),
            ("/comments/{id}", false),
            ("/v1.0/users", false),
            ("/index.html", false),
            ("/a.b/", false),
            ("/a.b/c/d", false),
            ("/a..b/c", false),
            ("/.well-known/acme", false),
            ("/a.b%2F/c", false),
            ("a.b/c", false),
            ("//a.b/c", false),
            ("", false),
        ] {
            assert_eq!(is_method(path), expected, "{path}");
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100 % é\n"), b"100 %25 %C3%A9%0A");
    }

    #[test]
    fn any_message_makes_a_header() {
        let all: String = (0..0x250).filter_map(char::from_u32).collect();
        let response = trailers_only("8", &all);
        assert!(response.headers().contains_key(GRPC_MESSAGE));
        assert!(response.body().is_empty());
    }
}
