//! Tollgate's admin API: a router that shows each limit and the most denied clients, and resets
//! quotas.
//!
//! Create the router with [`Admin::builder`], and mount it on an address that only operators can
//! reach.
//!
//! | request | effect | token |
//! |---|---|---|
//! | `GET /status` | all policies and stores, and the remaining units of global quotas | no |
//! | `GET /` | a live page; its files contain no data | no |
//! | `GET /events` | the page's JSON stream, one line per second; with the token also the most denied clients | no |
//! | `GET /metrics` | metrics for Prometheus, with [`AdminBuilder::metrics`] | no |
//! | `GET /top` | the most denied clients | yes |
//! | `GET /status/{policy}/{subject}` | a client's remaining units, without a charge | yes |
//! | `GET /subjects/{subject}` | the same for all policies that can name the client | yes |
//! | `DELETE /status/{policy}/{subject}` | resets the client's used units | yes |
//! | `POST /status/{policy}/{subject}` | settles a charge | yes |
//! | `GET /overrides` | all overrides of clients' quotas | yes |
//! | `PUT /overrides/{policy}/{subject}` | changes a client's quota, or blocks it, until an instant | yes |
//! | `GET`, `DELETE /overrides/{policy}/{subject}` | reads or removes an override | yes |
//!
//! [`SubjectName`](tollgate::key::SubjectName) documents the syntax of `{subject}`. Responses are
//! JSON, and errors are `application/problem+json`. `docs/admin-api.md` in the repository lists all
//! members.
//!
//! # Attacker
//! * Mount the router on a separate listener, on loopback or an operator network. The router never
//!   authorizes by address because behind a proxy all requests come from the same address. If
//!   other users can reach the router, require the token for the numbers too
//!   ([`AdminBuilder::numbers_need_token`]).
//! * Requests that name a client or change anything need `Authorization: Bearer` and the token,
//!   which is compared in constant time. A router without a token does not build.
//! * The router responds only to known hosts, so a website cannot reach it under its own name (DNS
//!   rebinding), and it rejects requests from other sites. A peer's page ([`AdminBuilder::peer`])
//!   may only read `/events`.
//! * At most 16 streams are open at the same time. A stream closes after ten minutes, or if its
//!   client reads nothing for ten seconds. A client that can reach the router can therefore make
//!   the page unavailable, but nothing else.
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
mod overrides;
mod page;
mod peers;
mod policies;
mod problem;
mod reports;
mod routes;
mod state;
mod subjects;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use http::HeaderValue;
use tollgate::key::{SubjectFormat, SubjectFormatter};
use tollgate::observe::{Inspect, LayerHandle, Origin};
use tollgate::{Limiter, RateLimitLayer};

use guard::{Guard, Hosts};
use peers::Peers;
use state::{AdminContext, Ending, Layers, Render, State, Streams};

pub use error::AdminError;
pub use guard::Token;

/// Builds the admin router; see the [crate](self).
#[derive(Debug)]
#[non_exhaustive]
pub struct Admin;

impl Admin {
    /// Returns a builder for the admin router.
    pub fn builder() -> AdminBuilder {
        AdminBuilder::default()
    }
}

/// Configures an [`Admin`] router.
#[derive(Clone, Default)]
#[must_use]
pub struct AdminBuilder {
    token: Option<String>,
    numbers_need_token: bool,
    hosts: Vec<String>,
    hosts_setting: Option<String>,
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
    /// Sets the token that resets and other protected requests need: 16 characters or more.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Requires the token for the numbers too, so only the page's files are public. Use this if
    /// other users can reach the address: the host check stops websites, but a program can send any
    /// `Host`.
    pub const fn numbers_need_token(mut self) -> Self {
        self.numbers_need_token = true;
        self
    }

    /// Allows requests for this host, with any port. `localhost`, `127.0.0.1` and `[::1]` are
    /// always allowed.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Names the setting that the allowed hosts come from, for example `ADMIN_HOSTS`. The response
    /// to a request for another host names it. By default it names [`allow_host`](Self::allow_host).
    pub fn hosts_setting(mut self, name: impl Into<String>) -> Self {
        self.hosts_setting = Some(name.into());
        self
    }

    /// Sets how `GET /top` shows client keys: hashed, masked or in plain text.
    pub const fn show_subjects(mut self, format: SubjectFormat) -> Self {
        self.format = format;
        self
    }

    /// Shows the limits of this layer.
    pub fn layer<St: Inspect, M>(self, layer: &RateLimitLayer<St, M>) -> Self {
        let handle = layer.handle();
        self.layers(move || vec![handle.clone()])
    }

    /// Shows the policies of this limiter.
    pub fn limiter<St: Inspect>(self, limiter: &Limiter<St>) -> Self {
        let handle = limiter.handle();
        self.layers(move || vec![handle.clone()])
    }

    /// Shows the layers that this function returns, for programs that replace their layers.
    pub fn layers(mut self, layers: impl Fn() -> Vec<LayerHandle> + Send + Sync + 'static) -> Self {
        self.layers.push(Arc::new(layers));
        self
    }

    /// Serves `GET /metrics` with the text that the exporter renders.
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Some(Arc::new(render));
        self
    }

    /// Adds custom routes to the admin router. The host and site checks apply to these routes too.
    pub fn further(mut self, routes: axum::Router) -> Self {
        self.further = self.further.merge(routes);
        self
    }

    /// Sets the name of this process on the page.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds another replica's admin address, for example `http://127.0.0.1:9101`. The page shows
    /// that replica's numbers too, and the replica's page may read the numbers of this router. All
    /// replicas can share a list that includes themselves.
    pub fn peer(mut self, origin: impl Into<String>) -> Self {
        self.peers.push(origin.into());
        self
    }

    /// Adds buttons to the page that send requests to `/items` at this address, for example
    /// `http://127.0.0.1:3000`. The service there must allow the page with CORS. Meant for
    /// demonstrations.
    pub fn buttons(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// Closes the page's streams when the returned future completes. Each stream calls `ending`
    /// once. By default, open streams delay a graceful shutdown.
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
        let target = self.target.map(|target| match target.parse::<Origin>() {
            Ok(origin) => Ok(HeaderValue::from(origin)),
            Err(_) => Err(AdminError::Target(target)),
        });
        let state = State(Arc::new(AdminContext {
            guard: Guard {
                token,
                numbers_need_token: self.numbers_need_token,
                hosts: Hosts::new(self.hosts)?,
                hosts_setting: self
                    .hosts_setting
                    .unwrap_or_else(|| "`AdminBuilder::allow_host`".to_owned()),
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

/// Omits the token and the closures.
impl fmt::Debug for AdminBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminBuilder")
            .field("hosts", &self.hosts)
            .field("peers", &self.peers)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// Compiles the tutorial's programs with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorial.md")]
struct Tutorial;
