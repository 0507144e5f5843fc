//! Requests that wait for their limits.

use std::mem;
use std::sync::Arc;
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use tollgate_core::{Key, Micros, Timestamp};
use tollgate_engine::{self as engine, Correction, Limits};

use super::request::{Client, Request};

/// A waiting request, which outlives its line in the log.
pub(super) struct Waiter {
    pub(super) request: engine::Request,
    pub(super) replica: usize,
    pub(super) limits: Arc<Limits>,
    client: Option<(Key, Box<str>)>,
    route: Box<str>,
    corrections: Box<[(u8, Correction)]>,
    duration: Micros,
    pub(super) since: Timestamp,
}

impl Waiter {
    pub(super) fn new(request: engine::Request, recorded: &Request<'_>, since: Timestamp) -> Self {
        let client = |client: Client<'_>| (client.key.clone(), client.name.to_string().into());
        Self {
            request,
            replica: recorded.replica,
            limits: Arc::clone(recorded.limits),
            client: recorded.client.map(client),
            route: recorded.route.into(),
            corrections: recorded.corrections.into(),
            duration: recorded.duration,
            since,
        }
    }

    /// Returns the request as it was recorded, with its decided charges.
    pub(super) fn recorded(&mut self) -> Request<'_> {
        let charges = self.request.take_charges();
        let client = self.client.as_ref().map(|(key, name)| Client { key, name });
        Request {
            at: self.since,
            client,
            route: &self.route,
            replica: self.replica,
            limits: &self.limits,
            charges,
            corrections: &self.corrections,
            duration: self.duration,
        }
    }
}

/// The numbers of requests that are woken, because no earlier request waits for one of their keys.
#[derive(Clone, Default)]
pub(super) struct Woken(Arc<Mutex<Vec<u64>>>);

impl Woken {
    pub(super) fn take(&self) -> Vec<u64> {
        mem::take(&mut self.0.lock())
    }

    /// Returns what wakes the request with this number.
    pub(super) fn waker(&self, number: u64) -> Waker {
        Waker::from(Arc::new(Numbered { number, woken: self.clone() }))
    }
}

struct Numbered {
    number: u64,
    woken: Woken,
}

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.woken.0.lock().push(self.number);
    }
}
