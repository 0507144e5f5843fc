use std::path::Path;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue};

use super::tls::TargetTlsFiles;
use super::value_types::Timeout;
use crate::file::{format, urls};
use crate::yaml::typed::{Flag, List, Named, OneOrMore, Short, Time, Whole, section, texts, words};
use tollgate_proxy::edits::{EditError, Edits};
use tollgate_proxy::path::{Ambiguous, normalise};
use tollgate_proxy::settings::{Address, Balance, Endpoint, Protocol};

pub(crate) type Target = Short<Server, TargetSection>;

section! {
    /// Where requests are forwarded to: a URL or a section. See [upstreams](upstreams.md).
    keys TargetSection = "target" short url {
        /// The URL, or a list of URLs of equivalent servers. A path in the URL is put in front of
        /// each request path.
        required url: OneOrMore<Server>,
        /// The protocol of the target.
        default protocol: SpokenProtocol = "http1",
        /// Whether the target receives the client's `Host` header, or its own host.
        default preserve_host: Flag = "true",
        /// How to choose a server if there are several.
        default balance: Balancing = "roundRobin",
        /// The number of consecutive failures after which one of several servers gets no more
        /// requests. A failure is a request without a valid response.
        default max_failures: Whole<1, 1_000_000, u32> = "3",
        /// The time after which a failed server gets one request. If the server responds, it gets
        /// requests again.
        default retry_after: Time = "10s",
        /// Sends periodic health checks to each server.
        optional health_check: HealthCheck,
        /// A prefix that is removed from the path after routes and limits have matched. Every path
        /// of the route must start with it. The target finds it in `X-Forwarded-Prefix`.
        optional strip_prefix: Prefix,
        /// Changes to request headers.
        optional request_headers: HeaderEdits,
        /// Changes to the headers of the target's responses.
        optional response_headers: HeaderEdits,
        /// The maximum size of a request body. Larger requests get 413, immediately if
        /// `Content-Length` contains the size. Default: the value of `rateLimiter.maxBodyBytes`.
        optional max_body_bytes: Whole<0, { u64::MAX }>,
        /// The certificate authorities of https servers, and a certificate for the gateway.
        optional tls: TargetTlsFiles,
        /// Timeouts for this target, for example for event streams.
        implied timeouts: TargetTimeouts,
    }

    /// Timeouts of a target. Missing keys have the values of `rateLimiter.timeouts`.
    keys TargetTimeouts = "target.timeouts" {
        /// The time to connect, including TLS.
        optional connect: Timeout,
        /// The time from the end of a request to the head of the response.
        optional response: Timeout,
        /// The time between two parts of a body, in either direction.
        optional idle: Timeout,
        /// The idle time of an upgraded connection (WebSocket).
        optional tunnel: Timeout,
        /// The idle time after which a connection is closed.
        optional pool: Timeout,
        /// The age after which a connection gets no more requests.
        optional connection_age: Timeout,
        /// The time after which the name is looked up again.
        optional address_age: Timeout,
    }

    /// Requests that check whether a server is up. A healthy server responds with 2xx or 3xx.
    #[derive(PartialEq, Eq)]
    values HealthCheck = "target.healthCheck" {
        /// The path and the query of the check.
        required path: CheckPath,
        /// The time between two checks.
        default interval: Time = "5s",
        /// The timeout of each check.
        default timeout: Time = "2s",
        /// The number of consecutive successful checks after which a server gets requests again.
        default healthy: Whole<1, 1_000, u32> = "2",
        /// The number of consecutive failed checks after which a server gets no more requests.
        default unhealthy: Whole<1, 1_000, u32> = "3",
    }

    /// Headers to remove and then to set, in every spelling with `-` or `_`. `Host`, `Via` and the
    /// headers that frame a message cannot be changed.
    keys HeaderEdits = "headerEdits" {
        /// Headers to set.
        optional set: SetHeaders,
        /// Headers to remove.
        optional remove: List<EditedHeader>,
    }

    /// Header names and their values.
    keys SetHeaders = "headerEdits.set" {
        /// The value of this header.
        others values: Named<EditedHeader, HeaderText>,
    }
}

words! {
    SpokenProtocol -> Protocol {
        /// HTTP/1.1.
        "http1" => Protocol::Http1,
        /// HTTP/2. Without TLS it uses prior knowledge, which gRPC servers expect.
        "http2" => Protocol::Http2,
    }

    Balancing -> Balance {
        /// Each server in turn.
        "roundRobin" => Balance::RoundRobin,
        /// The server with the fewest requests in flight.
        "leastBusy" => Balance::LeastBusy,
    }
}

texts! {
    /// A server, and the base path of requests to it.
    Server(text) -> Address: "a URL such as http://localhost:3000 or unix:/run/app.sock",
        r"^(https?://[^/@?#]+(/[^?#]*)?|unix:/.+)$" => server(text);

    /// A path prefix in normal form, without a slash at the end.
    Prefix(text) -> String: "a path prefix such as /v1", "^/[^?#]+$" => prefix(text);

    CheckPath(text) -> PathAndQuery: "a path such as /healthz", "^/" => match text.parse() {
        Ok(path) if text.starts_with('/') => Ok(path),
        _ => Err("a path starts with `/` and has no spaces".to_owned()),
    };

    /// A header that a file can change.
    EditedHeader(text) -> HeaderName: "a header that can be changed, such as X-Role" => {
        let name = format::Header::parse(text)?;
        let edited = Edits::default().remove(name.clone());
        edited.map(|()| name).map_err(|error| match error {
            EditError::Host => "the header `Host` has its own key: `preserveHost`".to_owned(),
            error => error.to_string(),
        })
    };

    HeaderText(text) -> HeaderValue: "the value of a header" => HeaderValue::from_str(text)
        .map_err(|_| "it has characters that a header cannot hold".to_owned());
}

fn server(text: &str) -> Result<Address, String> {
    if let Some(socket) = text.strip_prefix("unix:") {
        let socket = Path::new(socket);
        if !socket.is_absolute() {
            return Err("the socket path starts with `/`: unix:/run/app.sock".to_owned());
        }
        return Ok(Address { endpoint: Endpoint::unix(socket), base_path: String::new() });
    }
    let uri = urls::target(text)?;
    let base_path = uri.path().trim_end_matches('/').to_owned();
    let scheme = uri.scheme().cloned().unwrap_or(Scheme::HTTP);
    let authority = uri.into_parts().authority.ok_or("it has no host")?;
    Ok(Address { endpoint: Endpoint { scheme, authority, socket: None }, base_path })
}

fn prefix(text: &str) -> Result<String, String> {
    if text.contains(['?', '#', '*', '%']) {
        return Err("write the path alone, without `*`, escapes and the query".to_owned());
    }
    let normal = normalise(text, Ambiguous::Refuse).map_err(|error| error.to_string())?;
    match normal.trim_end_matches('/') {
        "" => Err("every path starts with `/`: remove it".to_owned()),
        prefix => Ok(prefix.to_owned()),
    }
}
