//! The states of the wrappers, step by step, against a store that does what it is told.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::advance;
use tollgate_core::{
    Charge, Cost, Decision, Key, OnStoreError, Outcome, Policy, Quota, Receipt, Settlement, Source,
    Store, StoreError, StoreExt, Timestamp, Verdict,
};

use super::{Breaker, BreakerState, Fallback};

/// What a call to the store comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Well,
    Down,
    Puzzled,
    Silent,
    /// Down for the keys that are asked for, and well for others.
    PartlyDown,
    /// Nobody asks it: what it said before is enough to answer.
    Unasked(Source),
}

/// Answers by its mood at the time of asking, and counts.
#[derive(Clone, Debug, Default)]
struct Moody(Arc<Mutex<(Mood, usize)>>);

impl Moody {
    fn set(&self, mood: Mood) {
        self.0.lock().0 = mood;
    }

    fn calls(&self) -> usize {
        self.0.lock().1
    }

    fn answer<T: Send + 'static>(&self, value: T) -> Answer<T> {
        let mut state = self.0.lock();
        state.1 += 1;
        Answer(match state.0 {
            Mood::Well | Mood::Unasked(_) => Some(Ok(value)),
            Mood::Down => Some(Err(StoreError::maybe_charged("moody", "down"))),
            Mood::Puzzled => Some(Err(StoreError::invalid("moody", "puzzled"))),
            Mood::Silent => None,
            Mood::PartlyDown => Some(Err(StoreError::not_charged("moody", "down").of_a_part())),
        })
    }
}

struct Answer<T>(Option<Result<T, StoreError>>);

impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Store for Moody {
    type Future<T: Send + 'static> = Answer<T>;

    fn decide(&self, _: &[Charge<'_>]) -> Answer<Verdict> {
        let source = match self.0.lock().0 {
            Mood::Unasked(source) => source,
            _ => Source::Store,
        };
        let verdict = Verdict::single(true, Timestamp::EPOCH, Decision::skipped(1));
        self.answer(verdict.with_source(source))
    }

    fn settle(&self, _: &Receipt, _: Cost) -> Answer<Settlement> {
        self.answer(Settlement::Repeated)
    }

    fn renew(&self, _: &Receipt) -> Answer<Option<Receipt>> {
        self.answer(None)
    }

    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        self.answer(())
    }
}

const PROBE_EVERY: Duration = Duration::from_millis(200);

fn breaker(failures_to_open: u32) -> (Moody, Breaker<Moody>) {
    let moody = Moody::default();
    (moody.clone(), Breaker::with(moody, failures_to_open, PROBE_EVERY))
}

/// Asks, and says what came of it.
async fn ask(breaker: &Breaker<Moody>) -> Result<(), StoreError> {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    breaker.peek(&policy, &Key::GLOBAL).await.map(drop)
}

/// An open breaker over a store that is down.
async fn open() -> (Moody, Breaker<Moody>) {
    let (moody, breaker) = breaker(1);
    moody.set(Mood::Down);
    ask(&breaker).await.unwrap_err();
    assert_eq!((breaker.state(), moody.calls()), (BreakerState::Open, 1));
    (moody, breaker)
}

#[tokio::test(start_paused = true)]
async fn what_the_store_was_not_asked_about_says_nothing_of_it() {
    for source in [Source::Lease, Source::Cache] {
        let (moody, breaker) = breaker(2);
        for mood in [Mood::Down, Mood::Unasked(source), Mood::Down] {
            moody.set(mood);
            let _ = ask(&breaker).await;
        }
        assert_eq!(breaker.state(), BreakerState::Open, "two in a row of those that were asked");
        advance(PROBE_EVERY).await;
        moody.set(Mood::Unasked(source));
        ask(&breaker).await.unwrap();
        assert_eq!(breaker.state(), BreakerState::Open);
        // It was no probe, so that the next request is one.
        moody.set(Mood::Well);
        ask(&breaker).await.unwrap();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn it_opens_after_so_many_failures_in_a_row() {
    let (moody, breaker) = breaker(3);
    for moods in [[Mood::Down, Mood::Down, Mood::Well], [Mood::Down, Mood::Down, Mood::Down]] {
        for mood in moods {
            assert_eq!(breaker.state(), BreakerState::Closed);
            moody.set(mood);
            let _ = ask(&breaker).await;
        }
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    let error = ask(&breaker).await.unwrap_err();
    assert!(error.is_outage() && !error.may_have_charged());
    assert_eq!(error.retry_after().unwrap().get(), 200_000);
    assert_eq!(moody.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_breaker() {
    let (_, breaker) = open().await;
    let clone = breaker.clone();
    assert_eq!(clone.state(), BreakerState::Open);
    ask(&clone).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_request_count_neither_way() {
    let (moody, breaker) = breaker(2);
    for _ in 0..5 {
        moody.set(Mood::Puzzled);
        ask(&breaker).await.unwrap_err();
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    for mood in [Mood::Down, Mood::Puzzled, Mood::Down] {
        moody.set(mood);
        ask(&breaker).await.unwrap_err();
    }
    assert_eq!(breaker.state(), BreakerState::Open, "two outages with no success between");
    advance(PROBE_EVERY).await;
    moody.set(Mood::Puzzled);
    assert!(!ask(&breaker).await.unwrap_err().is_outage());
    assert_eq!(breaker.state(), BreakerState::Open, "such a probe has shown nothing");
    advance(PROBE_EVERY).await;
    moody.set(Mood::Well);
    ask(&breaker).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_fails_does_not_close_the_way_to_others() {
    let (moody, breaker) = breaker(2);
    moody.set(Mood::PartlyDown);
    for _ in 0..5 {
        assert!(ask(&breaker).await.unwrap_err().is_outage());
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    for mood in [Mood::Down, Mood::PartlyDown, Mood::Down] {
        moody.set(mood);
        ask(&breaker).await.unwrap_err();
    }
    assert_eq!(breaker.state(), BreakerState::Closed, "others were well between");
    ask(&breaker).await.unwrap_err();
    assert_eq!(breaker.state(), BreakerState::Open);
    advance(PROBE_EVERY).await;
    moody.set(Mood::PartlyDown);
    ask(&breaker).await.unwrap_err();
    assert_eq!(breaker.state(), BreakerState::Closed, "the store is back, but for a part");
}

#[tokio::test(start_paused = true)]
async fn one_probe_at_a_time() {
    let (moody, breaker) = open().await;
    moody.set(Mood::Silent);
    advance(PROBE_EVERY).await;
    let mut probe = pin!(ask(&breaker));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(probe.as_mut().poll(&mut cx).is_pending());
    for _ in 0..3 {
        advance(PROBE_EVERY).await;
        assert!(ask(&breaker).await.unwrap_err().retry_after().is_some());
    }
    assert_eq!(moody.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_keeps_it_open_and_the_next_comes_a_period_later() {
    let (moody, breaker) = open().await;
    for calls in 2..5 {
        advance(PROBE_EVERY / 2).await;
        ask(&breaker).await.unwrap_err();
        advance(PROBE_EVERY / 2).await;
        assert!(ask(&breaker).await.unwrap_err().may_have_charged(), "that of the store");
        assert_eq!((breaker.state(), moody.calls()), (BreakerState::Open, calls));
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_caller_leaves_frees_its_place() {
    let (moody, breaker) = open().await;
    advance(PROBE_EVERY).await;
    moody.set(Mood::Silent);
    {
        let mut probe = pin!(ask(&breaker));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(probe.as_mut().poll(&mut cx).is_pending());
    }
    moody.set(Mood::Well);
    advance(PROBE_EVERY).await;
    ask(&breaker).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn answers_to_calls_from_before_prove_nothing() {
    let (moody, breaker) = breaker(1);
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let call = |mood| {
        moody.set(mood);
        breaker.peek(&policy, &Key::GLOBAL)
    };
    let [good, good_too] = [call(Mood::Well), call(Mood::Well)];
    let bad = call(Mood::Down);
    call(Mood::Down).await.unwrap_err();
    good.await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Open);
    advance(PROBE_EVERY).await;
    let probe = call(Mood::Well);
    // Neither closes the breaker under the probe, nor makes room for a second one.
    good_too.await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Open);
    bad.await.unwrap_err();
    advance(PROBE_EVERY).await;
    let calls = moody.calls();
    call(Mood::Well).await.unwrap_err();
    assert_eq!(moody.calls(), calls);
    probe.await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn settling_and_resetting_are_guarded_too() {
    let (moody, breaker) = open().await;
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    breaker.reset(&policy, &Key::GLOBAL).await.unwrap_err();
    assert_eq!(moody.calls(), 1);
    advance(PROBE_EVERY).await;
    moody.set(Mood::Well);
    breaker.reset(&policy, &Key::GLOBAL).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn no_failure_at_all_is_at_least_one() {
    let (moody, breaker) = breaker(0);
    ask(&breaker).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
    moody.set(Mood::Down);
    ask(&breaker).await.unwrap_err();
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[tokio::test]
async fn a_fallback_keeps_one_share_of_a_policy_however_often_it_changes() {
    let moody = Moody::default();
    moody.set(Mood::Down);
    let fallback = Fallback::new(moody, Moody::default());
    for limit in 1..=50 {
        let policy = Policy::fixed_window_counter("p", Quota::per_second(limit)).unwrap();
        let policy = policy.with_on_store_error(OnStoreError::Local);
        let _ = fallback.peek(&policy, &Key::GLOBAL).await;
    }
    let kept = format!("{fallback:?}");
    assert_eq!(kept.matches(r#"name: "p""#).count(), 2, "the policy and its share: {kept}");
}

#[tokio::test]
async fn what_only_the_share_cannot_grant_is_an_outage_and_no_verdict_for_ever() {
    let (moody, _) = breaker(1);
    moody.set(Mood::Down);
    let policy = |limit| {
        let policy = Policy::fixed_window_counter("p", Quota::per_second(limit)).unwrap();
        policy.with_on_store_error(OnStoreError::Local)
    };
    let fallback = Fallback::new(moody, Exceeding);
    let error = fallback.charge(&policy(10), &Key::GLOBAL, Cost::new(10)).await.unwrap_err();
    assert!(error.is_outage() && !error.may_have_charged(), "{error}");
    let verdict = fallback.charge(&policy(10), &Key::GLOBAL, Cost::new(11)).await.unwrap();
    assert_eq!(verdict.decisions()[0].outcome, Outcome::Exceed);
}

/// Grants nothing of any cost, ever.
#[derive(Clone, Debug)]
struct Exceeding;

impl Store for Exceeding {
    type Future<T: Send + 'static> = Answer<T>;

    fn decide(&self, _: &[Charge<'_>]) -> Answer<Verdict> {
        let decision = Decision { outcome: Outcome::Exceed, ..Decision::skipped(5) };
        Answer(Some(Ok(Verdict::single(false, Timestamp::EPOCH, decision))))
    }

    fn settle(&self, _: &Receipt, _: Cost) -> Answer<Settlement> {
        Answer(Some(Ok(Settlement::Repeated)))
    }

    fn renew(&self, _: &Receipt) -> Answer<Option<Receipt>> {
        Answer(Some(Ok(None)))
    }

    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer(Some(Ok(())))
    }
}

#[cfg(feature = "memory")]
#[test]
fn a_wrapper_is_called_what_the_store_inside_is_called() {
    let store = tollgate_memory::MemoryStore::new();
    let wrapped = Fallback::new(Breaker::new(store.clone()), Moody::default());
    assert_eq!((store.name(), wrapped.name()), ("memory", "memory"));
    assert_eq!(Moody::default().name(), "store");
}
