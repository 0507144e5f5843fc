//! The formats that servers write by default.

use std::sync::Arc;

use super::columns::Columns;
use super::json::Mapping;
use super::reading::Escapes;
use super::text::Template;
use super::{Clock, Shape, Syntax};

/// A server's format.
pub(super) struct Known {
    /// Its names in `--log`.
    pub(super) names: &'static [&'static str],
    /// Its name in messages, such as "cannot be read as a W3C log".
    title: &'static str,
    clock: Clock,
    lines: Lines,
}

enum Lines {
    /// An nginx `log_format` for the start of each line. Servers append various fields.
    Text(&'static str, Escapes),
    Columns,
    /// The fields, and their paths in a JSON object.
    Json(&'static [(&'static str, &'static str)]),
}

impl Known {
    pub(super) fn shape(&self) -> Shape {
        let mut headers = Vec::new();
        let (syntax, escapes) = match self.lines {
            // All formats are valid: a test reads a line of each.
            Lines::Text(template, escapes) => {
                (Template::new(template, true, &mut headers).map(Syntax::Text), escapes)
            }
            Lines::Columns => (Ok(Syntax::Columns(Columns::default())), Escapes::None),
            Lines::Json(names) => {
                (Mapping::new(names.iter().copied(), &mut headers).map(Syntax::Json), Escapes::None)
            }
        };
        let syntax = syntax.unwrap_or_else(|_| Syntax::Columns(Columns::default()));
        Shape { title: self.title, is_own: false, syntax, clock: self.clock, escapes, headers }
    }

    pub(super) fn all() -> impl Iterator<Item = Arc<Shape>> {
        KNOWN.iter().map(|known| Arc::new(known.shape()))
    }
}

/// Of several formats that read a line equally well, the first is chosen.
pub(super) const KNOWN: &[Known] = &[
    Known {
        names: &["common", "combined"],
        title: "a common or combined log",
        clock: Clock::AtEnd,
        lines: Lines::Text(
            "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
            Escapes::Backslash,
        ),
    },
    // Apache's format, which Debian uses for other virtual hosts.
    Known {
        names: &["vhost_combined"],
        title: "a vhost_combined log",
        clock: Clock::AtEnd,
        lines: Lines::Text(
            "$host $remote_addr $ident $remote_user [$time_local] \"$request\" $status \
             $body_bytes_sent",
            Escapes::Backslash,
        ),
    },
    // Before the request, `$queues` includes the captured headers, which are in braces.
    Known {
        names: &["haproxy"],
        title: "an HTTP log of HAProxy",
        clock: Clock::AtStart,
        lines: Lines::Text(
            "${address:port} [$time_local] $frontend $server $wait/$queue/$connect/$response/\
             ${request_time:ms} $status $body_bytes_sent $cookie $set_cookie $termination \
             $connections $queues \"$request\"",
            Escapes::Hash,
        ),
    },
    Known {
        names: &["aws-alb"],
        title: "a log of an AWS Application Load Balancer",
        clock: Clock::AtEnd,
        lines: Lines::Text(
            "$type $time_iso8601 $balancer ${address:port} $target $request_time $request_time \
             $request_time $status $target_status $received $body_bytes_sent \"$request\"",
            Escapes::Backslash,
        ),
    },
    Known {
        names: &["aws-elb"],
        title: "a log of an AWS Classic Load Balancer",
        clock: Clock::AtStart,
        lines: Lines::Text(
            "$time_iso8601 $balancer ${address:port} $target $request_time $request_time \
             $request_time $status $target_status $received $body_bytes_sent \"$request\"",
            Escapes::Backslash,
        ),
    },
    Known {
        names: &["envoy-text"],
        title: "a text log of Envoy, in which the last entry of X-Forwarded-For is the address",
        clock: Clock::AtStart,
        lines: Lines::Text(
            "[$time_iso8601] \"$request\" $status $flags $received $body_bytes_sent \
             ${request_time:ms} $upstream_time \"${forwarded:for}\" \"$agent\" \"$id\" \"$host\"",
            Escapes::None,
        ),
    },
    Known {
        names: &["istio"],
        title: "a text log of Istio",
        clock: Clock::AtStart,
        lines: Lines::Text(
            "[$time_iso8601] \"$request\" $status $flags $details $termination \"$failure\" \
             $received $body_bytes_sent ${request_time:ms} $upstream_time \
             \"$http_x_forwarded_for\" \"$agent\" \"$id\" \"$host\" \"$upstream\" $cluster \
             $upstream_local $local ${address:port}",
            Escapes::None,
        ),
    },
    Known { names: &["w3c"], title: "a W3C log", clock: Clock::AtEnd, lines: Lines::Columns },
    Known {
        names: &["caddy"],
        title: "a JSON log of Caddy",
        clock: Clock::AtEnd,
        lines: Lines::Json(&[
            ("time", "ts"),
            ("address", "request.remote_ip"),
            // Used before version 2.5.
            ("address", "request.remote_addr"),
            ("method", "request.method"),
            ("target", "request.uri"),
            ("host", "request.host"),
            ("status", "status"),
            ("bytes", "size"),
            ("seconds", "duration"),
            ("user", "user_id"),
            ("header.x-forwarded-for", "request.headers.X-Forwarded-For"),
            ("header.x-api-key", "request.headers.X-Api-Key"),
        ]),
    },
    Known {
        names: &["traefik"],
        title: "a JSON log of Traefik",
        clock: Clock::AtStart,
        lines: Lines::Json(&[
            ("time", "StartUTC"),
            ("address", "ClientHost"),
            ("method", "RequestMethod"),
            ("target", "RequestPath"),
            ("host", "RequestHost"),
            ("status", "DownstreamStatus"),
            ("bytes", "DownstreamContentSize"),
            ("nanoseconds", "Duration"),
            ("user", "ClientUsername"),
        ]),
    },
    // Istio writes the first names, and Envoy Gateway the second.
    Known {
        names: &["envoy"],
        title: "a JSON log of Envoy",
        clock: Clock::AtStart,
        lines: Lines::Json(&[
            ("time", "start_time"),
            ("address", "downstream_remote_address"),
            ("method", "method"),
            ("target", "path"),
            ("target", "x-envoy-origin-path"),
            ("host", "authority"),
            ("host", ":authority"),
            ("status", "response_code"),
            ("bytes", "bytes_sent"),
            ("milliseconds", "duration"),
            ("header.x-forwarded-for", "x_forwarded_for"),
            ("header.x-forwarded-for", "x-forwarded-for"),
        ]),
    },
    Known {
        names: &["gcp"],
        title: "a JSON log of Google Cloud",
        clock: Clock::AtStart,
        lines: Lines::Json(&[
            ("time", "timestamp"),
            ("address", "httpRequest.remoteIp"),
            ("method", "httpRequest.requestMethod"),
            ("target", "httpRequest.requestUrl"),
            ("status", "httpRequest.status"),
            ("bytes", "httpRequest.responseSize"),
            ("seconds", "httpRequest.latency"),
        ]),
    },
    // The access log of `tollgate serve`.
    Known {
        names: &["tollgate"],
        title: "a JSON log of tollgate",
        clock: Clock::AtStart,
        lines: Lines::Json(&[
            ("time", "time"),
            ("address", "address"),
            ("method", "method"),
            ("target", "target"),
            ("host", "host"),
            ("status", "status"),
            ("bytes", "bytes"),
            ("seconds", "seconds"),
            ("header.x-forwarded-for", "x_forwarded_for"),
        ]),
    },
    Known {
        names: &["nginx-json"],
        title: "a JSON log of nginx",
        clock: Clock::AtEnd,
        lines: Lines::Json(&[
            ("time", "time_iso8601"),
            ("address", "remote_addr"),
            ("request", "request"),
            ("method", "request_method"),
            ("target", "request_uri"),
            ("host", "host"),
            ("status", "status"),
            ("bytes", "body_bytes_sent"),
            ("seconds", "request_time"),
            ("user", "remote_user"),
            ("header.x-forwarded-for", "http_x_forwarded_for"),
            ("header.x-api-key", "http_x_api_key"),
        ]),
    },
];
