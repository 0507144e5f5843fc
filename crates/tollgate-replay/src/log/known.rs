//! The formats that servers write by default.

use std::sync::{Arc, LazyLock};

use super::Shape;
use super::columns::FIELDS;
use super::reading::Escapes;

/// A server's format.
pub(super) struct Known {
    /// Its names in `--log`.
    pub(super) names: &'static [&'static str],
    /// Its name in messages, such as "cannot be read as a W3C log".
    title: &'static str,
    escapes: Escapes,
    /// Describes its lines. Servers append various fields to their text formats.
    lines: &'static str,
}

/// The formats, in the order of [`KNOWN`].
pub(super) static SHAPES: LazyLock<Vec<Arc<Shape>>> = LazyLock::new(|| {
    let shape = |known: &Known| Shape::new(known.lines, known.title, known.escapes, false);
    // All formats are valid: a test reads a line of each.
    KNOWN.iter().filter_map(|known| shape(known).ok().map(Arc::new)).collect()
});

/// Of several formats that read a line equally well, the first is chosen.
pub(super) const KNOWN: &[Known] = &[
    Known {
        names: &["common", "combined"],
        title: "a common or combined log",
        escapes: Escapes::Backslash,
        lines: "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
    },
    // Apache's format, which Debian uses for other virtual hosts.
    Known {
        names: &["vhost_combined"],
        title: "a vhost_combined log",
        escapes: Escapes::Backslash,
        lines: "$host $remote_addr $ident $remote_user [$time_local] \"$request\" $status \
                $body_bytes_sent",
    },
    // Before the request, `$queues` includes the captured headers, which are in braces.
    Known {
        names: &["haproxy"],
        title: "an HTTP log of HAProxy",
        escapes: Escapes::Hash,
        lines: "${:address:port} [${:time}] $frontend $server $wait/$queue/$connect/$response/${:milliseconds} \
                $status $body_bytes_sent $cookie $set_cookie $termination $connections $queues \
                \"$request\"",
    },
    Known {
        names: &["aws-alb"],
        title: "a log of an AWS Application Load Balancer",
        escapes: Escapes::Backslash,
        lines: "$type ${:end} $balancer ${:address:port} $target ${:seconds} ${:seconds} ${:seconds} $status \
                $target_status $received $body_bytes_sent \"$request\"",
    },
    Known {
        names: &["aws-elb"],
        title: "a log of an AWS Classic Load Balancer",
        escapes: Escapes::Backslash,
        lines: "${:time} $balancer ${:address:port} $target ${:seconds} ${:seconds} ${:seconds} $status \
                $target_status $received $body_bytes_sent \"$request\"",
    },
    Known {
        names: &["envoy-text"],
        title: "a text log of Envoy, in which the last entry of X-Forwarded-For is the address",
        escapes: Escapes::None,
        lines: "[${:time}] \"$request\" $status $flags $received $body_bytes_sent ${:milliseconds} \
                $upstream_time \"${:forwarded}\" \"$agent\" \"$id\" \"$host\"",
    },
    Known {
        names: &["istio"],
        title: "a text log of Istio",
        escapes: Escapes::None,
        lines: "[${:time}] \"$request\" $status $flags $details $termination \"$failure\" $received \
                $body_bytes_sent ${:milliseconds} $upstream_time \"$http_x_forwarded_for\" \
                \"$agent\" \"$id\" \"$host\" \"$upstream\" $cluster $upstream_local $local ${:address:port}",
    },
    Known { names: &["w3c"], title: "a W3C log", escapes: Escapes::None, lines: FIELDS },
    // Before version 2.5, Caddy wrote `remote_addr`.
    Known {
        names: &["caddy"],
        title: "a JSON log of Caddy",
        escapes: Escapes::None,
        lines: "json:end=ts,address=request.remote_ip,address=request.remote_addr,\
                method=request.method,target=request.uri,host=request.host,status=status,bytes=size,\
                seconds=duration,user=user_id,\
                header.x-forwarded-for=request.headers.X-Forwarded-For,\
                header.x-api-key=request.headers.X-Api-Key",
    },
    Known {
        names: &["traefik"],
        title: "a JSON log of Traefik",
        escapes: Escapes::None,
        lines: "json:time=StartUTC,address=ClientHost,method=RequestMethod,target=RequestPath,\
                host=RequestHost,status=DownstreamStatus,bytes=DownstreamContentSize,\
                nanoseconds=Duration,user=ClientUsername",
    },
    // Of two names for a field, Istio writes the first, and Envoy Gateway the second.
    Known {
        names: &["envoy"],
        title: "a JSON log of Envoy",
        escapes: Escapes::None,
        lines: "json:time=start_time,address=downstream_remote_address,method=method,target=path,\
                target=x-envoy-origin-path,host=authority,host=:authority,status=response_code,\
                bytes=bytes_sent,milliseconds=duration,header.x-forwarded-for=x_forwarded_for,\
                header.x-forwarded-for=x-forwarded-for",
    },
    Known {
        names: &["gcp"],
        title: "a JSON log of Google Cloud",
        escapes: Escapes::None,
        lines: "json:time=timestamp,address=httpRequest.remoteIp,method=httpRequest.requestMethod,\
                target=httpRequest.requestUrl,status=httpRequest.status,\
                bytes=httpRequest.responseSize,seconds=httpRequest.latency",
    },
    // The access log of `tollgate serve`.
    Known {
        names: &["tollgate"],
        title: "a JSON log of tollgate",
        escapes: Escapes::None,
        lines: "json:time=time,address=address,method=method,target=target,host=host,status=status,\
                bytes=bytes,seconds=seconds,header.x-forwarded-for=x_forwarded_for",
    },
    Known {
        names: &["nginx-json"],
        title: "a JSON log of nginx",
        escapes: Escapes::None,
        lines: "json:end=time_iso8601,address=remote_addr,request=request,method=request_method,\
                target=request_uri,host=host,status=status,bytes=body_bytes_sent,\
                seconds=request_time,user=remote_user,\
                header.x-forwarded-for=http_x_forwarded_for,header.x-api-key=http_x_api_key",
    },
];
