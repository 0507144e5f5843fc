//! A quota and its algorithm.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::calendar::Unit;
use tollgate::policy::{Algorithm, Calendar, LeakyMode, Refill, Resolution};
use tollgate::{Micros, OnStoreError, Policy, PolicyError, Quota};

use super::super::format;
use super::super::problem::{Place, Problems};
use super::super::view::{Item, View};
use super::Shared;

/// The names of policies so far, and the keys where they stand.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    /// Takes a name, which two policies cannot share: they would share their counters.
    pub(super) fn take(&mut self, name: &str, place: Place, problems: &mut Problems) {
        let path = place.path.clone();
        if let Some(first) = self.0.insert(name.to_owned(), path) {
            problems.error(
                place,
                format!("`{}` is the name of another policy ({first})", name.escape_debug()),
                "give each an `identifier` of its own: counters belong to it",
            );
        }
    }

    /// Takes a name that was made of another one.
    pub(super) fn take_derived(
        &mut self,
        name: &str,
        place: Place,
        problems: &mut Problems,
    ) -> Option<()> {
        if name.len() > Policy::MAX_NAME {
            let what =
                format!("this is the policy `{}`, a name that is too long", name.escape_debug());
            let added = name.rfind('/').map_or(0, |slash| name.len() - slash);
            let most = Policy::MAX_NAME - added.min(Policy::MAX_NAME);
            let cure = format!("choose an `identifier` of at most {most} characters");
            problems.error(place, what, cure);
            return None;
        }
        self.take(name, place, problems);
        Some(())
    }
}

/// The algorithm of a policy with its settings.
pub(super) fn algorithm(
    view: &View<'_>,
    shared: &Shared<'_>,
    problems: &mut Problems,
) -> Option<Algorithm> {
    let strategy = view.text("strategy").or_else(|| match view.has("strategy") {
        true => None,
        false => shared.limiter.text("strategy"),
    })?;
    let mut algorithm: Algorithm = strategy.parse().ok()?;
    let name = algorithm.name();
    let mut belongs = |key: &str, owner: &str| {
        if view.has(key) && owner != name {
            no_effect(view, key, &format!("on a {name}"), &format!("it is for {owner}"), problems);
        }
    };
    belongs("refill", "token_bucket");
    belongs("mode", "leaky_bucket");
    belongs("maxWait", "leaky_bucket");
    belongs("resolution", "sliding_window_log");
    match &mut algorithm {
        Algorithm::TokenBucket { refill } if view.text("refill")? == "interval" => {
            *refill = Refill::Interval;
        }
        Algorithm::LeakyBucket { mode } => *mode = leaky_mode(view, problems)?,
        Algorithm::SlidingWindowLog { resolution } => {
            *resolution = match view.text("resolution")? {
                "exact" => Resolution::Exact,
                "thousandth" => Resolution::Thousandth,
                _ => Resolution::Auto,
            }
        }
        _ => {}
    }
    Some(algorithm)
}

/// The algorithm of `global` or `client`. Nobody waits in two queues, so where all of a file is a
/// leaky_bucket these measure, and what waits is what has a rate of its own. Files for an older
/// gateway, which name one strategy for everything, run by that.
pub(super) fn algorithm_everywhere(
    view: &View<'_>,
    shared: &Shared<'_>,
    problems: &mut Problems,
) -> Option<Algorithm> {
    let algorithm = algorithm(view, shared, problems)?;
    let says = ["strategy", "mode", "maxWait"].into_iter().any(|key| view.has(key));
    if says || !is_queue(algorithm) || !shared.an_api_queues {
        return Some(algorithm);
    }
    problems.warn(
        view.place(),
        "this only measures: a request waits in one queue, and some of `apis` have theirs",
        "write `mode: meter` to say so, or another `strategy`",
    );
    Some(Algorithm::LeakyBucket { mode: LeakyMode::Meter })
}

/// Whether an api of the file is a queue, in which requests do wait.
pub(super) fn an_api_queues(limiter: &View<'_>) -> bool {
    let routes = limiter.items("routes");
    let routes = routes.iter().filter_map(Item::view);
    let apis = routes.chain([limiter.clone()]).flat_map(|view| view.items("apis"));
    apis.filter_map(|item| item.view()).any(|api| {
        let inherits = |key: &str| if api.has(key) { &api } else { limiter };
        (api.has("limit") || api.has("share"))
            && inherits("strategy").text("strategy") == Some("leaky_bucket")
            && inherits("shadow").flag("shadow") != Some(true)
            && api.text("mode") == Some("queue")
    })
}

/// Whether requests wait in it for their turn.
pub(super) const fn is_queue(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } })
}

fn leaky_mode(view: &View<'_>, problems: &mut Problems) -> Option<LeakyMode> {
    let max_wait = match view.item("maxWait") {
        Some(_) => Some(Micros::from(view.span("maxWait")?)),
        None => None,
    };
    if view.text("mode")? == "meter" {
        if max_wait.is_some() {
            no_effect(view, "maxWait", "in mode meter", "nobody waits there", problems);
        }
        return Some(LeakyMode::Meter);
    }
    Some(LeakyMode::Queue { max_wait })
}

/// How much per how long.
pub(super) fn quota(
    view: &View<'_>,
    algorithm: Algorithm,
    problems: &mut Problems,
) -> Option<Quota> {
    let limit = view.whole("limit");
    let calendar = calendar(view, algorithm, problems);
    let window = match calendar {
        None => window(view, algorithm, problems),
        Some(_) => None,
    };
    let burst = view.whole("burst");
    if view.has("burst") && !is_bucket(algorithm) {
        problems.error(
            view.place_of_key("burst"),
            format!("a {algorithm} has no burst: its limit is what passes at once"),
            "remove it, or write `strategy: token_bucket`",
        );
        return None;
    }
    let quota = match calendar {
        Some(calendar) => Quota::per_calendar(limit?, calendar?),
        None => Quota::new(limit?, window?),
    };
    match view.has("burst") {
        true => Some(quota.burst(burst?)),
        false => Some(quota),
    }
}

/// The calendar that the limit is for, in place of a time; nothing inside where it is wrong.
fn calendar(
    view: &View<'_>,
    algorithm: Algorithm,
    problems: &mut Problems,
) -> Option<Option<Calendar>> {
    if !view.has("calendar") {
        if view.has("timeZone") {
            let why = "a span of time is as long everywhere";
            no_effect(view, "timeZone", "without `calendar`", why, problems);
        }
        return None;
    }
    if algorithm != Algorithm::FixedWindowCounter {
        problems.error(
            view.place_of_key("calendar"),
            format!("a {algorithm} has windows of one length, and days and months have not"),
            "write `strategy: fixed_window_counter`, or a span of time as `window: 24h`",
        );
        return Some(None);
    }
    if view.has("refillSeconds") {
        let why = "the calendar says when units come back";
        no_effect(view, "refillSeconds", "beside `calendar`", why, problems);
    }
    let unit =
        view.text("calendar").and_then(|name| Unit::ALL.into_iter().find(|it| it.name() == name));
    let zone = if view.has("timeZone") { view.text("timeZone") } else { Some("UTC") };
    // What there is no calendar for is told already.
    Some(unit.zip(zone).and_then(|(unit, zone)| tollgate::calendar::calendar(unit, zone).ok()))
}

/// The time that the limit is for, under whichever of its names.
fn window(view: &View<'_>, algorithm: Algorithm, problems: &mut Problems) -> Option<Duration> {
    let given = ["window", "windowSeconds"].into_iter().find(|key| view.has(key));
    let refill = view.has("refillSeconds");
    match given {
        // Older files say both, and mostly the same.
        Some(given) if refill && is_bucket(algorithm) && !says_the_same(view, given) => {
            let why = "`refillSeconds` says how long";
            no_effect(
                view,
                given,
                &format!("on a {algorithm} with `refillSeconds`"),
                why,
                problems,
            );
        }
        _ if refill && !is_bucket(algorithm) => {
            let why = "its window says when units come back";
            no_effect(view, "refillSeconds", &format!("on a {algorithm}"), why, problems);
        }
        _ => {}
    }
    if refill && is_bucket(algorithm) {
        return view.whole("refillSeconds").map(Duration::from_secs);
    }
    match given {
        Some("window") => view.span("window"),
        Some(_) => view.whole("windowSeconds").map(Duration::from_secs),
        None if view.has_unknown() => None,
        None => {
            problems.error(
                view.place(),
                "nothing says how long the limit is for",
                "add `windowSeconds: 60`, or `window: 500ms`",
            );
            None
        }
    }
}

fn says_the_same(view: &View<'_>, window: &str) -> bool {
    let refill = view.whole("refillSeconds").map(Duration::from_secs);
    refill.is_some()
        && refill
            == if window == "window" {
                view.span(window)
            } else {
                view.whole(window).map(Duration::from_secs)
            }
}

/// A policy, or why there cannot be such a one.
pub(super) fn build(
    name: &str,
    quota: Quota,
    algorithm: Algorithm,
    view: &View<'_>,
    problems: &mut Problems,
) -> Option<Policy> {
    // Such a name is told already.
    (format::IDENTIFIER.check)(name).ok()?;
    Policy::new(name, quota, algorithm).map_err(|error| refused(&error, view, problems)).ok()
}

/// Tells why a policy cannot be built.
pub(super) fn refused(error: &PolicyError, view: &View<'_>, problems: &mut Problems) {
    let limit = if view.has("limit") { "limit" } else { "share" };
    match error.nearest_limit() {
        Some(nearest) => {
            problems.error(view.place_of(limit), error.to_string(), format!("write {nearest}"));
        }
        None => {
            let keys = ["window", "windowSeconds", "refillSeconds"];
            let key = keys.into_iter().find(|key| view.has(key)).unwrap_or(limit);
            let cure = "choose a window of 50us to 400days, in whole microseconds";
            problems.error(view.place_of(key), error.to_string(), cure);
        }
    }
}

/// What a policy does while the store cannot decide.
pub(super) fn on_store_error(
    view: &View<'_>,
    shared: &Shared<'_>,
    problems: &mut Problems,
) -> Option<OnStoreError> {
    let place = if view.has("onStoreError") { view } else { &shared.limiter };
    if place.has("onStoreError") && !shared.can_fail {
        no_effect(place, "onStoreError", "in memory", "such a store does not fail", problems);
    }
    Some(word(place.text("onStoreError")?))
}

/// Reads what a policy does with requests that are shed, if that differs from
/// [`on_store_error`]; nothing inside where the file is wrong.
pub(super) fn shed(
    view: &View<'_>,
    shared: &Shared<'_>,
    problems: &mut Problems,
) -> Option<Option<OnStoreError>> {
    let place = if view.has("shed") { view } else { &shared.limiter };
    if !place.has("shed") {
        return Some(None);
    }
    if !shared.can_fail {
        no_effect(place, "shed", "in memory", "such a store is never overloaded", problems);
    }
    Some(Some(word(place.text("shed")?)))
}

fn word(on_store_error: &str) -> OnStoreError {
    match on_store_error {
        "closed" => OnStoreError::Closed,
        "local" => OnStoreError::Local,
        _ => OnStoreError::Open,
    }
}

pub(super) fn no_effect(
    view: &View<'_>,
    key: &str,
    place: &str,
    why: &str,
    problems: &mut Problems,
) {
    let what = format!("`{key}` has no effect {place}");
    problems.warn(view.place_of_key(key), what, format!("remove it: {why}"));
}

pub(super) const fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. })
}
