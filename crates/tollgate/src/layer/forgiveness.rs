//! Response bodies that decide whether a response forgives.

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, Response};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::Policy;
use tollgate_engine::{Charges, Correction};

use super::state::Http;
use crate::ResponseHead;
use crate::body::{Hold, InFlight};
use crate::drive::Open;
use crate::settling::OnBody;

/// Reads the response's body, if it may forgive a charge. The reader also holds the request's
/// permits.
pub(super) fn by_body<B>(
    http: &Http,
    open: &Arc<Open>,
    response: &Response<B>,
    charges: &Charges,
    permits: InFlight,
) -> InFlight {
    let head = ResponseHead::of(response);
    let conditions = charges.iter().filter_map(|applied| {
        let limit = http.limit(applied);
        let forgives = limit.settling.forgives.as_ref()?;
        let body = forgives.body.as_ref()?;
        (forgives.head)(&head).then(|| (limit.policy.clone(), Arc::clone(body)))
    });
    let conditions: Conditions = conditions.collect();
    if conditions.is_empty() || !is_readable(head.headers) {
        return permits;
    }
    let (open, read) = (Arc::clone(open), Mutex::new(Some(Vec::new())));
    InFlight::until_dropped(BodyReader { _permits: permits, open, conditions, read })
}

type Conditions = SmallVec<[(Policy, Arc<OnBody>); 1]>;

/// Whether the body may be short and is not compressed.
fn is_readable(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: usize| length <= MOST_BYTES)
        && headers.get_all(CONTENT_ENCODING).iter().all(|coding| coding == "identity")
}

/// Copies a body while it is sent, and forgives when it is complete.
struct BodyReader {
    _permits: InFlight,
    open: Arc<Open>,
    conditions: Conditions,
    /// `None` for a body that is too long, and after its end.
    read: Mutex<Option<Vec<u8>>>,
}

impl Hold for BodyReader {
    fn data(&self, data: &[u8]) {
        let mut read = self.read.lock();
        match &mut *read {
            Some(bytes) if bytes.len() + data.len() <= MOST_BYTES => bytes.extend_from_slice(data),
            read => *read = None,
        }
    }

    fn complete(&self) {
        let Some(body) = self.read.lock().take().filter(|body| !body.is_empty()) else { return };
        for (policy, condition) in &self.conditions {
            if !condition(&body) {
                continue;
            }
            self.open.settle(|charge| charge.is_of(policy.name()).then_some(Correction::Forgive));
        }
    }
}

/// The longest body that forgives. Success messages are much shorter.
const MOST_BYTES: usize = 16 << 10;
