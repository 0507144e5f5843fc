//! Fleets in simulated time: callers in several processes over one store, and a service that denies
//! calls beyond its quota. Each seed is another fleet, network and history.

mod world;

use tollgate_store_tests::seeds;

use self::world::Fault::{Emptied, Lost};
use self::world::{Effects, MILLISECOND, OUTAGE, Plan, SECOND, World, run};

/// A known quota is never exceeded, is used, and calls leave in the order in which they ask.
#[test]
fn fleet_uses_known_quota_in_order() {
    for seed in seeds(100) {
        let World { plan, history, .. } = run(Plan::of(seed));
        let (denied, used) = (history.denied.len(), history.used(&plan));
        assert_eq!(denied, 0, "seed {seed}: {plan:?}");
        assert!(used >= 0.98, "seed {seed}: used {used} of {plan:?}");
        assert_eq!(history.overtaken(), None, "seed {seed}: {plan:?}");
    }
}

/// Callers that give up and processes that are killed waste at most their own places.
#[test]
fn leaving_callers_waste_only_their_places() {
    for seed in seeds(100) {
        let World { plan, history, .. } = run(Plan { leaves: true, ..Plan::of(seed) });
        let (denied, used) = (history.denied.len(), history.used(&plan));
        assert_eq!(denied, 0, "seed {seed}: {plan:?}");
        assert!(used >= 0.98, "seed {seed}: used {used} of {plan:?}");
        assert_eq!(history.overtaken(), None, "seed {seed}: {plan:?}");
    }
}

/// The service halves its quota for a window without a word, and denies calls with a `Retry-After`.
#[test]
fn fleet_recovers_from_a_halved_quota() {
    for seed in seeds(100) {
        let World { plan, history, .. } = run(Plan { halves: true, ..Plan::of(seed) });
        let Effects { denied, in_flight, recovered_after, used } = history.effects(&plan);
        let figures = format!(
            "{denied} denials, {in_flight} in flight, recovered after {recovered_after:?}, used {used}"
        );
        assert!(denied <= in_flight, "seed {seed}: {figures} of {plan:?}");
        assert!(used >= 0.98, "seed {seed}: {figures} of {plan:?}");
        // The places that fell into the pause pass unused, and the next ones may be a window later.
        let longest = plan.window + plan.jitter + SECOND;
        assert!(recovered_after <= longest, "seed {seed}: {figures} of {plan:?}");
    }
}

/// The store is lost for ten seconds, and then answers again. Calls that already queue keep their
/// places.
#[test]
fn outage_of_the_store_exceeds_nothing() {
    let mut lost = 0;
    for seed in seeds(100) {
        let World { plan, history, .. } = run(Plan { fault: Some(Lost), ..Plan::of(seed) });
        let (denied, used) = (history.denied.len(), history.used(&plan));
        lost += history.lost;
        assert!(history.failed > 0, "seed {seed}: {plan:?}");
        assert_eq!(denied, 0, "seed {seed}: {plan:?}");
        let outage = OUTAGE.as_secs_f64() / (plan.length - plan.window).as_secs_f64();
        assert!(used >= 0.98 - outage, "seed {seed}: used {used} of {plan:?}");
        assert_eq!(history.overtaken(), None, "seed {seed}: {plan:?}");
    }
    assert!(lost > 0, "some replies are lost");
}

/// The store loses its data, so calls that queue and later calls leave side by side. The service
/// denies no more calls than there are callers in the queue, and each denial pauses all.
#[test]
fn lost_data_is_repaired_by_a_pause() {
    for seed in seeds(100) {
        let World { plan, history, .. } = run(Plan { fault: Some(Emptied), ..Plan::of(seed) });
        let (denied, used) = (history.denied.len(), history.share(&plan, plan.length / 2));
        assert!(denied <= plan.callers, "seed {seed}: {denied} denials of {plan:?}");
        assert!(used >= 0.7, "seed {seed}: used {used} of {plan:?}");
    }
}

/// For 15 minutes, 256 callers share 100 calls a minute at an even pace.
#[test]
fn paced_fleet_meets_few_unnamed_denials() {
    for seed in seeds(20) {
        let plan = Plan {
            quota: 100,
            window: 60 * SECOND,
            jitter: 500 * MILLISECOND,
            processes: 8,
            callers: 256,
            length: 900 * SECOND,
            halves: true,
            says: false,
            paced: true,
            ..Plan::of(seed)
        };
        let World { plan, history, .. } = run(plan);
        let (denied, used) = (history.denied.len(), history.share(&plan, plan.length / 2));
        assert!(denied <= 56, "seed {seed}: {denied} denials of {plan:?}");
        assert!(used >= 0.25, "seed {seed}: used {used} of {plan:?}");
    }
}

/// The service halves its quota for good, and its denials name no wait.
#[test]
fn adaptive_fleet_meets_few_unnamed_denials() {
    for seed in seeds(100) {
        let plan = Plan { halves: true, says: false, ..Plan::of(seed) };
        let World { plan, history, .. } = run(plan);
        let (denied, used) = (history.denied.len(), history.share(&plan, plan.length / 2));
        // The rate rises until the service denies calls again.
        let windows = plan.length.as_secs_f64() / plan.window.as_secs_f64();
        let most = (plan.quota + 5) as f64 * windows / 8.0;
        assert!(denied as f64 <= most, "seed {seed}: {denied} denials of {plan:?}");
        // The share refers to the granted half. With few calls it is too coarse, and a process that
        // has only one turn may let it pass.
        let least = match plan.quota {
            20.. => 0.25,
            quota if quota > plan.processes as u64 => 0.05,
            _ => 0.0,
        };
        assert!(used >= least, "seed {seed}: used {used} of {plan:?}");
    }
}
