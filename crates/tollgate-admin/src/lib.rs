//! The admin API of Tollgate, a router for operators: the state of each limit, the most denied clients, and resets.
//!
//! Mount the router on an address that only operators can reach. [`Admin::builder`] makes it.
//!
//! | request | effect | token |
//! |---|---|---|
//! | `GET /status` | every policy and store, and the remainder of global quotas | no |
//! | `GET /` | a live page; its files have no data | no |
//! | `GET /events` | a stream of JSON, a line per second, for the page; with the token also the most denied clients | no |
//! | `GET /metrics` | metrics for Prometheus, with [`AdminBuilder::metrics`] | no |
//! | `GET /top` | the most denied clients | yes |
//! | `GET /status/{policy}/{subject}` | the remainder of a client, without a charge | yes |
//! | `DELETE /status/{policy}/{subject}` | forgets the units that the client has used | yes |
//! | `POST /status/{policy}/{subject}` | settles a charge | yes |
//!
//! [`SubjectName`](tollgate::key::SubjectName) has the syntax of subjects. Responses are JSON, errors
//! `application/problem+json`; `docs/admin-api.md` of the repository has all members.
//!
//! # Attacker
//! * Mount the router on a listener of its own, on loopback or a network of operators. An address
//!   is no permission: behind a proxy all requests have one address. If others can reach the
//!   router, let numbers need the token too ([`AdminBuilder::numbers_need_token`]).
//! * Requests that name a client or change anything need `Authorization: Bearer` and the token,
//!   which is compared in constant time. A router without a token does not build.
//! * The router responds only to hosts on a list, so that no website can reach it under a name of
//!   its own (DNS rebinding), and rejects requests of other sites. A peer ([`AdminBuilder::peer`])
//!   may read `/events` only.
//! * At most 16 streams are open at once. A stream ends after ten minutes, or after ten seconds in
//!   which its reader takes no line. So a client that can reach the router can keep others from the
//!   page only.
//!
//! ```
//! use tollgate::{MemoryStore, Policy, Quota, RateLimitLayer};
//! use tollgate_admin::Admin;
//!
//! let limit = RateLimitLayer::global(Quota::per_minute(100))?;
//! let admin: axum::Router = Admin::builder()
//!     .token("at-least-sixteen-characters")
//!     .layer(&limit)
//!     .build()?;
//! # let _ = admin;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answers;
mod error;
mod events;
mod files;
mod guard;
mod page;
mod peers;
mod problem;
mod reports;
mod routes;
mod state;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tollgate::RateLimitLayer;
use tollgate::key::{SubjectFormat, SubjectFormatter};
use tollgate::observe::{Inspect, LayerHandle};

use guard::{Guard, Hosts, Token};
use peers::Peers;
use state::{Ending, Layers, Render, Shared, State, Streams};

pub use error::AdminError;

/// Builds the admin router; see the [crate](self).
#[derive(Debug)]
#[non_exhaustive]
pub struct Admin;

impl Admin {
    /// Returns a builder of the admin router.
    pub fn builder() -> AdminBuilder {
        AdminBuilder::default()
    }
}

/// Collects the contents of an [`Admin`] router and its rules of access.
#[derive(Clone, Default)]
#[must_use]
pub struct AdminBuilder {
    token: Option<String>,
    numbers_need_token: bool,
    hosts: Vec<String>,
    format: SubjectFormat,
    layers: Vec<Layers>,
    metrics: Option<Render>,
    further: axum::Router,
    name: Option<String>,
    peers: Vec<String>,
    target: Option<String>,
    ending: Option<Ending>,
}

impl AdminBuilder {
    /// Sets the token that a reset needs: 16 characters or more.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Requires the token for numbers too; only the files of the page need none. Use this for an
    /// address that others can reach: the list of hosts stops websites, but a program can send any
    /// host.
    pub const fn numbers_need_token(mut self) -> Self {
        self.numbers_need_token = true;
        self
    }

    /// Responds to requests for this host too, with any port. `localhost`, `127.0.0.1` and `[::1]`
    /// are always on the list.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Sets how `GET /top` shows the keys of clients: hashed, masked or in clear.
    pub const fn show_subjects(mut self, format: SubjectFormat) -> Self {
        self.format = format;
        self
    }

    /// Adds a layer, whose limits the router shows.
    pub fn layer<St: Inspect, M>(self, layer: &RateLimitLayer<St, M>) -> Self {
        let handle = layer.handle();
        self.layers(move || vec![handle.clone()])
    }

    /// Sets a function that returns the layers to show, for programs that replace their layers.
    pub fn layers(mut self, layers: impl Fn() -> Vec<LayerHandle> + Send + Sync + 'static) -> Self {
        self.layers.push(Arc::new(layers));
        self
    }

    /// Sets the response to `GET /metrics`: the text that the exporter renders.
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Some(Arc::new(render));
        self
    }

    /// Adds routes of the service to the admin router, which checks hosts and sites for them too.
    pub fn further(mut self, routes: axum::Router) -> Self {
        self.further = self.further.merge(routes);
        self
    }

    /// Sets the name of this process on the page.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds the admin address of another replica, for example `http://127.0.0.1:9101`. The page
    /// shows its numbers too, and its page may read the numbers of this address. All replicas can
    /// have one list that includes themselves.
    pub fn peer(mut self, origin: impl Into<String>) -> Self {
        self.peers.push(origin.into());
        self
    }

    /// Adds buttons to the page that send requests to `/items` at this address, for example
    /// `http://127.0.0.1:3000`. The service there needs CORS for the page. For demonstrations.
    pub fn buttons(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Ends the streams of the page when the future completes; each stream has its own. Without it,
    /// streams delay a graceful shutdown.
    pub fn streams_until<F>(mut self, ending: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.ending = Some(Arc::new(move || Box::pin(ending())));
        self
    }

    /// Builds the admin router.
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
            subjects: SubjectFormatter::new(self.format),
            layers: self.layers,
            metrics: self.metrics,
            target: target.transpose()?,
            streams: Streams::new(self.name, self.ending),
        }));
        Ok(routes::router(state, self.further))
    }
}

/// Checks an argument for [`AdminBuilder::peer`].
///
/// # Errors
/// [`AdminError::Peer`].
pub fn check_peer(origin: &str) -> Result<(), AdminError> {
    let known = peers::origin(origin).map(drop);
    known.ok_or_else(|| AdminError::Peer(origin.to_owned()))
}

/// Without the token and the closures.
impl fmt::Debug for AdminBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminBuilder")
            .field("hosts", &self.hosts)
            .field("peers", &self.peers)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// The programs of the tutorial are compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorial.md")]
struct Tutorial;
