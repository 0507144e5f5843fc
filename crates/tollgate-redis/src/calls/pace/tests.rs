//! A simulated server, and callers that do not wait for each other. The test moves the clock.

mod run;

use self::run::{BOUNDS, NEAR, Run, Seen, Server, ms, us};
use super::*;

/// Checks the goodput at 1, 2, 4 and 10 times the server's capacity.
fn assert_goodput(server: Server, bounds: Bounds) {
    for times in [1.0, 2.0, 4.0, 10.0] {
        for seed in 0..2 {
            let capacity = server.capacity(bounds);
            let mut run = Run::new(server, bounds);
            run.ask(capacity * times, Duration::ZERO, ms(1_800), seed);
            let seen = run.seen;
            let case = format!("{times} times, seed {seed}: {seen:?}");
            let answered = seen.answered_in_time as f64;
            assert!(answered >= 0.9 * capacity * 1.5, "of {capacity} a second, {case}");
            assert!((seen.charged_without_answer as f64) < 0.01 * answered, "{case}");
            assert!(seen.shed_later <= seen.shed_at_once + seen.asked / 20, "{case}");
        }
    }
}

#[test]
fn goodput_holds_near_server() {
    assert_goodput(NEAR, BOUNDS);
}

#[test]
fn goodput_holds_with_slow_server() {
    assert_goodput(Server { request: us(200), ..NEAR }, BOUNDS);
}

#[test]
fn goodput_holds_with_single_request_calls() {
    assert_goodput(NEAR, Bounds { batch: 1, ..BOUNDS });
}

#[test]
fn goodput_holds_over_20_ms_network() {
    assert_goodput(Server { network: ms(20), ..NEAR }, BOUNDS);
}

#[test]
fn goodput_holds_over_network_and_slower_server() {
    assert_goodput(Server { network: ms(20), request: us(50), ..NEAR }, BOUNDS);
}

#[test]
fn goodput_holds_over_40_ms_network() {
    let bounds = Bounds { timeout: ms(100), ..BOUNDS };
    assert_goodput(Server { network: ms(40), ..NEAR }, bounds);
}

#[test]
fn goodput_holds_with_periodic_stalls() {
    assert_goodput(Server { stall: ms(8), every: ms(10), ..NEAR }, BOUNDS);
    assert_goodput(Server { stall: ms(20), every: ms(100), ..NEAR }, BOUNDS);
}

/// Calls take long although the load is far below the server's capacity.
#[test]
fn busy_server_answers_all_requests() {
    for (slice, gap, batch, least) in [
        (8, 0, 512, 0.97),
        (16, 0, 512, 0.97),
        (20, 0, 512, 0.97),
        (8, 200, 512, 0.97),
        (16, 200, 512, 0.97),
        (20, 200, 512, 0.97),
        (8, 200, 64, 0.97),
        (16, 200, 64, 0.9),
        (16, 0, 64, 0.97),
        (20, 0, 64, 0.97),
    ] {
        let server = Server { slice: ms(slice), gap: us(gap), request: us(3), ..NEAR };
        for (rate, seed) in [(1_500, 1), (3_000, 2), (6_000, 3), (12_000, 4)] {
            let mut run = Run::new(server, Bounds { batch, ..BOUNDS });
            run.ask(f64::from(rate), Duration::ZERO, ms(1_800), seed);
            let Seen { asked, answered_in_time, .. } = run.seen;
            let part = answered_in_time as f64 / asked as f64;
            assert!(part > least, "{rate}/s, {slice} ms, calls of {batch}: {:?}", run.seen);
        }
    }
}

/// Between two of the other client's scripts the server executes all calls that have arrived, so
/// more calls in flight increase the goodput. Some of these calls fall into a gap and are short.
#[test]
fn goodput_holds_on_busy_server() {
    for (slice, batch, capacity) in [(8, 64, 25_000.0), (8, 512, 25_000.0)] {
        let server = Server { slice: ms(slice), gap: us(200), request: us(5), ..NEAR };
        for (times, seed) in [(1.0, 1), (2.0, 2), (4.0, 3), (10.0, 4)] {
            let mut run = Run::new(server, Bounds { batch, ..BOUNDS });
            run.ask(times * capacity, Duration::ZERO, ms(1_800), seed);
            let seen = run.seen;
            let case = format!("{slice} ms, calls of {batch}, {times} times: {seen:?}");
            let least = 0.95 * 1.5 * capacity * f64::min(times, 2.0);
            assert!(seen.answered_in_time as f64 > least, "{case}");
            assert_eq!(seen.charged_without_answer, 0, "{case}");
        }
    }
}

/// Redis stalls like this when it forks. Requests early in a stall are lost.
#[test]
fn goodput_recovers_after_long_stalls() {
    assert_goodput(Server { stall: ms(80), every: ms(1_500), ..NEAR }, BOUNDS);
}

/// A Cluster spreads a million requests per second over 50 shards. A shard gets its share, then
/// half as much again, and then twice as much. The times are a fit to the Cluster's rows in
/// `docs/benchmarks/intel/fleet.md`. `docs/benchmarks/scaling.md` has the results.
#[test]
fn large_fleet_shares_a_shard() {
    let server = Server { network: us(500), call: us(18), request: us(11), ..NEAR };
    println!("replicas  requests/s  answered  requests a call  Redis busy     p50     p99");
    let rates = [20_000, 30_000, 40_000];
    let cases = rates.iter().flat_map(|rate| [10, 100, 1_000].map(|replicas| (replicas, *rate)));
    for (replicas, rate) in cases {
        let mut run = Run::of(replicas, server, BOUNDS);
        run.ask(f64::from(rate), Duration::ZERO, ms(1_300), 1);
        let seen = run.seen;
        run.waits.sort_unstable();
        let answered = seen.answered_in_time as f64 / seen.asked as f64;
        let percentile = |hundredth: usize| run.waits[run.waits.len() * hundredth / 100];
        println!(
            "{replicas:8} {rate:11} {:8.2} % {:16.2} {:9.0} % {:>9.2?} {:>9.2?}",
            100.0 * answered,
            seen.answered_in_time as f64 / seen.calls as f64,
            100.0 * seen.work.as_secs_f64(),
            percentile(50),
            percentile(99),
        );
        // The highest rate is more than the server can do.
        assert!(rate > 30_000 || seen.charged_without_answer == 0, "{seen:?}");
    }
}

#[test]
fn half_load_is_not_shed() {
    for server in [NEAR, Server { network: ms(20), ..NEAR }, Server { request: us(200), ..NEAR }] {
        let mut run = Run::new(server, BOUNDS);
        run.ask(server.capacity(BOUNDS) / 2.0, Duration::ZERO, ms(1_800), 1);
        let Seen { asked, answered_in_time, .. } = run.seen;
        assert!(answered_in_time as f64 > 0.99 * asked as f64, "{server:?}: {:?}", run.seen);
    }
}

/// The network time grows, so the shortest call so far is no longer a valid `base`.
#[test]
fn longer_network_path_gets_more_calls() {
    let server = Server { request: us(40), ..NEAR };
    let rate = server.capacity(BOUNDS);
    for seed in 0..4 {
        let mut run = Run::new(server, BOUNDS);
        run.ask(rate / 2.0, Duration::ZERO, ms(500), 2 * seed);
        run.server.network = ms(30);
        run.counts_from = ms(11_500);
        run.ask(rate, ms(500), ms(13_500), 2 * seed + 1);
        let answered = run.seen.answered_in_time as f64;
        assert!(answered > 0.9 * 2.0 * rate, "of {rate} a second, seed {seed}: {:?}", run.seen);
    }
}

#[test]
fn stall_sheds_immediately() {
    let start = Instant::now();
    let mut pace = Pace::new(BOUNDS);
    let submit = |pace: &mut Pace<u8>, after: Duration| {
        pace.submit(0, start + after + BOUNDS.timeout, start + after).is_ok()
    };
    assert!(submit(&mut pace, ms(0)) && pace.another_slot(start));
    assert!(pace.next(|_| Fit::Fits, start).call.is_some());
    assert!(submit(&mut pace, ms(1)), "no call time is known yet");
    assert!(!submit(&mut pace, ms(51)), "the oldest call exceeds the timeout");
}

#[test]
fn lone_request_recovers_the_estimate() {
    let start = Instant::now();
    let mut pace = Pace::new(BOUNDS);
    let deadline = |after: Duration| start + after + BOUNDS.timeout;
    assert!(pace.submit(0, deadline(ms(0)), start).is_ok() && pace.another_slot(start));
    let next = pace.next(|_| Fit::Fits, start);
    let (call, _) = next.call.expect("a call");
    for request in 1..=3 {
        assert!(pace.submit(request, deadline(ms(1)), start + ms(1)).is_ok());
    }
    // The first call took as long as the longest wait.
    pace.end(call, Ended::Answered, start + ms(50));
    let next = pace.next(|_| Fit::Fits, start + ms(50));
    assert_eq!(next.shed, [1, 2, 3]);
    assert!(next.call.is_none() && pace.is_idle());
    assert!(pace.submit(4, deadline(ms(60)), start + ms(60)).is_ok());
    assert!(pace.another_slot(start + ms(60)));
    assert_eq!(pace.next(|_| Fit::Fits, start + ms(60)).call.expect("a call").1, [4]);
}

/// Calls lost in an outage do not reflect the server's speed after it.
#[test]
fn outage_does_not_shed_later_requests() {
    let start = Instant::now();
    let mut pace = Pace::new(BOUNDS);
    let mut slots = 0;
    let mut submit = |pace: &mut Pace<u8>, after| {
        assert_eq!(pace.submit(0, start + after + BOUNDS.timeout, start + after), Ok(()));
        slots += usize::from(pace.another_slot(start + after));
    };
    for second in 0..4 {
        let begun = ms(second * 1_000);
        (0..10).for_each(|_| submit(&mut pace, begun));
        let mut ends = vec![];
        while let Some((call, _)) = pace.next(|_| Fit::Fits, start + begun).call {
            ends.push(call);
            assert!(ends.len() < 3);
        }
        for call in ends {
            pace.end(call, Ended::Lost, start + begun + BOUNDS.timeout);
        }
    }
    // Far more requests than the calls during the outage had.
    (0..100).for_each(|_| submit(&mut pace, ms(4_000)));
}

#[test]
fn single_slow_answer_does_not_shed() {
    let start = Instant::now();
    let mut pace = Pace::new(BOUNDS);
    let at = |millis| start + ms(millis);
    assert!(pace.submit(0, at(50), start).is_ok() && pace.another_slot(start));
    let (call, _) = pace.next(|_| Fit::Fits, start).call.expect("a call");
    assert!(pace.submit(0, at(50), start).is_ok());
    pace.end(call, Ended::Answered, at(49));
    assert!(pace.next(|_| Fit::Fits, at(49)).call.is_none(), "1 ms remains");
    for _ in 0..100 {
        assert!(pace.submit(0, at(99), at(49)).is_ok());
    }
}

#[test]
fn abandoned_requests_use_no_room() {
    let start = Instant::now();
    let mut pace = Pace::new(Bounds { batch: 2, ..BOUNDS });
    for request in 0..5 {
        assert!(pace.submit(request, start + BOUNDS.timeout, start).is_ok());
        pace.another_slot(start);
    }
    let is_odd = |request: &i32| if request % 2 == 0 { Fit::Fits } else { Fit::Gone };
    let next = pace.next(is_odd, start);
    assert_eq!(next.call.expect("a call").1, [0, 2]);
    assert_eq!(pace.queued(), 2);
}

#[test]
fn full_queue_sheds() {
    let start = Instant::now();
    let mut pace = Pace::new(Bounds { queue: 1, ..BOUNDS });
    let mut submit = |request| {
        pace.submit(request, start + BOUNDS.timeout, start).map(|()| {
            pace.another_slot(start);
        })
    };
    assert_eq!((submit(1), submit(2)), (Ok(()), Err(2)));
}
