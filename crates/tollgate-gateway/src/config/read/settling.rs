//! What becomes of a request that is denied, and of a charge when the response is known.

use std::time::Duration;

use tollgate::policy::Algorithm;
use tollgate::store::Receipt;
use tollgate::{OnExceeded, OnStoreError};

use super::super::problem::Problems;
use super::super::view::{Item, View};
use super::policy::{is_queue, no_effect};
use crate::plan::{ReservePlan, SettleBy, Statuses};

/// What the policy is that this is about.
#[derive(Clone, Copy)]
pub(super) struct About {
    pub(super) algorithm: Option<Algorithm>,
    pub(super) on_store_error: OnStoreError,
    pub(super) enforce: bool,
    /// Whether the store can fail.
    pub(super) can_fail: bool,
}

impl About {
    fn queues(&self) -> bool {
        self.algorithm.is_some_and(is_queue)
    }
}

/// What becomes of a request that the policy denies.
pub(super) fn excess(view: &View<'_>, about: About, problems: &mut Problems) -> Option<OnExceeded> {
    let Some(section) = view.item("excess").and_then(|item| item.view()) else {
        // The word, or something that is told already.
        return view.text("excess").map(|_| OnExceeded::Reject);
    };
    let max = section.span("wait")?;
    if max.is_zero() {
        no_effect(
            view,
            "excess",
            "with a wait of nothing",
            "who may not wait is refused",
            problems,
        );
        return Some(OnExceeded::Reject);
    }
    if !about.enforce {
        let why = "what only watches makes nobody wait";
        no_effect(view, "excess", "with `shadow`", why, problems);
    }
    if about.queues() {
        problems.warn(
            view.place_of_key("excess"),
            "a leaky_bucket is a queue, in which requests wait already: these would wait for a \
             place in it, and then once more",
            "write `maxWait` in place of `excess`, or `mode: meter`",
        );
    }
    if about.can_fail && about.on_store_error == OnStoreError::Closed {
        problems.warn(
            view.place_of_key("excess"),
            "with `onStoreError: closed` all who wait are refused at once when the store goes \
             away, however long they have waited",
            "write `onStoreError: local` or `open`, or `excess: reject`",
        );
    }
    Some(OnExceeded::Wait { max })
}

/// Which responses count, if not all of them do.
pub(super) fn counts(
    view: &View<'_>,
    about: About,
    problems: &mut Problems,
) -> Option<Option<Vec<Statuses>>> {
    let Some(item) = view.item("countOnly") else {
        return Some(None);
    };
    warn_of_queue(view, "countOnly", about, problems);
    let items = item.view()?.items("status");
    let statuses = items.iter().map(Item::text).map(|text| text?.parse().ok());
    Some(Some(statuses.collect::<Option<_>>()?))
}

/// How the charge is corrected, if it is an estimate.
pub(super) fn reserve(
    view: &View<'_>,
    about: About,
    problems: &mut Problems,
) -> Option<Option<ReservePlan>> {
    let Some(item) = view.item("reserve") else {
        return Some(None);
    };
    warn_of_queue(view, "reserve", about, problems);
    let section = item.view()?;
    if section.has("units") && view.has("costs") {
        problems.error(
            section.place_of_key("units"),
            "`reserve.units` and `costs` both say what is charged at first",
            "keep one of the two",
        );
        return None;
    }
    let bytes = section.has("bytesPerUnit");
    let settle = match section.text("settle")? {
        "body" if bytes => SettleBy::Bytes(section.whole("bytesPerUnit")?),
        "body" => SettleBy::Trailer,
        _ => SettleBy::Header,
    };
    if bytes && settle == SettleBy::Header {
        problems.error(
            section.place_of_key("bytesPerUnit"),
            "the bytes of a body are not known when its header is read",
            "write `settle: body` beside it",
        );
        return None;
    }
    let lapse = section.span("lapse")?;
    let most = Duration::from(Receipt::LIFETIME);
    if lapse > most || lapse.is_zero() {
        problems.error(
            section.place_of("lapse"),
            "a charge is remembered for an hour, and for no longer can it be corrected",
            "write a time up to `1h`, or leave it out",
        );
        return None;
    }
    Some(Some(ReservePlan { settle, lapse }))
}

/// A place in a queue comes back only if nobody stands behind it.
fn warn_of_queue(view: &View<'_>, key: &str, about: About, problems: &mut Problems) {
    if about.queues() {
        problems.warn(
            view.place_of_key(key),
            format!(
                "`{key}` has little effect on a leaky_bucket: a place in its queue that somebody \
                 stands behind cannot be given back"
            ),
            "write `mode: meter`, or another `strategy`",
        );
    }
}
