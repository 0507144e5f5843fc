//! How denied requests are treated, and how charges are corrected after a response.

use std::time::Duration;

use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, OnStoreError};
use tollgate::store::Receipt;

use super::context::is_queue;
use super::options::QueueOption;
use crate::code;
use crate::file::tables::{ForgiveOn, Rules};
use crate::plan::{ReservePlan, SettleBy, Statuses, Whose};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Either, Setting};

#[derive(Clone, Copy)]
pub(super) struct PolicyContext {
    pub(super) algorithm: Option<Algorithm>,
    pub(super) on_store_error: OnStoreError,
    pub(super) is_shadow: bool,
    pub(super) can_fail: bool,
}

impl PolicyContext {
    fn queues(&self) -> bool {
        self.algorithm.is_some_and(is_queue)
    }
}

/// What a policy does with requests beyond its limits.
#[derive(Default)]
pub(super) struct Excess {
    pub(super) mode: Mode,
    /// How requests beyond a quota queue in the store. The mode is then for the concurrency limit.
    pub(super) queue: Option<QueueOption>,
}

pub(super) fn excess(rules: &Rules, context: PolicyContext) -> Checked<Excess> {
    let excess = enforced(rules, context)?;
    let why = match excess {
        _ if !context.is_shadow => return Ok(excess),
        Excess { mode: Mode::Annotate, .. } => Some("with `shadow` no request gets a header"),
        Excess { mode: Mode::Wait(_), .. } | Excess { queue: Some(_), .. } => {
            Some("with `shadow` no request waits")
        }
        Excess { mode: Mode::Reject | Mode::Shadow, queue: None } => None,
    };
    why.inspect(|why| rules.excess.no_effect("with `shadow`", why));
    Ok(Excess { mode: Mode::Shadow, queue: None })
}

fn enforced(rules: &Rules, context: PolicyContext) -> Checked<Excess> {
    let key: &Setting = &rules.excess;
    let section = match rules.excess.get()? {
        Either::Other(section) => section,
        Either::One(word) => return Ok(Excess { mode: *word, queue: None }),
    };
    let (name, max, queues) = match (section.wait.value()?, section.queue.value()?) {
        (Some(max), _) => ("wait", max, false),
        (None, Some(max)) => ("queue", max, true),
        (None, None) => {
            return Err(section.info.location.error(
                code::MISSING_KEY,
                "neither `wait` nor `queue` is set",
                "add the maximum wait, `wait: 30s` within each gateway or `queue: 30s` over all \
                 gateways",
            ));
        }
    };
    if max.is_zero() {
        let context = format_args!("with `{name}: 0s`");
        key.no_effect(context, "a request that may not wait is denied");
        return Ok(Excess::default());
    }
    if queues {
        let mode = if rules.concurrency.is_set() { Mode::Wait(max) } else { Mode::Reject };
        return Ok(Excess { mode, queue: Some(QueueOption { max, key: section.queue.name() }) });
    }
    if context.queues() {
        key.name().warn(
            code::TWO_QUEUES,
            "requests already wait in the queue of a leaky_bucket: with `excess` they would wait \
             twice",
            "write `maxWait` instead of `excess`, or `mode: meter`",
        );
    }
    if context.can_fail && context.on_store_error == OnStoreError::Closed {
        key.name().warn(
            code::CLOSED_WHILE_WAITING,
            "with `onStoreError: closed` all waiting requests are denied when the store fails, \
             however long they have waited",
            "write `onStoreError: local` or `open`, or `excess: reject`",
        );
    }
    Ok(Excess { mode: Mode::Wait(max), queue: None })
}

pub(super) fn counts(rules: &Rules, context: PolicyContext) -> Checked<Option<Vec<Statuses>>> {
    if rules.count_only.is_set() {
        warn_of_queue(&rules.count_only, context);
    }
    Ok(rules.count_only.value()?.map(|section| section.status))
}

pub(super) fn forgives(
    rules: &Rules,
    context: PolicyContext,
    whose: Whose,
    queues: bool,
) -> Checked<Option<ForgiveOn>> {
    let key = &rules.forgive_on;
    let queues = queues || context.queues();
    if context.algorithm.is_none() && !rules.penalty.is_set() {
        key.no_effect("here", "a concurrency limit has nothing to forgive");
    }
    if key.is_set() && queues {
        return Err(key.name().error(
            code::NOT_QUEUED,
            "requests that queue have their turns, and after a success later requests would \
             overtake them",
            "remove the queue, for example with `mode: meter`, or remove `forgiveOn`",
        ));
    }
    if key.is_set() && whose == Whose::Everybody {
        key.name().warn(
            code::SHARED_BY_ALL,
            "a single client's success forgives what all clients have used",
            "put it into `client`, or into an api with `per: client`",
        );
    }
    key.value()
}

pub(super) fn reserve(rules: &Rules, context: PolicyContext) -> Checked<Option<ReservePlan>> {
    if rules.reserve.is_set() {
        warn_of_queue(&rules.reserve, context);
    }
    let Some(section) = rules.reserve.get()? else { return Ok(None) };
    if section.units.is_set() && rules.costs.is_set() {
        return Err(section.units.name().error(
            code::EXCLUSIVE_KEYS,
            "`reserve.units` and `costs` both set the initial charge",
            "keep one of the two",
        ));
    }
    let settle = match (section.settle.value()?, section.bytes_per_unit.value()?) {
        (SettleBy::Trailer, Some(bytes)) => SettleBy::Bytes(bytes),
        (SettleBy::Header, Some(_)) => {
            return Err(section.bytes_per_unit.name().error(
                code::SETTLING,
                "a body's size is unknown when its header arrives",
                "add `settle: body`",
            ));
        }
        (settle, _) => settle,
    };
    let lapse = section.lapse.value()?;
    if lapse > Duration::from(Receipt::LIFETIME) || lapse.is_zero() {
        return Err(section.lapse.error(
            code::SETTLING,
            "a charge can be corrected for one hour at most",
            "write a time up to `1h`, or leave it out",
        ));
    }
    Ok(Some(ReservePlan { settle, lapse }))
}

/// A place in a queue can only be returned if no request waits behind it.
fn warn_of_queue(key: &Setting, context: PolicyContext) {
    if context.queues() {
        let what = format!(
            "`{}` has little effect on a leaky_bucket: only the last request in its queue can be \
             refunded",
            key.key
        );
        key.name().warn(code::SETTLING, what, "write `mode: meter`, or another `strategy`");
    }
}
