//! A request in the form that is sent to an upstream.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::edits::Edits;
use crate::path::{PathFault, ambiguity};
use crate::settings::Protocol;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Extensions, Request, Uri, Version};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;

use super::client::Clients;
use super::failures::Failures;
use super::tunnel::{TunnelPermit, Tunnels};
use crate::body::request_body::RequestBody;
use crate::body::sent::{Sent, sent};
use crate::body::source::{Release, RepeatableBody};
use crate::body::upload::{Received, Upload};
use crate::head::authentication::authenticates_connection;
use crate::head::connection::Connection;
use crate::head::fault::Fault;
use crate::head::forwarded;
use crate::head::hop;
use crate::head::rewrite;
use crate::head::via::Via;

/// The values that all upstreams share.
#[derive(Clone, Debug)]
pub struct Common {
    /// The header in which trusted proxies write the client's address.
    pub proxy_header: HeaderName,
    /// Headers that `Connection` cannot remove.
    pub identity: Arc<[HeaderName]>,
    pub clients: Clients,
    /// How long a body may pause by default.
    pub idle: Duration,
    pub tunnels: Tunnels,
    pub failures: Failures,
    /// The gateway's element in `Via`. A request that contains it has passed this gateway before.
    pub via: Via,
}

/// An upstream's request settings.
#[derive(Debug)]
pub(super) struct RequestRules {
    pub(super) common: Common,
    pub(super) protocol: Protocol,
    pub(super) strip_prefix: Option<Prefix>,
    pub(super) headers: Option<Arc<Edits>>,
    pub(super) max_body: u64,
    /// Between two pieces of a body.
    pub(super) idle: Duration,
}

/// Everything besides a request's head. To limiters this is the request body, which they do not
/// read.
#[derive(Debug)]
pub struct Admitted<B = RequestBody> {
    pub body: B,
    /// Set when the entire body has been received. `None` if the request has no body.
    pub received: Option<Received>,
    pub connection: Arc<Connection>,
    /// The client's address, if a trusted proxy sent the request.
    pub client: Option<IpAddr>,
    /// A header that only the gateway may write.
    pub own_header: Option<(HeaderName, HeaderValue)>,
    pub host: Option<Authority>,
    /// The path and query that the upstream receives, if the path differs from the URI's.
    pub original: Option<PathAndQuery>,
    pub upgrade: Option<HeaderValue>,
}

/// A path prefix, also stored as a header value.
#[derive(Debug)]
pub(super) struct Prefix(pub(super) String, pub(super) HeaderValue);

/// A request to an upstream, and the parts that outlive it.
pub(super) struct Outgoing {
    /// Empty while it is being sent and after the response. Its URI has no base path yet.
    pub(super) request: Request<Sent>,
    /// The body's progress, if there is a body.
    pub(super) upload: Option<Arc<Upload>>,
    /// Drops the body when the response is complete.
    pub(super) release: Option<Release>,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) client: Arc<Connection>,
    /// Whether the request authenticates the connection to the upstream.
    pub(super) authenticates: bool,
}

/// The client's request to change to another protocol.
pub(super) struct Upgrade {
    pub(super) protocols: HeaderValue,
    pub(super) client: OnUpgrade,
    pub(super) permit: TunnelPermit,
}

impl Outgoing {
    pub(super) fn of(rules: &RequestRules, mut request: Request<Admitted>) -> Result<Self, Fault> {
        if rules.common.via.is_in(request.headers()) {
            return Err(Fault::Loop);
        }
        let upgrade = Upgrade::take(&rules.common.tunnels, &mut request)?;
        let (mut parts, mut admitted) = request.into_parts();
        rules.set_path(&mut parts.uri, admitted.original.take())?;
        rules.describe(&mut parts, &mut admitted, upgrade.as_ref());
        let authenticates = authenticates_connection(&parts.headers);
        let Admitted { body, received, connection: client, .. } = admitted;
        if body.is_end_stream() {
            let request = Request::from_parts(parts, Sent::default());
            let (upload, release) = (None, None);
            return Ok(Self { request, upload, release, upgrade, client, authenticates });
        }
        if body.size_hint().lower() > rules.max_body {
            return Err(Fault::TooLarge);
        }
        let proxy_header = rules.common.proxy_header.clone();
        let (received, edits) = (received.unwrap_or_default(), rules.headers.clone());
        let upload = Upload::new(received, rules.max_body, proxy_header, edits);
        // Only HTTP/2 servers can guarantee that they did not process a request.
        let (body, release) = RepeatableBody::new(body, rules.protocol == Protocol::Http2);
        let body = sent(body, rules.idle, &upload);
        let request = Request::from_parts(parts, body);
        let (upload, release) = (Some(upload), Some(release));
        Ok(Self { request, upload, release, upgrade, client, authenticates })
    }
}

impl Upgrade {
    /// The client's upgrade request, if any.
    ///
    /// The tunnel is reserved before the request is sent, because the upstream might otherwise
    /// accept an upgrade for which the gateway has no capacity.
    fn take(tunnels: &Tunnels, request: &mut Request<Admitted>) -> Result<Option<Self>, Fault> {
        let Some(protocols) = request.body_mut().upgrade.take() else { return Ok(None) };
        let permit = tunnels.acquire().ok_or(Fault::Crowded)?;
        Ok(Some(Self { protocols, client: hyper::upgrade::on(request), permit }))
    }
}

impl RequestRules {
    /// Sets the path that the upstream receives.
    fn set_path(&self, uri: &mut Uri, original: Option<PathAndQuery>) -> Result<(), Fault> {
        let Some(Prefix(prefix, _)) = &self.strip_prefix else {
            if let Some(original) = original {
                *uri = original.into();
            }
            return Ok(());
        };
        // Another reading of the path could be outside the prefix and evade its limits.
        if let Some(escape) = ambiguity(uri.path()) {
            return Err(PathFault::Ambiguous(escape).into());
        }
        let stripped = |path: &str| rewrite::strip(path, prefix).map(str::to_owned);
        let original = original.and_then(|path| stripped(path.as_str()));
        let normal = || stripped(uri.path_and_query()?.as_str());
        // Some servers read a host after `//`.
        let path = original.filter(|path| !path.starts_with("//")).or_else(normal);
        let mut path = path.ok_or(Fault::NoRoute)?;
        if !path.starts_with('/') {
            path.insert(0, '/');
        }
        *uri = path.try_into().map_err(|_| Fault::Host)?;
        Ok(())
    }

    /// Writes the head that the upstream reads.
    fn describe(&self, parts: &mut Parts, admitted: &mut Admitted, upgrade: Option<&Upgrade>) {
        let Common { proxy_header, identity, via, .. } = &self.common;
        // HTTP/2 has no such upgrades.
        let is_http1 = upgrade.is_some() || self.protocol == Protocol::Http1;
        let (headers, body) = (&mut parts.headers, &admitted.body);
        let reads_trailers = hop::reads_trailers(headers);
        hop::remove(headers, identity);
        let host = admitted.host.as_ref().map(Authority::as_str);
        forwarded::write(headers, &admitted.connection, host, proxy_header, admitted.client);
        via.append_to(headers, parts.version);
        headers.extend(admitted.own_header.take());
        if !is_http1 {
            headers.remove(HOST);
        }
        if let Some(Prefix(_, prefix)) = &self.strip_prefix {
            headers.insert(forwarded::PATH_PREFIX, prefix.clone());
        }
        if let Some(edits) = &self.headers {
            edits.apply(headers);
        }
        if reads_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if is_http1 {
            if let Some(Upgrade { protocols, .. }) = upgrade {
                headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(UPGRADE, protocols.clone());
            } else if reads_trailers {
                headers.insert(CONNECTION, HeaderValue::from_static("te"));
            }
            if !body.is_end_stream() && body.size_hint().exact().is_none() {
                // Without this header, hyper does not send the body of a GET or HEAD.
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        parts.version = if is_http1 { Version::HTTP_11 } else { Version::HTTP_2 };
        // The extensions are not meant for the upstream connection.
        parts.extensions = Extensions::new();
    }
}
