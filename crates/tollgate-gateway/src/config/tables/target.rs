//! Where requests are forwarded to, and how they change on the way.

use std::path::Path;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue};

use super::super::format;
use super::super::spec::{Field, Format, Others, Section, Shape, default, optional, required};
use super::text;
use crate::proxy::path::{Ambiguous, normalise};
use crate::proxy::{Address, Edits, Endpoint};

pub(super) const TARGET: Shape = Shape::Either(&[text(SERVER), Shape::Section(&TARGET_SECTION)]);

pub(super) const TARGET_SECTION: Section = Section {
    name: "target",
    doc: "Where requests are forwarded to: the URL alone, or a section. See [upstreams](upstreams.md).",
    fields: &[
        required(
            "url",
            Shape::Either(&[text(SERVER), Shape::List(&text(SERVER))]),
            "The URL, or a list of URLs of servers that do the same. A path in it stands before that of each request.",
        ),
        default(
            "protocol",
            Shape::Word(&[
                ("http1", "HTTP/1.1."),
                ("http2", "HTTP/2; without TLS by prior knowledge, as gRPC wants it."),
            ]),
            "http1",
            "The protocol of the target.",
        ),
        default(
            "preserveHost",
            Shape::Flag,
            "true",
            "Whether the target sees the `Host` that the client asked for, or its own.",
        ),
        default(
            "balance",
            Shape::Word(&[
                ("roundRobin", "Each server in turn."),
                ("leastBusy", "The server with the fewest requests under way."),
            ]),
            "roundRobin",
            "Which of several servers gets a request.",
        ),
        default(
            "maxFailures",
            Shape::Whole { min: 1, max: 1_000_000 },
            "3",
            "After this number of failures in a row, one of several servers gets no requests. A failure is a request without a valid response.",
        ),
        default(
            "retryAfter",
            Shape::Span,
            "10s",
            "After this time, one request is sent to a server that failed. If the server answers, it gets requests again.",
        ),
        optional(
            "healthCheck",
            Shape::Section(&HEALTH_CHECK),
            "Checks each server beside the requests.",
        ),
        optional(
            "stripPrefix",
            text(PREFIX),
            "Removes this from the beginning of the path, after routes and limits have matched. Every path of the route must begin with it. The target finds it in `X-Forwarded-Prefix`.",
        ),
        optional(
            "requestHeaders",
            Shape::Section(&REQUEST_HEADERS),
            "Changes to the headers of requests.",
        ),
        optional(
            "responseHeaders",
            Shape::Section(&RESPONSE_HEADERS),
            "Changes to the headers of the target's responses.",
        ),
        optional(
            "maxBodyBytes",
            Shape::Whole { min: 0, max: u64::MAX },
            "The most bytes in the body of a request. Larger ones get 413, without being read where `Content-Length` says the size.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const HEALTH_CHECK: Section = Section {
    name: "target.healthCheck",
    doc: "Requests that show whether a server is up. A server in order answers with 2xx or 3xx.",
    fields: &[
        required("path", text(CHECK_PATH), "The path, and the query if there is one."),
        default("interval", Shape::Span, "5s", "The time between two checks of a server."),
        default("timeout", Shape::Span, "2s", "The longest time of a check."),
        default(
            "healthy",
            TIMES,
            "2",
            "After this number of successful checks in a row, a server gets requests again.",
        ),
        default(
            "unhealthy",
            TIMES,
            "3",
            "After this number of failed checks in a row, a server gets no requests.",
        ),
    ],
    either: &[],
    others: None,
};

const TIMES: Shape = Shape::Whole { min: 1, max: 1_000 };

pub(super) const REQUEST_HEADERS: Section = edits("target.requestHeaders");
pub(super) const RESPONSE_HEADERS: Section = edits("target.responseHeaders");

const EDITS: &[Field] = &[
    optional("set", Shape::Section(&SET), "Headers and their values."),
    optional("remove", Shape::List(&text(EDITABLE)), "Headers that are removed."),
];

const fn edits(name: &'static str) -> Section {
    Section {
        name,
        doc: "Headers that are removed and set, in every spelling with `-` or `_`. Headers that say where a message ends, `Host` and `Via` cannot be changed.",
        fields: EDITS,
        either: &[],
        others: None,
    }
}

pub(super) const SET: Section = Section {
    name: "target.*Headers.set",
    doc: "Headers and values.",
    fields: &[],
    either: &[],
    others: Some(&Others { key: EDITABLE, shape: text(VALUE), doc: "The value of this header." }),
};

const SERVER: Format = Format {
    pattern: Some(r"^(https?://[^/@?#]+(/[^?#]*)?|unix:/.+)$"),
    what: "a URL, as http://localhost:3000 or unix:/run/app.sock",
    check: |text| server(text).map(drop),
};

/// The server that a text of [`SERVER`] names.
pub(in super::super) fn server(text: &str) -> Result<Address, String> {
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

const PREFIX: Format = Format {
    pattern: Some("^/[^?#]+$"),
    what: "the beginning of paths, as /v1",
    check: |text| prefix(text).map(drop),
};

/// The prefix of a text of [`PREFIX`], in normal form and without a slash at its end.
pub(in super::super) fn prefix(text: &str) -> Result<String, String> {
    if text.contains(['?', '#', '*', '%']) {
        return Err("write the path alone, without `*`, escapes and the query".to_owned());
    }
    let normal = normalise(text, Ambiguous::Refuse).map_err(|error| error.to_string())?;
    match normal.trim_end_matches('/') {
        "" => Err("every path begins with `/`: leave it out".to_owned()),
        prefix => Ok(prefix.to_owned()),
    }
}

const CHECK_PATH: Format = Format {
    pattern: Some("^/"),
    what: "a path, as /healthz",
    check: |text| match text.parse::<PathAndQuery>() {
        Ok(_) if text.starts_with('/') => Ok(()),
        _ => Err("a path begins with `/` and has no spaces".to_owned()),
    },
};

const EDITABLE: Format = Format {
    pattern: None,
    what: "a header that can be changed, as X-Role",
    check: |text| {
        (format::HEADER.check)(text)?;
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|error| error.to_string())?;
        Edits::default().remove(name).map_err(|error| error.to_string())
    },
};

const VALUE: Format = Format {
    pattern: None,
    what: "the value of a header",
    // The text is not shown: it may be a password.
    check: |text| match HeaderValue::from_str(text) {
        Ok(_) => Ok(()),
        Err(_) => Err("it has characters that a header cannot hold".to_owned()),
    },
};
