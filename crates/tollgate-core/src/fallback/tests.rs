use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{NeverPending, Outcome};
use crate::{Quota, StoreExt, Timestamp};

/// Gives the same answer to every call.
#[derive(Clone, Copy, Debug)]
enum Stub {
    Down,
    Overloaded,
    /// Never grants any cost.
    Exceeding,
    Admitting,
}

impl Stub {
    fn answer<T, F: Future<Output = Result<T, StoreError>>>(self, answer: T) -> Reply<F> {
        Reply::ready(match self {
            Self::Down => Err(StoreError::maybe_charged("stub", "down")),
            Self::Overloaded => Err(StoreError::overloaded("stub", "busy")),
            Self::Exceeding | Self::Admitting => Ok(answer),
        })
    }
}

impl Store for Stub {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        let outcome = match self {
            Self::Exceeding => Outcome::ExceedsCapacity,
            _ => Outcome::WouldAllow,
        };
        let decisions = charges.iter().map(|charge| {
            let decision = Decision::undecided(charge.policy.capacity());
            Decision { outcome, ..decision }
        });
        let is_admitted = !matches!(self, Self::Exceeding);
        self.answer(Verdict::new(is_admitted, Timestamp::EPOCH, decisions))
    }

    fn settle(&self, _: &Receipt, _: Cost) -> Reply<BoxFuture<Settlement>> {
        self.answer(Settlement::Repeated)
    }

    fn renew(&self, _: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.answer(None)
    }

    fn reset(&self, _: &Policy, _: &Key) -> Reply<BoxFuture<()>> {
        self.answer(())
    }

    fn block(&self, _: &Policy, _: &Key, _: PenaltyBlock) -> Reply<BoxFuture<Option<Micros>>> {
        self.answer(Some(Micros::ZERO))
    }
}

/// Fails, and counts this many replicas.
#[derive(Clone, Debug, Default)]
struct Counting(Arc<AtomicU32>);

impl Store for Counting {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        Stub::Down.decide(charges)
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        Stub::Down.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Stub::Down.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        Stub::Down.reset(policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        Stub::Down.block(policy, key, block)
    }

    fn replicas(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.0.load(Ordering::Relaxed))
    }
}

fn policy(limit: u64) -> Policy {
    Policy::fixed_window_counter("p", Quota::per_second(limit)).unwrap()
}

fn now<F: Future>(reply: Reply<F>) -> F::Output {
    reply.now().ok().expect("both stores are always ready")
}

/// A local store that records the charged policies.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<std::sync::Mutex<Vec<Policy>>>);

impl Store for Recorder {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        self.0.lock().unwrap().extend(charges.iter().map(|charge| charge.policy.clone()));
        Stub::Admitting.decide(charges)
    }

    fn settle(&self, receipt: &Receipt, _: Cost) -> Reply<BoxFuture<Settlement>> {
        self.0.lock().unwrap().push(receipt.policy.clone());
        Reply::ready(Ok(Settlement::Repeated))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.0.lock().unwrap().push(receipt.policy.clone());
        Reply::ready(Ok(Some(receipt.clone())))
    }

    fn reset(&self, _: &Policy, _: &Key) -> Reply<BoxFuture<()>> {
        Reply::ready(Ok(()))
    }

    fn block(&self, _: &Policy, _: &Key, _: PenaltyBlock) -> Reply<BoxFuture<Option<Micros>>> {
        Reply::ready(Ok(None))
    }
}

impl Recorder {
    /// Removes and returns the capacities of the recorded policies.
    fn capacities(&self) -> Vec<u64> {
        self.0.lock().unwrap().drain(..).map(|policy| policy.capacity()).collect()
    }
}

fn local_receipt(policy: &Policy) -> Receipt {
    let charged = crate::Charged::new(policy, Cost::ONE, Timestamp::EPOCH);
    let (id, source) = (crate::ReceiptId(1), Source::Local);
    Receipt { id, source, policy: policy.clone(), key: Key::GLOBAL, charged }
}

/// The local store has the charge under the share with which it was made.
#[test]
fn receipts_have_the_share_of_their_charge() {
    for (before, after, expected) in [(1, 1, 100), (4, 4, 25), (4, 5, 25), (4, 1, 25), (0, 4, 50)] {
        let (counting, local) = (Counting::default(), Recorder::default());
        let fallback = counting.clone().or_local(local.clone());
        let policy = policy(100);
        counting.0.store(before, Ordering::Relaxed);
        now(fallback.peek(&policy, &Key::GLOBAL)).unwrap();
        counting.0.store(after, Ordering::Relaxed);
        let receipt = local_receipt(&policy);
        now(fallback.settle(&receipt, Cost::ZERO)).unwrap();
        let renewed = now(fallback.renew(&receipt)).unwrap().unwrap();
        assert_eq!(local.capacities(), [expected; 3], "{before} replicas, then {after}");
        assert!(renewed.policy.is_same(&policy), "callers know the whole policy");
    }
}

#[test]
fn tiers_with_equal_names_have_separate_shares() {
    let local = Recorder::default();
    let fallback = Stub::Down.or_local(local.clone());
    let tiers = [policy(10), policy(100)];
    for tier in [0, 1, 0, 1] {
        now(fallback.peek(&tiers[tier], &Key::GLOBAL)).unwrap();
    }
    let seen = local.0.lock().unwrap();
    assert_eq!([seen[0].capacity(), seen[1].capacity()], [5, 50]);
    assert!(seen[0].is_same(&seen[2]) && seen[1].is_same(&seen[3]), "shares were rebuilt");
}

#[test]
fn share_follows_number_of_replicas() {
    let (counting, local) = (Counting::default(), Recorder::default());
    let fallback = counting.clone().or_local(local.clone());
    let fixed = fallback.clone().with_share(1, 5).unwrap();
    let policy = policy(100);
    for replicas in [0, 1, 4, 4, 1_000] {
        counting.0.store(replicas, Ordering::Relaxed);
        for fallback in [&fallback, &fixed] {
            now(fallback.peek(&policy, &Key::GLOBAL)).unwrap();
        }
    }
    // A store that has not counted yet gets one half, and any share has at least one unit.
    assert_eq!(local.capacities(), [50, 20, 100, 20, 25, 20, 25, 20, 1, 20]);
}

#[test]
fn number_of_shares_is_bounded() {
    let fallback = Stub::Down.or_local(Stub::Admitting);
    for limit in 1..=3_000 {
        now(fallback.peek(&policy(limit), &Key::GLOBAL)).unwrap();
    }
    let kept = fallback.shares.cut.read().unwrap().len();
    assert!((1..=MAX_SHARES).contains(&kept), "{kept}");
}

#[test]
fn cost_above_only_the_share_is_an_outage() {
    let fallback = Stub::Down.or_local(Stub::Exceeding);
    let charge = |cost| now(fallback.charge(&policy(10), &Key::GLOBAL, Cost::new(cost)));
    let error = charge(10).unwrap_err();
    assert!(error.is_outage() && error.may_have_charged(), "{error}");
    assert_eq!(charge(11).unwrap().decisions()[0].outcome, Outcome::ExceedsCapacity);
}

/// A denial by the local store could be a strike, although the primary store would allow the cost.
#[test]
fn local_store_sees_no_cost_above_only_the_share() {
    let (policy, local) = (policy(10), Recorder::default());
    let fallback = Stub::Down.or_local(local.clone());
    let charge = |cost| Charge::new(&policy, &Key::GLOBAL, Cost::new(cost));
    for (charges, is_asked) in [
        (vec![charge(5)], true),
        (vec![charge(6)], false),
        (vec![charge(3), charge(3)], false),
        (vec![charge(3), charge(3).shadow()], true),
        (vec![charge(6).shadow()], true),
        (vec![charge(6), charge(5)], true),
        (vec![charge(11)], true),
    ] {
        let answer = now(fallback.decide(&charges));
        let seen = std::mem::take(&mut *local.0.lock().unwrap());
        assert_eq!((answer.is_ok(), !seen.is_empty()), (is_asked, is_asked), "{charges:?}");
    }
}

#[test]
fn local_store_decides_only_local_policies() {
    use OnStoreError::{Closed, Local, Open};
    for (on_store_error, shed, by_down, by_overloaded) in [
        (None, None, true, true),
        (Some(Local), None, true, true),
        (Some(Open), None, false, false),
        (Some(Closed), Some(Local), false, true),
        (Some(Local), Some(Closed), true, false),
        (None, Some(Open), true, false),
    ] {
        let policy = on_store_error.into_iter().fold(policy(1), Policy::with_on_store_error);
        let policy = shed.into_iter().fold(policy, Policy::with_shed);
        for (store, is_local) in [(Stub::Down, by_down), (Stub::Overloaded, by_overloaded)] {
            let fallback = store.or_local(Stub::Admitting);
            let source = now(fallback.peek(&policy, &Key::GLOBAL)).ok().map(|it| it.source());
            let expected = is_local.then_some(Source::Local);
            assert_eq!(source, expected, "{on_store_error:?} {shed:?} {store:?}");
        }
    }
}

/// A local store that denies each charge above its capacity.
#[derive(Clone, Copy, Debug)]
struct Capped;

impl Store for Capped {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        let exceeds = |charge: &Charge<'_>| charge.cost.get() > charge.policy.capacity();
        let decisions = charges.iter().map(|charge| {
            let decision = Decision::undecided(charge.policy.capacity());
            let outcome = match exceeds(charge) {
                true => Outcome::ExceedsCapacity,
                false => Outcome::Allow {
                    delay: Micros::ZERO,
                    charged_at: Timestamp::EPOCH,
                    refunded: 0,
                },
            };
            Decision { outcome, ..decision }
        });
        let is_admitted = !charges.iter().any(|charge| charge.enforce && exceeds(charge));
        Reply::ready(Ok(Verdict::new(is_admitted, Timestamp::EPOCH, decisions)))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        Stub::Admitting.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Stub::Admitting.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        Stub::Admitting.reset(policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        Stub::Admitting.block(policy, key, block)
    }
}

/// Returns whether the request passes, and its enforced charges' decisions. A policy that fails open
/// does not decide.
fn outcome(store: Stub, charges: &[Charge<'_>]) -> (bool, Vec<Outcome>) {
    let enforced = || charges.iter().filter(|charge| charge.enforce);
    match now(store.or_local(Capped).decide(charges)) {
        Ok(verdict) => {
            let decided = charges.iter().zip(verdict.decisions());
            let decided = decided.filter(|(charge, _)| charge.enforce);
            (verdict.is_admitted(), decided.map(|(_, decision)| decision.outcome).collect())
        }
        Err(error) => {
            let fails_open = |charge: &Charge<'_>| {
                charge.policy.on_error(&error).unwrap_or(OnStoreError::Local) == OnStoreError::Open
            };
            (enforced().all(fails_open), enforced().map(|_| Outcome::Undecided).collect())
        }
    }
}

#[test]
fn shadow_policies_change_no_decision() {
    use OnStoreError::{Closed, Local, Open};
    let policies = |name: &str| {
        let policy = |(on_store_error, shed): (_, Option<_>)| {
            let policy = Policy::fixed_window_counter(name, Quota::per_second(4)).unwrap();
            shed.into_iter().fold(policy.with_on_store_error(on_store_error), Policy::with_shed)
        };
        let on_store_error = [Open, Closed, Local];
        let shed = [None, Some(Open), Some(Closed), Some(Local)];
        let both = on_store_error.into_iter().flat_map(|it| shed.map(|shed| (it, shed)));
        both.map(policy).collect::<Vec<_>>()
    };
    let (firsts, seconds, shadows) = (policies("first"), policies("second"), policies("shadow"));
    // The local store has two of the four units.
    let costs = [1, 3, 5].map(Cost::new);
    for (store, cost) in
        [Stub::Down, Stub::Overloaded].map(|it| costs.map(|cost| (it, cost))).as_flattened()
    {
        for (first, second) in
            firsts.iter().flat_map(|it| seconds.iter().step_by(4).map(move |other| (it, other)))
        {
            let plain = [
                Charge::new(first, &Key::GLOBAL, *cost),
                Charge::new(second, &Key::GLOBAL, Cost::ONE),
            ];
            let expected = outcome(*store, &plain);
            for (shadow, cost) in shadows.iter().flat_map(|it| costs.map(|cost| (it, cost))) {
                for position in 0..=2 {
                    let mut charges = plain.to_vec();
                    charges.insert(position, Charge::new(shadow, &Key::GLOBAL, cost).shadow());
                    assert_eq!(outcome(*store, &charges), expected, "{store:?}: {charges:#?}");
                }
            }
        }
    }
}

#[test]
fn zero_denominator_is_an_error() {
    let error = Stub::Down.or_local(Stub::Down).with_share(1, 0).unwrap_err();
    let expected = "policy `local fallback`: a share of 1/0 has no meaning";
    assert!(error.to_string().starts_with(expected), "{error}");
}
