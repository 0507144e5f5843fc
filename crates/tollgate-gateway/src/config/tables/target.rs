use std::path::Path;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue};

use super::super::{format, spec, typed};
use crate::proxy::path::{Ambiguous, normalise};
use crate::proxy::{Address, Balance, Edits, Endpoint, Protocol};
use typed::{Either, Flag, List, Named, OneOrMore, Time, Whole, section, texts, words};

pub(in crate::config) type Target = Either<Server, TargetSection>;

section! {
    /// Where requests are forwarded to: the URL alone, or a section. See
    /// [upstreams](upstreams.md).
    TargetSection = "target" {
        /// The URL, or a list of URLs of servers that do the same. A path in it stands before that
        /// of each request.
        required url: OneOrMore<Server>,
        /// The protocol of the target.
        default protocol: SpokenProtocol = "http1",
        /// Whether the target sees the `Host` that the client asked for, or its own.
        default preserve_host: Flag = "true",
        /// Which of several servers gets a request.
        default balance: Balancing = "roundRobin",
        /// After this number of failures in a row, one of several servers gets no requests. A
        /// failure is a request without a valid response.
        default max_failures: Whole<1, 1_000_000, u32> = "3",
        /// After this time, one request is sent to a server that failed. If the server answers, it
        /// gets requests again.
        default retry_after: Time = "10s",
        /// Checks each server beside the requests.
        optional health_check: HealthCheck,
        /// Removes this from the beginning of the path, after routes and limits have matched. Every
        /// path of the route must begin with it. The target finds it in `X-Forwarded-Prefix`.
        optional strip_prefix: Prefix,
        /// Changes to the headers of requests.
        optional request_headers: HeaderEdits,
        /// Changes to the headers of the target's responses.
        optional response_headers: HeaderEdits,
        /// The most bytes in the body of a request. Larger ones get 413, without being read where
        /// `Content-Length` says the size.
        optional max_body_bytes: Whole<0, { u64::MAX }>,
    }

    /// Requests that show whether a server is up. A server in order answers with 2xx or 3xx.
    HealthCheck = "target.healthCheck" {
        /// The path, and the query if there is one.
        required path: CheckPath,
        /// The time between two checks of a server.
        default interval: Time = "5s",
        /// The longest time of a check.
        default timeout: Time = "2s",
        /// After this number of successful checks in a row, a server gets requests again.
        default healthy: Whole<1, 1_000, u32> = "2",
        /// After this number of failed checks in a row, a server gets no requests.
        default unhealthy: Whole<1, 1_000, u32> = "3",
    }

    /// Headers that are removed and set, in every spelling with `-` or `_`. Headers that say where a
    /// message ends, `Host` and `Via` cannot be changed.
    HeaderEdits = "headerEdits" {
        /// Headers and their values.
        optional set: SetHeaders,
        /// Headers that are removed.
        optional remove: List<EditedHeader>,
    }

    /// Headers and values.
    SetHeaders = "headerEdits.set" {
        /// The value of this header.
        others values: Named<EditedHeader, HeaderText>,
    }
}

words! {
    SpokenProtocol -> Protocol {
        /// HTTP/1.1.
        "http1" => Protocol::Http1,
        /// HTTP/2; without TLS by prior knowledge, as gRPC wants it.
        "http2" => Protocol::Http2,
    }

    Balancing -> Balance {
        /// Each server in turn.
        "roundRobin" => Balance::RoundRobin,
        /// The server with the fewest requests under way.
        "leastBusy" => Balance::LeastBusy,
    }
}

texts! {
    /// A server, and the paths on it.
    Server(text) -> Address: "a URL, as http://localhost:3000 or unix:/run/app.sock",
        r"^(https?://[^/@?#]+(/[^?#]*)?|unix:/.+)$" => server(text);

    /// The beginning of paths, in normal form and without a slash at its end.
    Prefix(text) -> String: "the beginning of paths, as /v1", "^/[^?#]+$" => prefix(text);

    CheckPath(text) -> PathAndQuery: "a path, as /healthz", "^/" => match text.parse() {
        Ok(path) if text.starts_with('/') => Ok(path),
        _ => Err("a path begins with `/` and has no spaces".to_owned()),
    };

    /// The name of a header that a file can change.
    EditedHeader(text) -> HeaderName: "a header that can be changed, as X-Role" => {
        let name = format::Header::parse(text)?;
        let edited = Edits::default().remove(name.clone());
        edited.map(|()| name).map_err(|error| error.to_string())
    };

    HeaderText(text) -> HeaderValue: "the value of a header" => HeaderValue::from_str(text)
        .map_err(|_| "it has characters that a header cannot hold".to_owned());
}

fn server(text: &str) -> Result<Address, String> {
    if let Some(socket) = text.strip_prefix("unix:") {
        let socket = Path::new(socket);
        if !socket.is_absolute() {
            return Err("the path of the socket begins with `/`: unix:/run/app.sock".to_owned());
        }
        return Ok(Address { endpoint: Endpoint::unix(socket), base_path: String::new() });
    }
    let uri = format::target(text)?;
    let base_path = uri.path().trim_end_matches('/').to_owned();
    let scheme = uri.scheme().cloned().unwrap_or(Scheme::HTTP);
    let authority = uri.into_parts().authority.ok_or("it names no host")?;
    Ok(Address { endpoint: Endpoint { scheme, authority, socket: None }, base_path })
}

fn prefix(text: &str) -> Result<String, String> {
    if text.contains(['?', '#', '*', '%']) {
        return Err("write the path alone, without `*`, escapes and the query".to_owned());
    }
    let normal = normalise(text, Ambiguous::Refuse).map_err(|error| error.to_string())?;
    match normal.trim_end_matches('/') {
        "" => Err("every path begins with `/`: leave it out".to_owned()),
        prefix => Ok(prefix.to_owned()),
    }
}
