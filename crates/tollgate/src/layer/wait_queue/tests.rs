use std::pin::pin;
use std::task::{Context, Waker};

use tollgate_core::{Key, Policy, Quota};
use tollgate_interleavings::{explore, thread};

use super::super::lanes::LaneKey;
use super::*;

type Entry = Result<Option<Ticket>, KeySet>;

/// A request for this key arrives, and is denied.
fn deny(queue: &WaitQueue, name: &str, bytes: usize) -> Entry {
    enter(queue, name, bytes, key())
}

/// A request for this key arrives, and has not called the store yet.
fn arrive(queue: &WaitQueue, name: &str) -> Entry {
    enter(queue, name, 1, KeySet::default())
}

fn enter(queue: &WaitQueue, name: &str, bytes: usize, denying: KeySet) -> Entry {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let keys = [LaneKey { policy, key: Key::from(name) }].into();
    let (arrival, costs, is_first) = (arrival(queue).number, [1].into(), Arc::default());
    let (may_wait, joined) = (key(), KeySet::default());
    let member = Member { arrival, keys, costs, may_wait, own: key(), joined, is_first };
    queue.enter(bytes, member, denying)
}

/// The request's only key.
fn key() -> KeySet {
    KeySet::from_iter([0])
}

fn arrival(queue: &WaitQueue) -> Arrival {
    queue.arrive(&RequestHead::of(&http::Request::new(())))
}

fn waiting(entry: Entry) -> Ticket {
    entry.ok().flatten().expect("the request waits")
}

#[test]
fn lanes_last_while_requests_wait() {
    let queue = WaitQueue::new().max_requests(3);
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
    let queue = queue.shared.queue.lock();
    assert_eq!((queue.lanes.len(), queue.by_key.len()), (0, 0));
    assert_eq!((queue.waiting.requests, queue.waiting.bytes), (0, 0));
}

#[test]
fn keys_are_capped_at_half_the_queue() {
    let queue = WaitQueue::new().max_requests(5).max_bytes(100);
    let large = waiting(deny(&queue, "a", 80));
    assert!(deny(&queue, "a", 1).is_err(), "more than 50 bytes");
    drop(large);
    let mut first: Vec<_> = (0..3).map(|_| waiting(deny(&queue, "a", 10))).collect();
    assert!(deny(&queue, "a", 10).is_err(), "three of five places");
    let _other = waiting(deny(&queue, "b", 10));
    drop(first.pop());
    waiting(deny(&queue, "a", 30));
    assert!(deny(&queue, "a", 31).is_err(), "more than 50 bytes");
}

#[test]
fn clones_share_bounds() {
    let queue = WaitQueue::new();
    let clone = queue.clone().max_requests(1).max_bytes(10).body_window(5);
    let first = waiting(deny(&queue, "a", 10));
    for queue in [&queue, &clone] {
        assert!(deny(queue, "b", 0).is_err(), "one request");
    }
    drop(first);
    for queue in [&queue, &clone] {
        assert!(deny(queue, "a", 11).is_err(), "ten bytes");
        assert_eq!(queue.shared.body_window.load(Ordering::Relaxed), 5);
    }
    let wider = clone.max_requests(2).max_bytes(100);
    let _first = waiting(deny(&queue, "a", 11));
    let _second = waiting(deny(&wider, "b", 11));
}

#[test]
fn body_bytes_are_capped_at_window() {
    let queue = WaitQueue::new().body_window(10_000);
    let bytes = |version, fields: &[(&'static str, &str)]| {
        let mut request = http::Request::new(());
        *request.version_mut() = version;
        for (name, value) in fields {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        queue.bytes_of(&RequestHead::of(&request)) - BASE_BYTES
    };
    for (fields, in_http1, in_http2) in [
        (&[][..], 0, 10_000),
        (&[("content-length", "7")], 14 + 1 + 7, 14 + 1 + 7),
        (&[("content-length", "1000000")], 14 + 7 + 10_000, 14 + 7 + 10_000),
        (&[("content-length", "x")], 14 + 1 + 10_000, 14 + 1 + 10_000),
        (&[("transfer-encoding", "chunked")], 17 + 7 + 10_000, 17 + 7 + 10_000),
        (&[("cookie", "abc"), ("content-length", "0")], 6 + 3 + 15, 6 + 3 + 15),
    ] {
        assert_eq!(bytes(Version::HTTP_11, fields), in_http1, "{fields:?}");
        assert_eq!(bytes(Version::HTTP_2, fields), in_http2, "{fields:?}");
    }
}

#[test]
fn total_bytes_are_bounded() {
    let queue = WaitQueue::new().max_bytes(10);
    let first = waiting(deny(&queue, "a", 6));
    assert!(deny(&queue, "b", 5).is_err());
    let second = waiting(deny(&queue, "b", 4));
    assert!(arrive(&queue, "a").is_err());
    drop((first, second));
    assert!(deny(&queue, "a", 11).is_err());
    waiting(deny(&queue, "a", 10));
}

#[test]
fn arrivals_take_no_lock() {
    let queue = WaitQueue::new();
    let lock = queue.shared.queue.lock();
    let (arrived, seen) = std::sync::mpsc::channel();
    let clone = queue.clone();
    // Runs in another thread, so the test fails instead of blocking if an arrival takes the lock.
    std::thread::spawn(move || arrived.send(arrival(&clone).others_wait));
    let others_wait = seen.recv_timeout(std::time::Duration::from_secs(30));
    assert_eq!(others_wait, Ok(false));
    drop(lock);
    let first = waiting(deny(&queue, "a", 1));
    assert!(arrival(&queue).others_wait);
    drop(first);
    assert!(!arrival(&queue).others_wait);
}

#[test]
fn huge_bodies_do_not_overflow() {
    let queue = WaitQueue::new().max_bytes(usize::MAX);
    let first = waiting(deny(&queue, "a", usize::MAX));
    assert!(deny(&queue, "b", usize::MAX).is_err(), "no bytes remain");
    assert!(deny(&queue, "b", 1).is_err(), "no bytes remain");
    drop(first);
    waiting(deny(&queue, "b", usize::MAX));
    let held = queue.shared.queue.lock().waiting;
    assert_eq!((held.requests, held.bytes), (0, 0));
}

#[test]
fn request_behind_a_leaving_request_is_woken() {
    explore(|| {
        let queue = WaitQueue::new();
        let first = waiting(deny(&queue, "a", 1));
        let behind = queue.clone();
        let behind = thread::spawn(move || arrive(&behind, "a").ok().flatten());
        drop(first);
        if let Some(behind) = behind.join().unwrap() {
            let woken = pin!(behind.woken());
            assert!(woken.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
        assert!(!arrival(&queue).others_wait);
    });
}
