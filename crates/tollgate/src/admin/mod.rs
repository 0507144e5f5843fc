//! A router for those who run the service: how each limit stands, who is denied most, and
//! what can be done about it.
//!
//! | request | does | token |
//! |---|---|---|
//! | `GET /status` | every policy and store, and what remains of quotas that all share | no |
//! | `GET /` | the page that shows all this as it moves; it holds no data itself | no |
//! | `GET /events` | a stream of JSON, a line a second, for the page; with the token also who is denied | no |
//! | `GET /metrics` | what Prometheus reads, if [`AdminBuilder::metrics`] says how | no |
//! | `GET /top` | who is denied most | yes |
//! | `GET /status/{policy}/{subject}` | what remains to a subject, read without using any | yes |
//! | `DELETE /status/{policy}/{subject}` | forgets what the subject has used | yes |
//! | `POST /status/{policy}/{subject}` | settles a charge | yes |
//!
//! Subjects are written as [`SubjectName`](crate::key::SubjectName) says. Answers are JSON,
//! errors `application/problem+json`; `docs/admin.md` of the repository has all members.
//!
//! # Attacker
//! * Mount it on a listener of its own, on loopback or a network of operators. Where a
//!   request comes from is never taken for permission: behind a proxy all come from there.
//!   Where others can reach it, let numbers need the token too
//!   ([`AdminBuilder::numbers_need_token`]).
//! * Whatever names a subject or changes anything needs `Authorization: Bearer` and the
//!   token, which is compared in constant time. There is no router without a token.
//! * Only requests to hosts on a list are answered, so that no website can reach it under a
//!   name of its own (DNS rebinding); and none that a browser sends for another site. A peer
//!   ([`AdminBuilder::peer`]) is another site too, which may read `/events` and nothing else.
//! * At most 16 streams are open at once, and one that takes no line for ten seconds ends, or
//!   after ten minutes in any case: a connection that buffers takes lines for long after its
//!   reader hangs. Whoever can reach the router can keep others from the page, and from nothing
//!   else.
//!
//! ```
//! use tollgate::admin::Admin;
//! use tollgate::{MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! let limit = RateLimitLayer::global(Quota::per_minute(100))?;
//! let admin: axum::Router = Admin::builder()
//!     .token("at-least-sixteen-characters")
//!     .layer(&limit)
//!     .build()?;
//! # let _ = admin;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `guard.rs` | who may ask |
//! | `routes.rs` | what is asked |
//! | `answers.rs` | what is answered |
//! | `problem.rs` | what is answered instead |
//! | `events.rs` | the stream |
//! | `peers.rs` | whose pages may read it |
//! | `page.rs`, `page/` | the page |

mod answers;
mod events;
mod guard;
mod page;
mod peers;
mod problem;
mod routes;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use http::HeaderValue;

use crate::RateLimitLayer;
use crate::key::{Display, Shown};
use crate::status::{Inspect, LayerHandle};

use events::{Ending, Streams};
use guard::{Guard, Hosts, Token};
use peers::Peers;

/// The router; see the [module](self).
#[derive(Debug)]
#[non_exhaustive]
pub struct Admin;

impl Admin {
    /// What it is made of.
    pub fn builder() -> AdminBuilder {
        AdminBuilder {
            token: None,
            numbers_need_token: false,
            hosts: Vec::new(),
            shown: Shown::default(),
            layers: Vec::new(),
            metrics: None,
            further: axum::Router::new(),
            name: None,
            peers: Vec::new(),
            target: None,
            ending: Arc::new(|| Box::pin(std::future::pending())),
        }
    }
}

/// Collects what an [`Admin`] router shows and whom it answers.
#[derive(Clone)]
#[must_use]
pub struct AdminBuilder {
    token: Option<String>,
    numbers_need_token: bool,
    hosts: Vec<String>,
    shown: Shown,
    layers: Vec<Layers>,
    metrics: Option<Render>,
    further: axum::Router,
    name: Option<String>,
    peers: Vec<String>,
    target: Option<String>,
    ending: Ending,
}

type Layers = Arc<dyn Fn() -> Vec<LayerHandle> + Send + Sync>;
type Render = Arc<dyn Fn() -> String + Send + Sync>;

impl AdminBuilder {
    /// What who asks for more than numbers must know: 16 characters or more.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Asks for the token wherever the router answers, also for numbers; only the files of the
    /// page need none. For an address that others can reach: a host on the list keeps websites
    /// out, and a program can write any.
    pub const fn numbers_need_token(mut self) -> Self {
        self.numbers_need_token = true;
        self
    }

    /// Answers requests to this host as well, with any port. `localhost`, `127.0.0.1` and
    /// `[::1]` are always answered.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// How much of a subject `GET /top` shows.
    pub const fn show_subjects(mut self, shown: Shown) -> Self {
        self.shown = shown;
        self
    }

    /// Shows this layer.
    pub fn layer<St: Inspect, M>(self, layer: &RateLimitLayer<St, M>) -> Self {
        let handle = layer.handle();
        self.layers(move || vec![handle.clone()])
    }

    /// Shows the layers that serve at the time, where they are replaced while the process
    /// runs.
    pub fn layers(mut self, layers: impl Fn() -> Vec<LayerHandle> + Send + Sync + 'static) -> Self {
        self.layers.push(Arc::new(layers));
        self
    }

    /// What `GET /metrics` answers, as the exporter renders it.
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Some(Arc::new(render));
        self
    }

    /// Adds routes of the service, which are answered to the same hosts and sites as those of
    /// the router itself.
    pub fn further(mut self, routes: axum::Router) -> Self {
        self.further = self.further.merge(routes);
        self
    }

    /// What this process is called on the page.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Another admin address, as `http://127.0.0.1:9101`: the page shows what happens there
    /// too, and the page of that one may read what happens here. All replicas can have the same
    /// list, with themselves in it.
    pub fn peer(mut self, origin: impl Into<String>) -> Self {
        self.peers.push(origin.into());
        self
    }

    /// Gives the page buttons that send requests there, as `http://127.0.0.1:3000`: to `/items`,
    /// whose answers have to allow the page's origin (CORS). For demonstrations.
    pub fn buttons(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Ends the streams of the page when the future that this makes completes, one for each.
    /// Otherwise they go on for as long as somebody reads, and hold up a server that waits for
    /// its last connection.
    pub fn streams_until<F>(mut self, ending: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.ending = Arc::new(move || Box::pin(ending()));
        self
    }

    /// The router, or what stands in its way.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn build(self) -> Result<axum::Router, AdminError> {
        let token = Token::new(self.token.as_deref().ok_or(AdminError::NoToken)?)?;
        let peers = Peers::new(self.peers)?;
        let target =
            self.target.map(|target| peers::origin(&target).ok_or(AdminError::Target(target)));
        let state = State(Arc::new(Shared {
            guard: Guard {
                token,
                numbers_need_token: self.numbers_need_token,
                hosts: Hosts::new(self.hosts)?,
                peers,
            },
            display: Display::new(self.shown),
            layers: self.layers,
            metrics: self.metrics,
            target: target.transpose()?,
            streams: Streams::new(self.name, self.ending),
        }));
        Ok(routes::router(state, self.further))
    }
}

/// Whether [`AdminBuilder::peer`] takes this, for those who read it from a file.
///
/// # Errors
/// [`AdminError::Peer`]: it is no origin.
pub fn check_peer(origin: &str) -> Result<(), AdminError> {
    let known = peers::origin(origin).map(drop);
    known.ok_or_else(|| AdminError::Peer(origin.to_owned()))
}

/// Why a router cannot be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// It would let everybody reset limits.
    #[error("the admin router has no token: give it one with `.token(..)`")]
    NoToken,

    /// It could be guessed, or not be sent.
    #[error(
        "the token of the admin router has to be 16 to 4096 visible ASCII characters, drawn at \
         random: `openssl rand -hex 32` makes one"
    )]
    WeakToken,

    /// It is not one.
    #[error("the host {0:?} is none: write a name or an address without a port, as `admin.local`")]
    Host(String),

    /// It is none.
    #[error(
        "the peer {0:?} is none: write scheme, host and port and nothing else, as \
         `http://127.0.0.1:9101`"
    )]
    Peer(String),

    /// It is none.
    #[error(
        "{0:?} is nowhere to send requests: write scheme, host and port and nothing else, as \
         `http://127.0.0.1:3000`"
    )]
    Target(String),
}

tollgate_core::debug_as_display!(AdminError);

/// What all requests share.
#[derive(Clone)]
struct State(Arc<Shared>);

struct Shared {
    guard: Guard,
    display: Display,
    layers: Vec<Layers>,
    metrics: Option<Render>,
    /// Where the buttons of the page send requests.
    target: Option<HeaderValue>,
    streams: Streams,
}

impl State {
    fn layers(&self) -> Vec<LayerHandle> {
        self.0.layers.iter().flat_map(|layers| layers()).collect()
    }
}

impl fmt::Debug for AdminBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminBuilder")
            .field("hosts", &self.hosts)
            .field("peers", &self.peers)
            .field("shown", &self.shown)
            .finish_non_exhaustive()
    }
}
