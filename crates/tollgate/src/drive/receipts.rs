//! IDs of receipts, and how to settle a receipt without waiting for the store.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;
use tollgate_core::{Receipt, ReceiptId, Reply, Store, Timestamp};
use tollgate_engine::Correction;

/// Corrects a charge without waiting for the store. `runtime` is for callers outside of a runtime.
///
/// After a failure, only permits are settled again: their receipts count only once, and the permit
/// is missing until then.
pub(crate) fn settle<St: Store>(
    store: &St,
    receipt: Receipt,
    correction: impl Into<Correction>,
    runtime: Option<&Handle>,
) {
    let correction = correction.into();
    let is_permit = receipt.policy.is_concurrency();
    let reply = match correction.apply(store, &receipt).now() {
        Ok(Ok(_)) => return,
        Ok(Err(error)) if !is_permit => return report(&error, false),
        Ok(error) => Reply::ready(error),
        Err(reply) => Reply::pending(reply),
    };
    let Some(runtime) = Handle::try_current().ok().or_else(|| runtime.cloned()) else {
        return report(&"there is no tokio runtime to wait for the store", is_permit);
    };
    let store = store.clone();
    runtime.spawn(async move {
        let mut last = reply.await;
        for pause in PAUSES {
            if last.is_ok() || !is_permit {
                break;
            }
            sleep(pause).await;
            last = correction.apply(&store, &receipt).await;
        }
        if let Err(error) = last {
            report(&error, is_permit);
        }
    });
}

fn report(error: &dyn std::fmt::Display, is_permit: bool) {
    if is_permit {
        tracing::warn!(target: "tollgate", %error, "a permit counts until its time to live ends");
    } else {
        tracing::warn!(target: "tollgate", %error, "a charge could not be corrected");
    }
}

const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(400), Duration::from_secs(3)];

/// Returns a new ID for a charge at this time. See [`ReceiptId::new`].
pub(crate) fn next_id(decided_at: Timestamp) -> ReceiptId {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = *PROCESS.get_or_init(|| RandomState::new().hash_one("receipts"));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    ReceiptId::new(process, decided_at, count)
}
