//! Many requests share a call, and each is decided as if it were alone.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate_core::{
    Charge, Cost, Key, Policy, Quota, Receipt, ReceiptId, Settlement, Store, StoreExt,
};
use tollgate_test_servers::{Flow, Proxy, Redis};

use super::{charge, connected, patient, policy};

pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// 400 concurrent tasks charge mixed costs under several policies. The result must equal some
/// sequential order: no unit is admitted twice, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_are_serializable() {
    let server = Redis::start();
    let store = connected(patient(&server.url())).await;
    for seed in 0..5_u64 {
        let global = policy(300 + seed);
        let log = Policy::sliding_window_log(format!("log {seed}"), Quota::per_day(20)).unwrap();
        let before = store.stats();
        let tasks: Vec<_> = (0..400_u64)
            .map(|n| {
                let (store, global, log) = (store.clone(), global.clone(), log.clone());
                tokio::spawn(async move {
                    let cost = [1, 3, 5, 10][((n * 7 + seed) % 4) as usize];
                    let (whole, user) =
                        (Key::new(format!("{seed}")), Key::new(format!("{}", n % 20)));
                    let cost = Cost::new(cost);
                    let charges =
                        [Charge::new(&global, &whole, cost), Charge::new(&log, &user, cost)];
                    let verdict = store.decide(&charges).await.unwrap();
                    (verdict.is_admitted(), user, cost.get(), verdict.decisions()[0].remaining)
                })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        let admitted: Vec<_> = answers.iter().filter(|(admitted, ..)| *admitted).collect();
        let spent: u64 = admitted.iter().map(|(_, _, cost, _)| cost).sum();
        let left = store.peek(&global, &Key::new(format!("{seed}"))).await.unwrap();
        assert_eq!(left.decisions()[0].remaining, global.capacity() - spent);
        assert!(spent <= global.capacity());
        // Each admission saw different remaining units, so no two were decided on the same state.
        let mut remaining: Vec<_> = admitted.iter().map(|(.., remaining)| remaining).collect();
        remaining.sort_unstable();
        remaining.dedup();
        assert_eq!(remaining.len(), admitted.len());
        for user in 0..20 {
            let user = Key::new(format!("{user}"));
            let of_user = admitted.iter().filter(|(_, key, ..)| *key == user);
            let spent: u64 = of_user.map(|(_, _, cost, _)| cost).sum();
            let left = store.peek(&log, &user).await.unwrap().decisions()[0].remaining;
            assert_eq!(left, 20 - spent);
        }
        // No request was denied although it would still fit.
        for (_, user, cost, _) in answers.iter().filter(|(admitted, ..)| !admitted) {
            let user = store.peek(&log, user).await.unwrap().decisions()[0].remaining;
            assert!(*cost > user || *cost > left.decisions()[0].remaining);
        }
        let after = store.stats();
        let calls = after.calls - before.calls;
        let requests = after.requests - before.requests;
        assert!(requests >= 400 && calls < requests, "{calls} calls of {requests} requests");
    }
}

#[tokio::test]
async fn foreign_value_fails_only_its_requests() {
    let server = Redis::start();
    let store = connected(patient(&server.url())).await;
    let policy = policy(10);
    charge(&store, &policy, "bad", 1).await;
    // The check after each connection briefly has its own key.
    let keys = server.cmd(&["KEYS", "*:p"]);
    let bad = keys.list()[0].text().to_owned();
    server.cmd(&["DEL", &bad]);
    server.cmd(&["RPUSH", &bad, "not", "ours"]);
    let keys: Vec<_> = ["a", "bad", "b", "bad", "c"].into_iter().map(Key::from).collect();
    let asked: Vec<_> = keys.iter().map(|key| store.charge(&policy, key, Cost::ONE)).collect();
    for (key, answer) in keys.iter().zip(asked) {
        let answer = answer.await;
        if *key == Key::from("bad") {
            let error = answer.unwrap_err();
            assert!(!error.is_outage() && !error.may_have_charged(), "{error}");
            assert!(error.to_string().contains(&bad), "{error}");
        } else {
            assert!(answer.unwrap().is_admitted());
        }
    }
    assert_eq!(
        server.cmd(&["LRANGE", &bad, "0", "-1"]).list().len(),
        2,
        "the foreign value is unchanged"
    );
}

/// A proxy holds replies back until the test has checked the state.
#[tokio::test]
async fn full_queue_fails_immediately() {
    let server = Redis::start();
    let proxy = Proxy::start(server.address());
    let builder = patient(&proxy.url()).max_calls(1).max_queue(3);
    let store = connected(builder).await;
    let policy = policy(100);
    charge(&store, &policy, "k", 1).await;
    proxy.flows(Flow::Pass, Flow::Hold);

    let ask = || store.charge(&policy, &Key::from("k"), Cost::ONE);
    // One direct request, one in the next call, and three that wait.
    let mut under_way: Vec<_> = (0..2).map(|_| ask()).collect();
    for future in &mut under_way {
        assert!(poll_once(future).is_pending());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut waiting: Vec<_> = (0..3).map(|_| ask()).collect();
    let Poll::Ready(Err(error)) = poll_once(&mut ask()) else { panic!("the queue is full") };
    assert!(error.is_overload() && error.is_outage() && !error.may_have_charged(), "{error}");
    // Two of the three give up before their call is sent.
    waiting.truncate(1);
    proxy.pass();
    for future in under_way.into_iter().chain(waiting) {
        assert!(future.await.unwrap().is_admitted());
    }
    let left = store.peek(&policy, &Key::from("k")).await.unwrap().decisions()[0].remaining;
    assert_eq!(left, 100 - 1 - 3);
}

#[tokio::test]
async fn dropped_caller_completes_its_call() {
    let server = Redis::start();
    let store = connected(patient(&server.url())).await;
    let policy = policy(100);
    // The first call is preceded by a query for the server's time.
    store.peek(&policy, &Key::from("k")).await.unwrap();
    for _ in 0..20 {
        let mut alone = store.charge(&policy, &Key::from("k"), Cost::ONE);
        let _ = poll_once(&mut alone);
        drop(alone);
        // The next request does not wait for it.
        charge(&store, &policy, "k", 1).await;
    }
    let left = store.peek(&policy, &Key::from("k")).await.unwrap().decisions()[0].remaining;
    assert_eq!(left, 100 - 40);
}

/// A future may be held without being polled, for example in a `select!` that runs another branch.
/// It must not delay other requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpolled_call_blocks_no_others() {
    let server = Redis::start();
    let store = connected(patient(&server.url()).max_calls(1)).await;
    let policy = policy(100);
    let mut held = store.charge(&policy, &Key::from("k"), Cost::ONE);
    let _ = poll_once(&mut held);
    for _ in 0..5 {
        let others = charge(&store, &policy, "k", 1);
        tokio::time::timeout(Duration::from_secs(5), others).await.unwrap();
    }
    assert!(held.await.unwrap().is_admitted());
}

#[tokio::test]
async fn another_process_settles_and_resets() {
    let server = Redis::start();
    let (one, other) =
        (connected(patient(&server.url())).await, connected(patient(&server.url())).await);
    let policy = policy(100);
    let key = Key::from("k");
    let charges = [Charge::new(&policy, &key, Cost::new(30))];
    let verdict = one.decide(&charges).await.unwrap();
    let receipts: Vec<Receipt> = verdict.receipts(&charges, || ReceiptId(7)).collect();
    let settled = other.settle(&receipts[0], Cost::new(10)).await.unwrap();
    assert_eq!(settled, Settlement::Returned { units: 20 });
    assert_eq!(one.settle(&receipts[0], Cost::ZERO).await.unwrap(), Settlement::Repeated);
    assert_eq!(one.peek(&policy, &key).await.unwrap().decisions()[0].remaining, 90);
    other.reset(&policy, &key).await.unwrap();
    assert_eq!(one.peek(&policy, &key).await.unwrap().decisions()[0].remaining, 100);
}

/// More charges than a call may have keys, but only one key.
#[tokio::test]
async fn huge_request_is_answered() {
    let server = Redis::start();
    let store = connected(patient(&server.url())).await;
    let policy = policy(100_000);
    let key = Key::from("k");
    let charges = vec![Charge::new(&policy, &key, Cost::ONE); 70_000];
    // This one is not polled, so the next requests are queued.
    let held = store.charge(&policy, &key, Cost::ONE);
    let (many, one) = (store.decide(&charges), store.charge(&policy, &key, Cost::ONE));
    let answers = async { (many.await, one.await) };
    let (many, one) = tokio::time::timeout(Duration::from_secs(8), answers).await.unwrap();
    assert!(one.unwrap().is_admitted());
    // It is encoded while the other request is sent, so that may be decided first.
    let remaining = many.unwrap().decisions()[0].remaining;
    assert!((29_999..=30_000).contains(&remaining), "{remaining}");
    drop(held);
}
