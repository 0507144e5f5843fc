//! Requests with several charges.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, Kind, Micros, Outcome, Policy, Quota, Receipt, Store,
    StoreExt, Verdict,
};

use super::{LONG, MODES, charge, decide, fresh_id, policy, remaining, settle};
use crate::{Harness, seed};

/// If any policy denies, no policy is charged, wherever the denying policy is in the list.
pub async fn charges_are_all_or_none<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let wide = policy(&format!("{algorithm:?} wide"), 100, algorithm);
        let tight = policy(&format!("{algorithm:?} tight"), 3, algorithm);
        let (all, one) = (Key::GLOBAL, Key::from("one"));
        let charges = [Charge::new(&wide, &all, Cost::ONE), Charge::new(&tight, &one, Cost::ONE)];
        let reversed = [charges[1], charges[0]];
        for n in 0..6 {
            let verdict = decide(store, if n % 2 == 0 { &charges } else { &reversed }).await;
            assert_eq!(verdict.is_admitted(), n < 3, "{algorithm:?}: request {n}");
        }
        assert_eq!(remaining(store, &wide, &all).await, 97, "{algorithm:?}");
        assert_eq!(remaining(store, &tight, &one).await, 0, "{algorithm:?}");
    }
}

/// In a denied request, a policy that would have allowed it reports this, and is not charged.
pub async fn denied_request_reports_other_policies<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let wide = policy(&format!("{algorithm:?} wide"), 100, algorithm);
        let tight = policy(&format!("{algorithm:?} tight"), 1, algorithm);
        let key = Key::from("k");
        let charges = [Charge::new(&wide, &key, Cost::ONE), Charge::new(&tight, &key, Cost::ONE)];
        decide(store, &charges).await;
        let verdict = decide(store, &charges).await;
        let [wide, tight] = verdict.decisions() else { panic!("a decision a charge: {verdict:?}") };
        assert_eq!((wide.outcome, wide.remaining), (Outcome::WouldAllow, 99), "{algorithm:?}");
        assert!(matches!(tight.outcome, Outcome::Deny { .. }), "{algorithm:?}");
        assert_eq!(verdict.receipts(&charges, fresh_id).count(), 0, "{algorithm:?}");
    }
}

/// Two charges to the same quota in a request are summed.
pub async fn charges_to_same_quota_are_summed<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        let pair = |a, b| {
            [Charge::new(&policy, &key, Cost::new(a)), Charge::new(&policy, &key, Cost::new(b))]
        };
        let verdict = decide(store, &pair(6, 5)).await;
        assert!(!verdict.is_admitted(), "{algorithm:?}");
        assert!(
            verdict.decisions().iter().all(|d| d.outcome == Outcome::ExceedsCapacity),
            "{algorithm:?}"
        );
        let verdict = decide(store, &pair(6, 3)).await;
        assert!(verdict.is_admitted(), "{algorithm:?}");
        assert!(verdict.decisions().iter().all(|d| d.remaining == 1), "{algorithm:?}: {verdict:?}");
    }
}

/// A policy that is not enforced allows every request.
pub async fn shadow_never_denies<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 2, algorithm);
        let key = Key::from("k");
        for n in 0..5 {
            let shadow = Charge::new(&policy, &key, Cost::ONE).shadow();
            let verdict = decide(store, &[shadow]).await;
            assert!(verdict.is_admitted(), "{algorithm:?}");
            assert_eq!(verdict.decisions()[0].denies(), n >= 2, "{algorithm:?}: request {n}");
        }
        assert_eq!(remaining(store, &policy, &key).await, 0, "{algorithm:?}");
    }
}

/// A shadow counts only the requests that are admitted.
pub async fn shadow_counts_only_admitted_requests<H: Harness>(_: &H, store: &H::Store) {
    let enforced = policy("enforced", 2, MODES[0]);
    let shadow = policy("shadow", 10, MODES[0]);
    let key = Key::from("k");
    for _ in 0..5 {
        let charges = [
            Charge::new(&shadow, &key, Cost::ONE).shadow(),
            Charge::new(&enforced, &key, Cost::ONE),
        ];
        decide(store, &charges).await;
    }
    assert_eq!(remaining(store, &shadow, &key).await, 8);
}

/// A shadow charge changes no decision on the request's other charges and on later requests, in any
/// position and with any settlement. Two policies get the same requests, and the second policy's
/// requests also have shadow charges.
pub async fn shadow_changes_no_decision<H: Harness>(harness: &H, store: &H::Store) {
    let is_exact = harness.advance(Micros::ZERO);
    let mut rng = Rng::with_seed(seed());
    // In real time, no unit is refilled and no block expires during the check.
    let window = if is_exact { SHORT } else { LONG };
    for (number, (kind, shadow)) in pairs(window, &mut rng).into_iter().enumerate() {
        let build = |name: &str, limit, kind| {
            let is_permit = kind == Kind::Limit(Algorithm::ConcurrentRequests);
            let window = if is_permit { window.min(LONGEST_PERMIT) } else { window };
            let quota = Quota::new(limit, window);
            Policy::new(format!("{number} {name}"), quota, kind)
                .expect("the checks' policies build")
        };
        let shadow = build("shadow", 2, shadow);
        let [alone, beside] = ["alone", "beside"].map(|name| {
            [build(name, 5, kind), build(&format!("{name} banned"), 3, penalty(window, true))]
        });
        let key = Key::from("k");
        for step in 0..10 {
            harness.advance(Micros::new(rng.u64(0..700)));
            let cost = Cost::new(rng.u64(0..=6));
            let charges = |policies| {
                let [policy, banned]: &[Policy; 2] = policies;
                [Charge::new(policy, &key, cost), Charge::new(banned, &key, Cost::ONE)]
            };
            let alone = charges(&alone);
            let mut mixed = charges(&beside).to_vec();
            // A shadow charge may also share an enforced charge's quota.
            for policy in [&shadow, &beside[0]].into_iter().take(rng.usize(0..=2)) {
                let charge = Charge::new(policy, &key, Cost::new(rng.u64(0..=3)));
                mixed.insert(rng.usize(0..=mixed.len()), charge.shadow());
            }
            let (expected, found) = (decide(store, &alone).await, decide(store, &mixed).await);
            let enforced = mixed.iter().zip(found.decisions()).filter(|(it, _)| it.enforce);
            for (expected, (charge, found)) in expected.decisions().iter().zip(enforced) {
                let case = format!("{kind:?} beside {shadow}, step {step}: {charge:?}");
                let units = |it: &Decision| (it.denies(), it.remaining);
                assert_eq!(units(expected), units(found), "{case}");
                let times = |it: &Decision| (it.retry_after(), it.delay(), it.reset_after);
                assert!(!is_exact || times(expected) == times(found), "{case}: {found:?}");
            }
            assert_eq!(expected.is_admitted(), found.is_admitted(), "{kind:?} beside {shadow}");
            // In real time, refunds to the two policies could differ by a unit.
            let actual = rng.u64(0..=6);
            for receipt in alone_and(&expected, &alone, &found, &mixed).filter(|_| is_exact) {
                let is_shadow = receipt.policy.name() == shadow.name();
                settle(store, &receipt, if is_shadow { rng.u64(0..=6) } else { actual }).await;
            }
        }
    }
}

const SHORT: Duration = Duration::from_millis(1);
const LONGEST_PERMIT: Duration = Duration::from_secs(3_600);

/// Every kind of policy, each beside some kinds of shadow policies.
fn pairs(window: Duration, rng: &mut Rng) -> Vec<(Kind, Kind)> {
    let limits = MODES.into_iter().chain([Algorithm::ConcurrentRequests]).map(Kind::Limit);
    let penalties = [true, false].map(|counts_denials| penalty(window, counts_denials));
    let shadows: Vec<_> = limits.clone().chain(penalties).collect();
    let mut any = || shadows[rng.usize(..shadows.len())];
    limits.flat_map(|limit| [(); 3].map(|()| (limit, any()))).collect()
}

fn penalty(window: Duration, counts_denials: bool) -> Kind {
    let (block, max_block, forget_after) = (window.into(), window.into(), window.into());
    Kind::Penalty(Terms { block, factor: 1, max_block, forget_after, counts_denials })
}

/// The receipts of both requests.
fn alone_and<'a>(
    expected: &'a Verdict,
    alone: &'a [Charge<'_>],
    found: &'a Verdict,
    mixed: &'a [Charge<'_>],
) -> impl Iterator<Item = Receipt> + 'a {
    expected.receipts(alone, fresh_id).chain(found.receipts(mixed, fresh_id))
}

/// A request can have ten policies, each with its own key.
pub async fn request_can_have_ten_policies<H: Harness>(_: &H, store: &H::Store) {
    let policies: Vec<_> = (1..=10)
        .map(|n| policy(&format!("p{n}"), n + 1, MODES[n as usize % MODES.len()]))
        .collect();
    let keys: Vec<_> = (1..=10).map(|n| Key::from(format!("key {n}").as_str())).collect();
    let charges: Vec<_> =
        policies.iter().zip(&keys).map(|(p, k)| Charge::new(p, k, Cost::ONE)).collect();
    for n in 0..4 {
        let verdict = decide(store, &charges).await;
        assert_eq!(verdict.decisions().len(), 10);
        assert_eq!(verdict.is_admitted(), n < 2, "the tightest policy has two units");
    }
    for (n, (policy, key)) in policies.iter().zip(&keys).enumerate() {
        assert_eq!(charge(store, policy, key, 0).await.remaining, n as u64, "{policy}");
    }
}

/// If a request has the same policy with two quotas, the store returns an error and makes no charge:
/// it is unclear to which quota the sum applies.
pub async fn conflicting_quotas_are_an_error<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let (small, large) = (policy(&name, 5, algorithm), policy(&name, 50, algorithm));
        let key = Key::from("k");
        let charges = [Charge::new(&small, &key, Cost::ONE), Charge::new(&large, &key, Cost::ONE)];
        let error = store.decide(&charges).await.expect_err("two quotas for one name");
        assert!(!error.may_have_charged(), "{algorithm:?}: {error}");
        assert_eq!(remaining(store, &small, &key).await, 5, "{algorithm:?}");
    }
}

/// A single call returns, for any number of costs, whether they would be allowed, without charging
/// them.
pub async fn dry_charges_change_nothing<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        let costs = [1, 3, 5, 10, 11].map(Cost::new);
        for _ in 0..2 {
            let verdict = store.foresee(&policy, &key, &costs).await.expect("the store decides");
            assert!(verdict.is_admitted());
            let outcomes: Vec<_> = verdict.decisions().iter().map(|it| it.outcome).collect();
            let [.., never] = &outcomes[..] else { panic!("{outcomes:?}") };
            assert_eq!(*never, Outcome::ExceedsCapacity, "{algorithm:?}");
            assert!(
                outcomes[..4].iter().all(|outcome| *outcome == Outcome::WouldAllow),
                "{outcomes:?}"
            );
            assert!(verdict.receipts(&[], || unreachable!()).next().is_none());
        }
        charge(store, &policy, &key, 6).await;
        let foreseen = store.foresee(&policy, &key, &costs).await.expect("the store decides");
        for (cost, decision) in costs.iter().zip(foreseen.decisions()) {
            let passes = cost.get() <= 4;
            assert_eq!(
                decision.outcome == Outcome::WouldAllow,
                passes,
                "{algorithm:?}: {decision:?}"
            );
            assert_eq!(decision.remaining, 4, "{algorithm:?}");
        }
    }
}

/// A dry charge sees the state after the request's other charges, in any position, and never causes
/// a denial.
pub async fn dry_charges_see_other_charges<H: Harness>(_: &H, store: &H::Store) {
    let policy = policy("p", 10, MODES[0]);
    let key = Key::from("k");
    let charges = [
        Charge::new(&policy, &key, Cost::new(3)).dry(),
        Charge::new(&policy, &key, Cost::new(8)),
        Charge::new(&policy, &key, Cost::new(2)).dry(),
        Charge::new(&policy, &key, Cost::new(11)).dry(),
    ];
    let verdict = decide(store, &charges).await;
    assert!(verdict.is_admitted());
    let denies: Vec<_> = verdict.decisions().iter().map(Decision::denies).collect();
    assert_eq!(denies, [true, false, false, true], "{verdict:?}");
    assert_eq!(verdict.receipts(&charges, fresh_id).count(), 1);
    // The second request is denied, so the units that remained are still available.
    let verdict = decide(store, &charges).await;
    assert!(!verdict.is_admitted());
    assert_eq!(verdict.decisions()[2].outcome, Outcome::WouldAllow, "{verdict:?}");
    assert_eq!(remaining(store, &policy, &key).await, 2);
}
