//! A recorded request and its charges.

use std::fmt;

use tollgate_core::{Charge, Cost, Key, Micros, Policy, Timestamp};

/// A recorded request and the limits that apply to it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// When it arrived.
    pub at: Timestamp,
    /// The client, if known.
    pub client: Option<Client<'a>>,
    /// The name of the matching route.
    pub route: &'a str,
    /// The charges to limits, which are made together or not at all.
    pub asks: &'a [Ask<'a>],
    /// How long the response took, or zero if unknown.
    pub duration: Micros,
}

impl<'a> Request<'a> {
    /// Creates a request without a client, a route or a duration.
    #[must_use]
    pub const fn new(at: Timestamp, asks: &'a [Ask<'a>]) -> Self {
        Self { at, client: None, route: "", asks, duration: Micros::ZERO }
    }

    /// Sets the client.
    #[must_use]
    pub const fn of(mut self, client: Client<'a>) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets the route.
    #[must_use]
    pub const fn by(mut self, route: &'a str) -> Self {
        self.route = route;
        self
    }

    /// Sets how long the response takes.
    #[must_use]
    pub const fn lasting(mut self, duration: Micros) -> Self {
        self.duration = duration;
        self
    }
}

/// The client that sent a request.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// Identifies the client: equal keys mean the same client.
    pub key: &'a Key,
    /// The client's name in the report. It is formatted only if the client is denied.
    pub name: &'a dyn fmt::Display,
}

/// A request's charge to a limit.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The policy that the request is charged to.
    pub policy: &'a Policy,
    /// The quota's key.
    pub key: &'a Key,
    /// The units that the request costs.
    pub cost: Cost,
    /// Whether the limit is enforced. Otherwise its denials do not deny the request.
    pub enforce: bool,
    /// Whether the quota belongs to the client. Otherwise clients share the quota.
    pub of_client: bool,
    /// How long the request may wait for the limit instead of being denied.
    pub waits: Option<Micros>,
    /// The actual cost, if the response settles the charge.
    pub actual: Option<Cost>,
}

impl<'a> Ask<'a> {
    /// Creates a charge to an enforced limit with the client's own quota.
    #[must_use]
    pub const fn new(policy: &'a Policy, key: &'a Key, cost: Cost) -> Self {
        let (enforce, of_client) = (true, true);
        Self { policy, key, cost, enforce, of_client, waits: None, actual: None }
    }

    /// Creates a charge to an enforced limit with a quota that all clients share.
    #[must_use]
    pub const fn shared(policy: &'a Policy, cost: Cost) -> Self {
        Self { of_client: false, ..Self::new(policy, const { &Key::GLOBAL }, cost) }
    }

    pub(super) const fn charge(&self) -> Charge<'a> {
        let Self { policy, key, cost, enforce, .. } = *self;
        Charge { policy, key, cost, enforce, dry: false }
    }
}

impl fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("key", &self.key).finish_non_exhaustive()
    }
}
