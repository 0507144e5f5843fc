//! The gateway's memory under traffic that never repeats: a new client address and path for each
//! request, denials, new connections and reloads.

use std::thread;

use crate::support::{Gateway, RawClient, RawUpstream, is_heavy};

/// The first half fills caches and allocator pools, so the second half may only add noise.
#[test]
fn memory_stops_growing() {
    let (rounds, requests, most) = if is_heavy() { HEAVY } else { SMALL };
    let upstream = RawUpstream::new();
    let lines = |limit: u32| {
        format!(
            "trustedProxies: [127.0.0.1]\nclient: {{limit: {limit}, windowSeconds: 1}}\n{}",
            upstream.target()
        )
    };
    let gateway = Gateway::start(&lines(1));
    let (mut settled, mut last) = (0, 0);
    for round in 1..=rounds {
        thread::scope(|scope| {
            for client in 0..4 {
                let address = gateway.address;
                scope.spawn(move || {
                    let number = round * 4 + client;
                    let mut connection = RawClient::new(address);
                    for request in 0..requests {
                        if request % 100 == 0 {
                            connection = RawClient::new(address);
                        }
                        // Each address sends two requests, and a limit of 1 denies the second.
                        let [high, low] = ((request / 2) as u16).to_be_bytes();
                        let client = format!("10.{number}.{high}.{low}");
                        let answer = connection.ask(&format!(
                            "GET /{number}/{request} HTTP/1.1\r\nHost: a\r\n\
                             X-Forwarded-For: {client}\r\nX-Padding: {request:1000}\r\n\r\n"
                        ));
                        let is_answered = ["HTTP/1.1 200", "HTTP/1.1 429"]
                            .iter()
                            .any(|status| answer.starts_with(status));
                        assert!(is_answered, "{answer}");
                    }
                });
            }
        });
        gateway.rewrite(&lines(1 + round % 2));
        gateway.signal("HUP");
        last = gateway.resident();
        println!("after {} requests: {last} KiB", round * 4 * requests);
        if round == rounds / 2 {
            settled = last;
        }
    }
    let growth = last.saturating_sub(settled);
    assert!(growth < most, "memory grew by {growth} KiB in the second half");
}

/// The rounds, the requests of each connection in a round, and the maximum growth in the second half
/// in KiB. This finds a leak of a client's key, because it allows 40 bytes per request.
const HEAVY: (u32, u32, u64) = (40, 5_000, 16 << 10);
/// This finds a leak of a request's buffers, because it allows 1 KiB per request.
const SMALL: (u32, u32, u64) = (4, 500, 4 << 10);
