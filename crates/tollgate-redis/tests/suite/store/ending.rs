//! A dropped store leaves no task behind, and requests fail when its runtime shuts down.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tollgate_core::{Charge, Cost, Key, Store, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Proxy, Redis, until, until_async};

use super::{connected, patient, policy};

/// Waits until this runtime has only the test's tasks.
async fn until_idle(before: usize) {
    let is_idle = async || (tasks() <= before).then_some(());
    until_async(&format!("only {before} tasks are left"), Duration::from_secs(20), is_idle).await;
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn last_clone_drops_tasks_and_connections() {
    let server = Redis::start();
    let before = tasks();
    let store = connected(patient(&server.url())).await;
    let clone = store.clone();
    store.charge(&policy(10), &Key::GLOBAL, Cost::ONE).await.unwrap();
    drop(store);
    clone.charge(&policy(10), &Key::GLOBAL, Cost::ONE).await.unwrap();
    let asked = clone.charge(&policy(10), &Key::GLOBAL, Cost::ONE);
    drop(clone);
    assert!(asked.await.unwrap().is_admitted(), "a pending request gets an answer");
    until_idle(before).await;
    until("the server sees it", Duration::from_secs(5), || {
        let clients = server.cmd(&["CLIENT", "LIST"]);
        (clients.text().lines().count() == 1).then_some(())
    });
}

#[tokio::test]
async fn unconnected_store_leaves_no_tasks() {
    let server = Redis::start();
    server.kill();
    let before = tasks();
    let store = RedisStore::connect(&server.url()).unwrap();
    store.charge(&policy(10), &Key::GLOBAL, Cost::ONE).await.unwrap_err();
    drop(store);
    until_idle(before).await;
    // No server answers the query for the slot map.
    let cluster = RedisStore::connect(&server.url().replace("redis:", "redis-cluster:")).unwrap();
    cluster.charge(&policy(10), &Key::GLOBAL, Cost::ONE).await.unwrap_err();
    drop(cluster);
    until_idle(before).await;
}

fn other() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A service may shut down one runtime and continue in another for a while.
#[test]
fn requests_fail_without_runtime() {
    let server = Redis::start();
    for url in [server.url(), server.url().replace("redis:", "redis-cluster:")] {
        let (first, second) = (other(), other());
        let store = first.block_on(async {
            let builder = RedisStore::builder(&url).unwrap();
            builder.timeout(Duration::from_millis(200)).connect().unwrap()
        });
        drop(first);
        let policy = policy(10);
        let keys = [Key::from("a"), Key::from("b")];
        let one = [Charge::new(&policy, &keys[0], Cost::ONE)];
        let two = keys.each_ref().map(|key| Charge::new(&policy, key, Cost::ONE));
        for charges in [&one[..], &two[..]] {
            // The first request is direct, and the second is sent by a task.
            let (alone, queued) = (store.decide(charges), store.decide(charges));
            let answers = async { (alone.await, queued.await) };
            let answers = second
                .block_on(async { tokio::time::timeout(Duration::from_secs(5), answers).await });
            let (alone, queued) = answers.expect("an answer, even if it is an error");
            for answer in [alone, queued] {
                assert!(answer.unwrap_err().is_outage(), "{url}");
            }
        }
    }
}

#[test]
fn pending_requests_fail_with_runtime() {
    let server = Redis::start();
    let proxy = Proxy::start(server.address());
    for url in [proxy.url(), server.url().replace("redis:", "redis-cluster:")] {
        let (first, second) = (other(), other());
        let store = first.block_on(async {
            let store = patient(&url).connect().unwrap();
            if url == proxy.url() {
                store.connected().await;
            }
            store
        });
        proxy.swallow_replies();
        let policy = policy(10);
        let ask = || store.charge(&policy, &Key::GLOBAL, Cost::ONE);
        let mut asked = [ask(), ask(), ask(), ask()];
        // The requests are in flight when the runtime shuts down.
        first.block_on(async {
            for future in &mut asked {
                assert!(super::combining::poll_once(future).is_pending());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
        drop(first);
        let answers = async {
            for future in asked {
                assert!(future.await.unwrap_err().is_outage());
            }
        };
        second
            .block_on(async { tokio::time::timeout(Duration::from_secs(5), answers).await })
            .expect("an answer, even if it is an error");
        proxy.pass();
    }
}

#[test]
fn store_works_outside_its_runtime() {
    let server = Redis::start();
    let (first, second) = (Builder::new_multi_thread().enable_all().build().unwrap(), other());
    let store = first.block_on(connected(patient(&server.url())));
    let policy = policy(10);
    let ask = || store.charge(&policy, &Key::GLOBAL, Cost::ONE);
    second.block_on(async {
        for _ in 0..2 {
            let (alone, queued) = (ask(), ask());
            assert!(alone.await.unwrap().is_admitted() && queued.await.unwrap().is_admitted());
        }
    });
    let mut asked = ask();
    let verdict =
        until("an answer", Duration::from_secs(5), || {
            match super::combining::poll_once(&mut asked) {
                std::task::Poll::Ready(verdict) => Some(verdict.unwrap()),
                std::task::Poll::Pending => None,
            }
        });
    assert_eq!(verdict.decisions()[0].remaining, 5);
}
