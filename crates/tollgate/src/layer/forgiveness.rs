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
    let copy = BodyCopy { bytes: Vec::new(), length: content_length(head.headers) };
    let (open, read) = (Arc::clone(open), Mutex::new(Some(copy)));
    InFlight::until_dropped(BodyReader { _permits: permits, open, conditions, read })
}

type Conditions = SmallVec<[(Policy, Arc<OnBody>); 1]>;

/// Whether the body may be short and is not compressed.
fn is_readable(headers: &HeaderMap) -> bool {
    content_length(headers).is_none_or(|length| length <= MOST_BYTES as u64)
        && headers.get_all(CONTENT_ENCODING).iter().all(|coding| coding == "identity")
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Copies a body while it is sent, and forgives when it is complete.
struct BodyReader {
    _permits: InFlight,
    open: Arc<Open>,
    conditions: Conditions,
    /// `None` for a body that is too long, and after its end.
    read: Mutex<Option<BodyCopy>>,
}

struct BodyCopy {
    bytes: Vec<u8>,
    /// The complete body's length, if it is known. A server with HTTP/1 stops reading a body after
    /// this many bytes, so it may never see the end.
    length: Option<u64>,
}

impl Hold for BodyReader {
    fn expect(&self, length: u64) {
        if let Some(copy) = &mut *self.read.lock() {
            copy.length.get_or_insert(length);
        }
    }

    fn data(&self, data: &[u8]) {
        let is_complete = {
            let mut read = self.read.lock();
            let Some(copy) = &mut *read else { return };
            if copy.bytes.len() + data.len() > MOST_BYTES {
                *read = None;
                return;
            }
            copy.bytes.extend_from_slice(data);
            copy.length == Some(copy.bytes.len() as u64)
        };
        if is_complete {
            self.complete();
        }
    }

    fn complete(&self) {
        let Some(copy) = self.read.lock().take().filter(|copy| !copy.bytes.is_empty()) else {
            return;
        };
        for (policy, condition) in &self.conditions {
            if !condition(&copy.bytes) {
                continue;
            }
            self.open.settle(|charge| charge.is_of(policy.name()).then_some(Correction::Forgive));
        }
    }
}

/// The longest body that forgives. Success messages are much shorter.
const MOST_BYTES: usize = 16 << 10;
