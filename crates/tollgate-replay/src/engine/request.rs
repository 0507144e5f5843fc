//! A recorded request, and its charges.

use std::fmt;

use tollgate_core::{Charge, Cost, Key, Micros, Policy, Timestamp};

/// A recorded request, and the limits that it meets.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// When it arrived.
    pub at: Timestamp,
    /// The client, if it is known.
    pub client: Option<Client<'a>>,
    /// The name of the route that it takes.
    pub route: &'a str,
    /// Its charges to limits, which are made together or not at all.
    pub asks: &'a [Ask<'a>],
    /// The duration of its response; zero if it is not known.
    pub duration: Micros,
}

impl<'a> Request<'a> {
    /// Makes a request without a client, a route or a duration.
    #[must_use]
    pub const fn new(at: Timestamp, asks: &'a [Ask<'a>]) -> Self {
        Self { at, client: None, route: "", asks, duration: Micros::ZERO }
    }

    /// Sets the client of the request.
    #[must_use]
    pub const fn of(mut self, client: Client<'a>) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets the route of the request.
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

/// The client of a request.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// Two clients are one if their keys are equal.
    pub key: &'a Key,
    /// The name of the client in the report. It is written only for a client that is denied.
    pub name: &'a dyn fmt::Display,
}

/// A charge of a request to one limit.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The policy that the request is charged to.
    pub policy: &'a Policy,
    /// The key of the quota.
    pub key: &'a Key,
    /// The units that the request costs.
    pub cost: Cost,
    /// Whether a denial denies the request.
    pub enforce: bool,
    /// Whether the quota is that of the client, and not one that clients share.
    pub of_client: bool,
    /// How long the request waits for the limit instead of being denied.
    pub waits: Option<Micros>,
    /// The actual cost of the request, if the response corrects the charge.
    pub actual: Option<Cost>,
}

impl<'a> Ask<'a> {
    /// Makes a charge to an enforced limit, over the quota of the client.
    #[must_use]
    pub const fn new(policy: &'a Policy, key: &'a Key, cost: Cost) -> Self {
        let (enforce, of_client) = (true, true);
        Self { policy, key, cost, enforce, of_client, waits: None, actual: None }
    }

    /// Makes a charge to an enforced limit, over one quota that all clients share.
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
