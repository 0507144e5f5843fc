//! A recorded request and its charges.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Key, Micros, Timestamp};
use tollgate_engine::{Charges, Correction, Limits};

/// A recorded request and the limits that apply to it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Request<'a> {
    /// When it arrived.
    pub at: Timestamp,
    /// The client, if known.
    pub client: Option<Client<'a>>,
    /// The name of the matching route.
    pub route: &'a str,
    /// The number of the process that decides it. Numbers beyond the last start again.
    pub replica: usize,
    /// The limits that the charges refer to.
    pub limits: &'a Arc<Limits>,
    /// The charges, which are made together or not at all.
    pub charges: Charges,
    /// The corrections, for limits whose charges the response corrects.
    pub corrections: &'a [(u8, Correction)],
    /// How long the response took, or zero if unknown.
    pub duration: Micros,
}

impl<'a> Request<'a> {
    /// Creates a request without a client, a route or a duration.
    pub const fn new(at: Timestamp, limits: &'a Arc<Limits>, charges: Charges) -> Self {
        let (client, route, corrections, duration) = (None, "", &[], Micros::ZERO);
        Self { at, client, route, replica: 0, limits, charges, corrections, duration }
    }

    /// Sets the client.
    pub const fn of(mut self, client: Client<'a>) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets the route.
    pub const fn by(mut self, route: &'a str) -> Self {
        self.route = route;
        self
    }

    /// Sets how long the response takes.
    pub const fn lasting(mut self, duration: Micros) -> Self {
        self.duration = duration;
        self
    }

    /// Corrects the charges of these limits, by number.
    pub const fn correcting(mut self, corrections: &'a [(u8, Correction)]) -> Self {
        self.corrections = corrections;
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

impl fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("key", &self.key).finish_non_exhaustive()
    }
}
