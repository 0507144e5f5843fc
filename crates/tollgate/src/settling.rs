use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, Response, StatusCode};
#[cfg(feature = "serde")]
use tollgate_core::{Charged, Key, Policy, ReceiptId, Source, Timestamp};
use tollgate_core::{Cost, Micros, Receipt};

/// How an estimated cost is corrected. See [`Limit::reserve`](crate::Limit::reserve).
///
/// * The handler settles the cost with its [`Reservation`](crate::layer::Reservation) or with a
///   [`Tally`](crate::layer::Tally).
/// * Alternatively, the service states the cost in a response header
///   ([`or_by_header`](Self::or_by_header)).
/// * The first settlement counts. If none arrives before the deadline, the estimate becomes final.
///
/// # Wrong estimates
///
/// Units beyond the actual cost are refunded if they still count. Missing units are charged now,
/// even beyond the limit. This can leave a debt of at most one capacity, which must be refilled
/// before the next request is allowed. So estimate high, and at least 1: a request with cost 0 is
/// not charged and cannot be corrected.
///
/// ```
/// use tollgate::limit::Reserve;
/// use tollgate::{Limit, Policy, Quota, headers};
///
/// // Reserve 500 tokens. The response contains the actual number in `X-Tollgate-Cost`.
/// let policy = Policy::token_bucket("tokens", Quota::per_hour(100_000))?;
/// let reserve = Reserve::by_handler().or_by_header(headers::COST);
/// let limit = Limit::global(policy).cost(500).reserve(reserve);
/// # let _ = limit;
/// # Ok::<(), tollgate::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Reserve {
    pub(crate) header: Option<HeaderName>,
    lapses_after: Micros,
}

impl Reserve {
    /// Lets the handler settle the cost. The deadline is the longer of the policy's window and 5
    /// minutes, but at most an hour ([`Receipt::lifetime`]).
    pub const fn by_handler() -> Self {
        Self { header: None, lapses_after: Receipt::LIFETIME }
    }

    /// Lets the service also state the cost, in units, in the response header `name`, for example
    /// [`headers::COST`](crate::headers::COST).
    ///
    /// The layer removes the header from all responses, charged or not. It ignores values that are
    /// not integers. In nested layers, the innermost layer with this header reads and removes it.
    pub fn or_by_header(mut self, name: HeaderName) -> Self {
        self.header = Some(name);
        self
    }

    /// Sets the time after which the estimate becomes final. It is at most [`Receipt::lifetime`].
    pub fn lapse_after(mut self, time: Duration) -> Self {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.lapses_after = Micros::new(micros).min(Receipt::LIFETIME);
        self
    }

    pub(crate) const fn lapses_after(&self) -> Micros {
        self.lapses_after
    }

    pub(crate) fn stated(&self, headers: &HeaderMap) -> Option<Cost> {
        let mut values = headers.get_all(self.header.as_ref()?).iter();
        let value = values.next()?;
        let units = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        if units.is_none() || values.next().is_some() {
            tracing::warn!(
                target: "tollgate",
                "the cost that a response states is not a single integer, so the estimate remains charged",
            );
            return None;
        }
        units.map(Cost::new)
    }
}

/// A response's head, without the body, for [`Limit::count_only`](crate::Limit::count_only),
/// [`Limit::forgive_on`](crate::Limit::forgive_on) and
/// [`Limit::forgive_on_body`](crate::Limit::forgive_on_body).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The response status.
    pub status: StatusCode,
    /// The response headers from the service.
    pub headers: &'a HeaderMap,
    /// The response extensions from the service.
    pub extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// Borrows a response's head.
    pub fn of<B>(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Settling {
    pub(crate) reserve: Option<Reserve>,
    /// The responses that count; `None` for all.
    pub(crate) counts: Option<Arc<OnResponse>>,
    /// The responses that forgive what the key has used.
    pub(crate) forgives: Option<Forgives>,
}

#[derive(Clone)]
pub(crate) struct Forgives {
    pub(crate) head: Arc<OnResponse>,
    /// A further condition, after the head's.
    pub(crate) body: Option<Arc<OnBody>>,
}

pub(crate) type OnResponse = dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync;
pub(crate) type OnBody = dyn Fn(&[u8]) -> bool + Send + Sync;

impl Settling {
    pub(crate) const fn settles(&self) -> bool {
        self.reserve.is_some() || self.counts.is_some() || self.forgives.is_some()
    }
}

debug_fields!(Settling, reserve);

/// A [`Receipt`] in a form that can be sent to another process, which settles the cost when it is
/// known.
///
/// The policy is not included, because the other process has it in its own configuration.
///
/// ```
/// use tollgate::store::{Receipt, SentReceipt};
/// use tollgate::{Policy, Store};
///
/// fn send(receipt: &Receipt) -> serde_json::Result<String> {
///     serde_json::to_string(&SentReceipt::from(receipt))
/// }
///
/// async fn settle(store: &impl Store, policy: &Policy, message: &str, cost: u64) {
///     let sent: SentReceipt = serde_json::from_str(message).expect("a message of `send`");
///     if let Some(receipt) = sent.receipt(policy) {
///         let _ = store.settle(&receipt, cost.into()).await;
///     }
/// }
/// ```
#[cfg(feature = "serde")]
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct SentReceipt {
    policy: String,
    /// Text, because JSON readers may round large numbers.
    id: String,
    is_local: bool,
    key: Vec<u8>,
    cost: u64,
    charged_at: u64,
    leaves_at: u64,
    /// Absent in receipts from earlier versions, like `refunded`.
    resets_at: Option<u64>,
    #[serde(default)]
    refunded: u64,
    /// In microseconds. Absent in receipts from earlier versions.
    lifetime: Option<u64>,
}

#[cfg(feature = "serde")]
impl From<&Receipt> for SentReceipt {
    fn from(receipt: &Receipt) -> Self {
        let Receipt { id, source, policy, key, charged } = receipt;
        Self {
            policy: policy.name().to_owned(),
            id: format!("{:032x}", id.0),
            is_local: *source == Source::Local,
            key: key.as_bytes().to_vec(),
            cost: charged.cost.get(),
            charged_at: charged.charged_at.as_micros(),
            leaves_at: charged.leaves_at.as_micros(),
            resets_at: Some(charged.resets_at.as_micros()),
            refunded: charged.refunded,
            lifetime: Some(charged.lifetime.get()),
        }
    }
}

#[cfg(feature = "serde")]
impl SentReceipt {
    /// Returns the name of the policy that was charged.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the receipt for [`Store::settle`](crate::Store::settle). Its
    /// [lifetime](Receipt::lifetime) is the original receipt's, also if `policy` has another window.
    ///
    /// Returns `None` if `policy` has a different name or the ID is not a number. Nothing else is checked, so accept messages
    /// only from your own processes.
    pub fn receipt(&self, policy: &Policy) -> Option<Receipt> {
        let charged_at = Timestamp::from_micros(self.charged_at);
        let unknown = Charged::new(policy, Cost::new(self.cost), charged_at);
        let charged = Charged {
            leaves_at: Timestamp::from_micros(self.leaves_at),
            resets_at: self.resets_at.map_or(unknown.resets_at, Timestamp::from_micros),
            refunded: self.refunded,
            lifetime: self.lifetime.map_or(unknown.lifetime, Micros::new),
            ..unknown
        };
        let receipt = Receipt {
            id: ReceiptId(u128::from_str_radix(&self.id, 16).ok()?),
            source: if self.is_local { Source::Local } else { Source::Store },
            policy: policy.clone(),
            key: Key::new(&self.key),
            charged,
        };
        (policy.name() == self.policy).then_some(receipt)
    }
}
