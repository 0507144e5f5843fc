//! The script does not touch values that it did not write.

use tollgate_core::{Algorithm, Charge, Cost, Key, ReceiptId, Settlement, Source, Timestamp};
use tollgate_redis::protocol::{Batch, CROSS_SLOT_TEXT, Fault, ScriptAnswer};

use super::{MODES, charge, decide, next_year, policy};
use crate::support::{ScriptClient, Server, Value, expiry_of};

/// Values that are not states, each under its own key.
fn foreign(client: &mut ScriptClient) -> Vec<(String, Fault)> {
    let mut all = Vec::new();
    for command in
        ["LPUSH list x", "SADD set x", "HSET hash f x", "ZADD zset 1 x", "XADD stream 1-1 f x"]
    {
        let words: Vec<_> = command.split(' ').map(str::as_bytes).collect();
        client.run(&words);
        all.push((command.split(' ').nth(1).expect("a key").to_owned(), Fault::WrongType));
    }
    // Valid headers for a fixed window counter and a log: 9 units per 1000 µs.
    let fixed = [2, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 3, 232];
    let log = [2, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 3, 232];
    let mut bucket = [2, 5, 0, 0, 0, 0, 1, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 9].to_vec();
    bucket.extend([0x1f; 28]);
    // One unit per second: the largest countable capacity, and one unit more.
    let front = [2, 5, 0, 0, 0, 0, 1, 0, 0, 0, 15, 66, 64];
    let of = |capacity: u64| [&front[..], &capacity.to_be_bytes()[3..], &[0; 28]].concat();
    let (largest, beyond) = (of((1 << 52) / 1_000_000), of((1 << 52) / 1_000_000 + 1));
    client.run(&[b"SET", b"largest", &largest]);
    let mut log_of_nothing = [&log[..], &[0; 43]].concat();
    log_of_nothing[23] = 2;
    let zero_window = [&[2, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0][..], &[1; 20]].concat();
    let strings: [(&str, Vec<u8>); 11] = [
        ("garbage", b"some other program's value".to_vec()),
        ("number", b"17".to_vec()),
        ("next version", [&[3], &fixed[1..], &[0; 20]].concat()),
        ("no such code", [&[2, 14], &fixed[2..], &[0; 20]].concat()),
        ("half", fixed.to_vec()),
        ("no state", [&fixed[..], &[0; 7]].concat()),
        ("too long", [&fixed[..], &[0; 21]].concat()),
        ("more missing than there can be", bucket),
        ("log of more entries than it has", log_of_nothing),
        ("no window", zero_window),
        ("bucket beyond what can be counted", beyond),
    ];
    for (name, value) in strings.into_iter().chain(badly_leased(&fixed)) {
        client.run(&[b"SET", name.as_bytes(), &value]);
        all.push((name.to_owned(), Fault::Unreadable));
    }
    all
}

/// States that start with invalid blocks.
fn badly_leased(header: &[u8]) -> [(&'static str, Vec<u8>); 7] {
    let hold = |units: u8, last: u8| {
        [&[7; 8][..], &[0, 0, 0, 0, units], &[0, 0, 0, 0, 0, 0, last]].concat()
    };
    let value = |count: u8, holds: &[Vec<u8>], state: usize| {
        let front = [&[1, 65], &header[2..], &[0; 7], &[count]].concat();
        [front, holds.concat(), vec![0; state]].concat()
    };
    [
        ("no blocks", value(0, &[], 13)),
        ("more blocks than there can be", value(65, &vec![hold(1, 9); 65], 13)),
        ("fewer blocks than it says", value(2, &[hold(1, 9)], 13)),
        ("a block of nothing", value(1, &[hold(0, 9)], 13)),
        ("blocks that do not end in order", value(2, &[hold(1, 9), hold(1, 8)], 13)),
        ("blocks and half a state", value(1, &[hold(1, 9)], 6)),
        ("blocks and nothing", value(1, &[hold(1, 9)], 0)),
    ]
}

fn dump(client: &mut ScriptClient, keys: &[(String, Fault)]) -> Vec<Value> {
    keys.iter().map(|(key, _)| client.run(&[b"DUMP", key.as_bytes()])).collect()
}

/// Such calls take the script's plain path until it finds the value.
#[test]
fn plain_path_detects_foreign_values() {
    let server = Server::start();
    let mut client = server.connect();
    let foreign = foreign(&mut client);
    let before = dump(&mut client, &foreign);
    let now = Some(Timestamp::from_micros(next_year()));
    let mut policies = MODES.map(|algorithm| policy("p", 10_000, 1_000_000, algorithm)).to_vec();
    // Policies with the same headers as some of the values.
    policies.extend([policy("p", 9, 1_000, MODES[0]), policy("p", 9, 9_000, MODES[4])]);
    let mut clients = vec![client];
    if server.allows_cross_slot() {
        clients.push(server.connect_with(CROSS_SLOT_TEXT));
    }
    for (number, policy) in policies.iter().enumerate() {
        let good = format!("good {number}");
        for (key, fault) in &foreign {
            for client in &mut clients {
                for keys in [&[key.as_str()][..], &[key, &good], &[&good, key]] {
                    let mut batch = Batch::new(1);
                    for key in keys {
                        batch.decide(&[charge(key, policy, 1)]).expect("room");
                    }
                    for (row, at) in client.call(&batch, now).rows.iter().zip(keys) {
                        match row {
                            ScriptAnswer::Fault { fault: found, .. } => {
                                assert_eq!((*at, found), (&**key, fault))
                            }
                            ScriptAnswer::Verdict(..) => assert_eq!(*at, good, "{key}: {policy:?}"),
                            other => panic!("{key}: {other:?}"),
                        }
                    }
                }
            }
        }
    }
    assert_eq!(dump(&mut clients[0], &foreign), before);
}

#[test]
fn foreign_value_only_fails_its_requests() {
    let server = Server::start();
    let mut client = server.connect();
    let foreign = foreign(&mut client);
    let before = dump(&mut client, &foreign);
    let now = next_year();
    for algorithm in MODES {
        let limit = if algorithm == Algorithm::ConcurrentRequests { 10_000 } else { 100_000 };
        let policy = policy("p", limit, 1_000_000, algorithm);
        let good = format!("good:{algorithm:?}");
        let mut batch = Batch::new(3);
        for (key, _) in &foreign {
            batch.decide(&[charge(&good, &policy, 1)]).expect("room");
            batch.decide(&[charge(key, &policy, 1)]).expect("room");
            batch.decide(&[charge(&good, &policy, 1), charge(key, &policy, 1)]).expect("room");
            batch.reset(key.as_bytes()).expect("room");
        }
        let reply = client.call(&batch, Some(Timestamp::from_micros(now)));
        let keys: Vec<_> = batch.keys().map(<[u8]>::to_vec).collect();
        for (index, (key, fault)) in foreign.iter().enumerate() {
            let rows = &reply.rows[4 * index..][..4];
            let ScriptAnswer::Verdict(verdict, _) = &rows[0] else { panic!("{rows:?}") };
            // The request that named both keys was not charged to the good key.
            assert_eq!(verdict.decisions()[0].remaining, limit - 1 - index as u64, "{algorithm:?}");
            for row in &rows[1..] {
                let ScriptAnswer::Fault { fault: found, key: at } = row else {
                    panic!("{key}: {row:?}")
                };
                assert_eq!((found, &keys[*at][..]), (fault, key.as_bytes()), "{algorithm:?}");
            }
        }
    }
    assert_eq!(dump(&mut client, &foreign), before);
    // The last foreign value differs from this one by a single unit.
    let policy = policy("p", 100_000, 1_000_000, MODES[4]);
    assert!(decide(&mut client, &[charge("largest", &policy, 1)], now).is_admitted());
}

#[test]
fn unreadable_value_keeps_receipt_valid() {
    let server = Server::start();
    let mut client = server.connect();
    let (policy, now) = (policy("p", 10, 1_000_000_000, MODES[0]), next_year());
    let verdict = decide(&mut client, &[charge("k", &policy, 4)], now);
    let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::new(4))];
    let receipt = verdict.receipts(&charges, || ReceiptId(1)).next().expect("a receipt");
    let settle = |client: &mut ScriptClient, actual| {
        let mut batch = Batch::new(1);
        batch.settle(b"k", b"r", &receipt, Cost::new(actual)).expect("room");
        client.call(&batch, Some(Timestamp::from_micros(now))).rows.remove(0)
    };
    let state = client.run(&[b"GET", b"k"]);
    client.run(&[b"SET", b"k", b"not ours"]);
    assert_eq!(settle(&mut client, 1), ScriptAnswer::Fault { fault: Fault::Unreadable, key: 0 });
    let Value::Text(state) = state else { panic!("{state:?}") };
    client.run(&[b"SET", b"k", &state]);
    client.run(&[b"HSET", b"r", b"f", b"v"]);
    assert_eq!(settle(&mut client, 1), ScriptAnswer::Fault { fault: Fault::WrongType, key: 1 });
    client.run(&[b"DEL", b"r"]);
    assert_eq!(settle(&mut client, 1), ScriptAnswer::Settlement(Settlement::Returned { units: 3 }));
    // The receipt is also settled for other processes, until it expires.
    let again = settle(&mut server.connect(), 0);
    assert_eq!(again, ScriptAnswer::Settlement(Settlement::Repeated));
    let settled_until = Timestamp::from_micros(now) + receipt.lifetime();
    assert_eq!(client.expiry(b"r"), Value::Number(expiry_of(settled_until)));
    assert_eq!(receipt.source, Source::Store);
}
