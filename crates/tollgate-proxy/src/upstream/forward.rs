//! Forwards one request to an upstream, and returns its response.

use std::error::Error;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::edits::Edits;
use crate::settings::TargetTls;
use crate::settings::{Host, Protocol, Timeouts, Upstream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::checkout::{Checkout, SendError, Unanswered};
use super::group::{Group, Member, Tried};
use super::outgoing::{Admitted, Common, Outgoing, Prefix, RequestRules, Upgrade};
use super::response::ResponseBody;
use crate::body::sent::{Sent, sent};
use crate::body::source::Release;
use crate::body::upload::Upload;
use crate::body::whole::Whole;
use crate::head::authentication::asks_to_authenticate;
use crate::head::fault::Fault;
use crate::head::hop;
use crate::head::rewrite;

/// Forwards requests to one upstream.
///
/// Requests must have passed [`admit`](crate::admit) before.
#[derive(Debug)]
pub struct Forward {
    group: Arc<Group>,
    rules: RequestRules,
    host: Host,
    response_headers: Edits,
    timeouts: Timeouts,
    /// How long a response may pause, if that is longer than by default.
    long_pause: Option<Duration>,
    /// Whether a server has a base path.
    has_base_path: bool,
}

/// In a response's extensions: how long its body may pause, if that is longer than by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongPause(pub(crate) Duration);

impl Forward {
    pub fn new(
        upstream: Upstream,
        tls: Option<&TargetTls>,
        common: Common,
    ) -> Result<Self, http::Error> {
        let group = common.clients.group(&upstream.servers, tls, &common.failures)?;
        let prefix = |prefix: String| {
            let header = HeaderValue::try_from(&prefix)?;
            Ok::<_, http::Error>(Prefix(prefix, header))
        };
        let strip_prefix = upstream.strip_prefix.map(prefix).transpose()?;
        let has_base_path = group.has_base_path();
        let idle = upstream.timeouts.body;
        let long_pause = (idle > common.idle).then_some(idle);
        let edits = upstream.request_headers;
        let rules = RequestRules {
            common,
            protocol: group.protocol,
            strip_prefix,
            headers: (!edits.is_empty()).then(|| Arc::new(edits)),
            max_body: upstream.max_body.unwrap_or(u64::MAX),
            idle,
        };
        let Upstream { host, response_headers, timeouts, .. } = upstream;
        Ok(Self { group, rules, host, response_headers, timeouts, long_pause, has_base_path })
    }

    pub fn servers(&self) -> impl Iterator<Item = (String, bool)> {
        self.group.servers()
    }

    /// Forwards a request.
    pub fn send(
        &self,
        request: Request<Admitted>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Fault>> + Send {
        // Prepared here, because an async block would also store the client's request.
        let outgoing = Outgoing::of(&self.rules, request);
        async move { self.forward(&mut outgoing?).await }
    }

    async fn forward(&self, outgoing: &mut Outgoing) -> Result<Response<ResponseBody>, Fault> {
        let (mut response, mut checkout, member) = self.exchange(outgoing).await?;
        let Outgoing { upgrade, release, client, authenticates, .. } = outgoing;
        if *authenticates || asks_to_authenticate(&response) {
            checkout.keep_for(client);
        }
        if let Some(release) = release {
            release.answered();
        }
        let version = response.version();
        // The upstream connection's version is not the client connection's version.
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(response, checkout, member, upgrade.take());
        }
        let headers = response.headers_mut();
        if headers.contains_key(TRANSFER_ENCODING) {
            if !hop::is_merely_chunked(headers) {
                let what = "the answer has a transfer coding other than `chunked`";
                return Err(self.invalid(member, what));
            }
            // If both headers exist, the encoding counts (RFC 9112 §6.3). A client that trusted the
            // length would read the rest of this answer as the next answer.
            headers.remove(CONTENT_LENGTH);
        }
        hop::remove(headers, &[]);
        let prefix = self.rules.strip_prefix.as_ref().map_or("", |Prefix(prefix, _)| prefix);
        rewrite::redirect(headers, &member.address, prefix);
        self.response_headers.apply(headers);
        // Some upstreams misread the connection after they have rejected an upgrade.
        let mut checkout = upgrade.is_none().then_some(checkout);
        if let Some(checkout) = &mut checkout
            && response.body().is_end_stream()
        {
            checkout.settled().await;
        }
        let idle = self.timeouts.body;
        if let Some(pause) = self.long_pause {
            response.extensions_mut().insert(LongPause(pause));
        }
        Ok(response.map(|body| {
            let (body, health) = (Whole::of(version, body), Arc::clone(&member.health));
            ResponseBody::response(body, idle, health, checkout, release.take())
        }))
    }

    /// Sends the request, and repeats it if that is harmless: the upstream may close a connection
    /// while the gateway reuses it, or refuse a request without processing it. If the gateway
    /// cannot send the request to a server, it tries the next server.
    async fn exchange(
        &self,
        outgoing: &mut Outgoing,
    ) -> Result<(Response<Incoming>, Checkout, &Arc<Member>), Fault> {
        let Outgoing { request, upload, upgrade, release, client, .. } = outgoing;
        let (group, upload, is_upgrade) = (&*self.group, upload.as_ref(), upgrade.is_some());
        let is_http1 = is_upgrade || group.protocol == Protocol::Http1;
        let own_host =
            is_http1 && (self.host == Host::Target || !request.headers().contains_key(HOST));
        let sent = (self.has_base_path || !is_http1 || request.uri().path_and_query().is_none())
            .then(|| request.uri().clone());
        let may_repeat = upload.is_none() && is_harmless(request.method());
        let (mut was_repeated, mut refusals) = (false, 0);
        let mut tried = Tried::default();
        let mut private = if is_upgrade { None } else { group.private(client) };
        let mut member = match &private {
            Some((member, _)) => *member,
            None => group.choose(&mut tried).ok_or(Fault::NoRoute)?,
        };
        loop {
            if let Some(sent) = &sent {
                let path = below(&member.address.base_path, sent)?;
                // The parts are valid, so the URI is valid, too.
                *request.uri_mut() = member.target(path, is_http1).map_err(|_| Fault::Host)?;
            }
            if own_host {
                request.headers_mut().insert(HOST, member.host.clone());
            }
            let busy = group.busy(member);
            let checkout = if is_upgrade {
                Box::pin(member.upgrades.checkout_new()).await
            } else if let Some((_, checkout)) = private.take() {
                Ok(checkout)
            } else {
                member.pool.checkout().await
            };
            let mut checkout = match checkout {
                Ok(checkout) => checkout,
                Err(error) => {
                    let fault = self.report_failure(member, &error);
                    member = group.choose(&mut tried).ok_or(fault)?;
                    continue;
                }
            };
            checkout.counting(busy);
            let may_be_refused = !is_http1 && refusals < MAX_REFUSALS;
            let again = (may_be_refused || (may_repeat && !was_repeated)).then(|| {
                let mut again = Request::new(Sent::default());
                again.method_mut().clone_from(request.method());
                again.uri_mut().clone_from(request.uri());
                again.version_mut().clone_from(&request.version());
                again.headers_mut().clone_from(request.headers());
                again
            });
            let begun = Instant::now();
            let sending = checkout.send(
                mem::take(request),
                upload.map(|upload| &**upload),
                self.timeouts.response,
            );
            let Unanswered { error, unsent } = match sending.await {
                Ok(response) => {
                    Group::answered(member, response.status(), begun.elapsed());
                    return Ok((response, checkout, member));
                }
                Err(unanswered) => unanswered,
            };
            let was_refused = matches!(error, SendError::Refused(_));
            let is_safe = if was_refused {
                may_be_refused
            } else {
                may_repeat && !was_repeated && broke_off(&error) && !checkout.has_begun()
            };
            let again = again.filter(|_| is_safe);
            let again = again.and_then(|again| self.with_body(again, upload, release));
            match (unsent, again) {
                // This idle connection was already closed. Other idle connections may be open.
                (Some(unsent), _) if checkout.is_reused() => *request = unsent,
                (unsent, again) => {
                    let may_stay = again.is_some();
                    let Some(next) = unsent.or(again) else {
                        return Err(self.report_failure(member, &error));
                    };
                    (*request, was_repeated) = (next, true);
                    refusals += u32::from(was_refused);
                    match group.choose(&mut tried) {
                        Some(other) => {
                            if !was_refused {
                                self.report_failure(member, &error);
                            }
                            member = other;
                        }
                        None if may_stay => {}
                        None => return Err(self.report_failure(member, &error)),
                    }
                }
            }
        }
    }

    /// Adds the entire request body to a copy of the head, if the gateway still has it.
    fn with_body(
        &self,
        mut again: Request<Sent>,
        upload: Option<&Arc<Upload>>,
        release: &mut Option<Release>,
    ) -> Option<Request<Sent>> {
        let Some(upload) = upload else { return Some(again) };
        let (source, bytes) = release.as_mut()?.again()?;
        upload.rewind(bytes);
        *again.body_mut() = sent(source, self.timeouts.body, upload);
        Some(again)
    }

    /// Logs and counts a failure, and returns the fault for the client, without the details.
    fn report_failure(&self, member: &Member, error: &SendError) -> Fault {
        let fault = Fault::from(error);
        // All other faults are the client's.
        if fault.status().is_server_error() {
            let cause: Option<&dyn Error> = match error {
                SendError::Connect(cause) => Some(&**cause),
                SendError::Http(error) | SendError::Refused(error) => Some(error),
                _ => None,
            };
            member.health.failed(fault.code(), &fault, cause);
            if fault != Fault::Full {
                self.group.failed(member);
            }
        }
        fault
    }

    /// An answer that cannot be forwarded.
    fn invalid(&self, member: &Member, why: &str) -> Fault {
        member.health.failed(Fault::BadAnswer.code(), &why, None);
        self.group.failed(member);
        Fault::BadAnswer
    }

    fn switch(
        &self,
        mut response: Response<Incoming>,
        mut checkout: Checkout,
        member: &Member,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<ResponseBody>, Fault> {
        let what = "the answer upgrades to a protocol that the client did not request";
        let unasked = || self.invalid(member, what);
        let Upgrade { protocols, client, permit } = upgrade.ok_or_else(unasked)?;
        if !hop::was_asked_for(response.headers(), &protocols) {
            return Err(unasked());
        }
        let upstream = hyper::upgrade::on(&mut response);
        let idle = self.timeouts.tunnel;
        self.rules.common.tunnels.open(client, upstream, (permit, checkout.take_busy()), idle);
        let headers = response.headers_mut();
        let answered = headers.get(UPGRADE).cloned();
        hop::remove(headers, &[]);
        self.response_headers.apply(headers);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.extend(answered.map(|protocol| (UPGRADE, protocol)));
        Ok(response.map(|body| {
            // Empty, because the connection no longer carries HTTP.
            let (body, health) = (Whole::of(Version::HTTP_11, body), Arc::clone(&member.health));
            ResponseBody::response(body, idle, health, None, None)
        }))
    }
}

/// How many refusals the gateway accepts for a request. A server that shuts down may refuse
/// requests on several connections.
const MAX_REFUSALS: u32 = 3;

/// The path at a server.
fn below(base: &str, sent: &Uri) -> Result<PathAndQuery, Fault> {
    let root = || PathAndQuery::from_static("/");
    let path = sent.path_and_query().cloned().unwrap_or_else(root);
    if base.is_empty() {
        return Ok(path);
    }
    let slash = if path.as_str().starts_with('/') { "" } else { "/" };
    PathAndQuery::try_from(format!("{base}{slash}{path}")).map_err(|_| Fault::Host)
}

fn is_harmless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether the connection closed before the answer's head was complete.
fn broke_off(error: &SendError) -> bool {
    let SendError::Http(error) = error else { return false };
    // The server did not answer a PING.
    let is_dead = error.is_timeout();
    // hyper's error if an HTTP/2 connection closes before the server's settings arrive. Requests
    // without a body have no other user errors.
    let is_early = error.is_user();
    error.is_incomplete_message() || error.is_canceled() || is_reset(error) || is_dead || is_early
}

fn is_reset(error: &hyper::Error) -> bool {
    let io = Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| {
        matches!(
            io.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::TimedOut
        )
    })
}
