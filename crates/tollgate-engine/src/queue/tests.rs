use std::task::Waker;

use tollgate_core::{Key, Policy, Quota};
use tollgate_interleavings::{explore, thread};

use super::*;

type Entered = Result<Option<Ticket>, KeySet>;

/// A request for this key arrives, and is denied.
fn deny(queue: &Queue, name: &str, bytes: usize) -> Entered {
    enter(queue, name, bytes, key())
}

/// A request for this key arrives, and has not called the store yet.
fn arrive(queue: &Queue, name: &str) -> Entered {
    enter(queue, name, 1, KeySet::default())
}

fn enter(queue: &Queue, name: &str, bytes: usize, denying: KeySet) -> Entered {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let lane = (LaneKey { policy, key: Key::from(name) }, 1);
    let arrival = queue.arrive(bytes);
    arrival.enter(Member::new(arrival.number, [lane].into_iter(), key(), key()), denying)
}

fn bounded(requests: usize, bytes: usize) -> Queue {
    let queue = Queue::new();
    queue.set_max_requests(requests);
    queue.set_max_bytes(bytes);
    queue
}

/// The request's only key.
fn key() -> KeySet {
    KeySet::from_iter([0])
}

fn waiting(entry: Entered) -> Ticket {
    entry.ok().flatten().expect("the request waits")
}

#[test]
fn lanes_last_while_requests_wait() {
    let queue = bounded(3, 100);
    let is_free = |name| matches!(arrive(&queue, name), Ok(None));
    assert!(is_free("a"));
    let first = waiting(deny(&queue, "a", 1));
    assert!(is_free("b"));
    let second = waiting(arrive(&queue.clone(), "a"));
    let other = waiting(deny(&queue, "b", 1));
    assert_eq!(arrive(&queue, "a").err(), Some(key()));
    assert_eq!(deny(&queue, "c", 1).err(), Some(key()), "the queue is full for all");
    drop((first, other));
    assert!(!is_free("a"));
    drop(second);
    assert!(is_free("a"));
    let queue = queue.0.waiters.lock();
    assert_eq!((queue.lanes.len(), queue.by_key.len()), (0, 0));
    assert_eq!((queue.total.requests, queue.total.bytes), (0, 0));
}

#[test]
fn clones_share_bounds() {
    let queue = Queue::new();
    let clone = queue.clone();
    clone.set_max_requests(1);
    clone.set_max_bytes(10);
    let first = waiting(deny(&queue, "a", 10));
    for queue in [&queue, &clone] {
        assert!(deny(queue, "b", 0).is_err(), "one request");
    }
    drop(first);
    for queue in [&queue, &clone] {
        assert!(deny(queue, "a", 11).is_err(), "ten bytes");
    }
    queue.set_max_requests(2);
    queue.set_max_bytes(100);
    let _first = waiting(deny(&queue, "a", 11));
    let _second = waiting(deny(&clone, "b", 11));
}

#[test]
fn arrivals_take_no_lock() {
    let queue = Queue::new();
    let lock = queue.0.waiters.lock();
    let (arrived, seen) = std::sync::mpsc::channel();
    let clone = queue.clone();
    // Runs in another thread, so the test fails instead of blocking if an arrival takes the lock.
    std::thread::spawn(move || arrived.send(clone.arrive(1).others_wait));
    let others_wait = seen.recv_timeout(std::time::Duration::from_secs(30));
    assert_eq!(others_wait, Ok(false));
    drop(lock);
    let first = waiting(deny(&queue, "a", 1));
    assert!(queue.arrive(1).others_wait);
    drop(first);
    assert!(!queue.arrive(1).others_wait);
}

#[test]
fn huge_bodies_do_not_overflow() {
    let queue = bounded(9, usize::MAX);
    let first = waiting(deny(&queue, "a", usize::MAX));
    assert!(deny(&queue, "b", usize::MAX).is_err(), "no bytes remain");
    assert!(deny(&queue, "b", 1).is_err(), "no bytes remain");
    drop(first);
    waiting(deny(&queue, "b", usize::MAX));
    let held = queue.0.waiters.lock().total;
    assert_eq!((held.requests, held.bytes), (0, 0));
}

#[test]
fn request_behind_a_leaving_request_is_woken() {
    explore(|| {
        let queue = Queue::new();
        let first = waiting(deny(&queue, "a", 1));
        let behind = queue.clone();
        let behind = thread::spawn(move || arrive(&behind, "a").ok().flatten());
        drop(first);
        if let Some(behind) = behind.join().unwrap() {
            assert!(behind.is_woken(Waker::noop()));
        }
        assert!(!queue.arrive(1).others_wait);
    });
}
