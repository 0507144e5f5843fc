//! Charges that are corrected when the response is known.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, Response, StatusCode};
use tollgate_core::{Cost, Micros, Receipt};

/// How the charges of a limit are corrected later: what [`Costs`](crate::Costs) says is
/// then an estimate. See [`Limit::reserve`](crate::Limit::reserve).
///
/// * The handler settles them by the [`Reservation`](crate::Reservation) in the extensions
///   of its request, or what it lets go of counts: see [`Tally`](crate::layer::Tally).
/// * Or the service says in a header field of its response what the request has cost
///   ([`or_by_header`](Self::or_by_header)).
/// * The first of them counts. If there is none within a time, the estimate stands.
///
/// # When the estimate was wrong
///
/// What was too much comes back, as far as it still counts. What was too little is charged
/// as of now, even if it is not there: it may leave a debt of at most one capacity, which
/// has to be worked off before the next request passes. So estimate rather too much, and
/// at least 1: a request that costs nothing is not charged, and leaves nothing to correct.
#[derive(Clone, Debug)]
pub struct Reserve {
    pub(crate) header: Option<HeaderName>,
    lapses_after: Micros,
}

impl Reserve {
    /// The handler settles, within the window of the policy or 5 minutes, whichever is longer, and
    /// at most an hour ([`Receipt::lifetime`]).
    pub const fn by_handler() -> Self {
        Self { header: None, lapses_after: Receipt::LIFETIME }
    }

    /// The service may also state the cost in units, in the header `name` of its response, for
    /// example [`headers::COST`](crate::headers::COST).
    ///
    /// The layer removes the header from all responses, also where the limit charged nothing: the
    /// request is exempt, is on the allowlist, has no key or costs 0, or the store failed. A value
    /// that is not an integer is ignored, and the estimate stands. In nested layers, the innermost
    /// layer with this header reads and removes it.
    #[must_use]
    pub fn or_by_header(mut self, name: HeaderName) -> Self {
        self.header = Some(name);
        self
    }

    /// After this time nothing is corrected any more, and the estimate stands. A longer time than
    /// [`Receipt::lifetime`] has no effect.
    #[must_use]
    pub fn lapse_after(mut self, time: Duration) -> Self {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.lapses_after = Micros::new(micros).min(Receipt::LIFETIME);
        self
    }

    pub(crate) fn has_lapsed(&self, age: Duration) -> bool {
        age >= Duration::from(self.lapses_after)
    }

    /// The cost that the response states, if it states one.
    pub(crate) fn stated(&self, headers: &HeaderMap) -> Option<Cost> {
        let mut values = headers.get_all(self.header.as_ref()?).iter();
        let value = values.next()?;
        let units = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        if units.is_none() || values.next().is_some() {
            tracing::warn!(
                target: "tollgate",
                "the cost that a response states is not one integer, so the estimate stands",
            );
            return None;
        }
        units.map(Cost::new)
    }
}

/// What a condition may look at: everything of a response but its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header fields of the service.
    pub headers: &'a HeaderMap,
    /// What the service has put down for layers further out.
    pub extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// The head of a response.
    pub fn of<B>(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}

/// How a limit corrects its charges.
#[derive(Clone, Default)]
pub(crate) struct Settling {
    pub(crate) reserve: Option<Reserve>,
    /// The responses that count; all if there is no condition.
    pub(crate) counts: Option<Arc<Counts>>,
}

pub(crate) type Counts = dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync;

impl Settling {
    pub(crate) const fn settles(&self) -> bool {
        self.reserve.is_some() || self.counts.is_some()
    }
}

impl fmt::Debug for Settling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settling")
            .field("reserve", &self.reserve)
            .field("counts_all", &self.counts.is_none())
            .finish()
    }
}
