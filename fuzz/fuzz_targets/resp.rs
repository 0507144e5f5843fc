//! No Redis reply makes the store panic, or return more or fewer answers than the call has
//! requests.
//!
//! The bits in the first byte select the call's requests. The rest is the reply after the nonce, in
//! the form in which fred returns it: fred parses RESP itself, and our script replies with a single
//! string.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tollgate_core::{Charge, Cost, Micros, PenaltyBlock, Policy, Quota, Strikes};
use tollgate_redis::protocol::{Ask, Batch, KeyedCharge, ScriptAnswer, Spent};

const NONCE: u64 = 7;

static POLICIES: LazyLock<[Policy; 5]> = LazyLock::new(|| {
    let quota = Quota::per_minute(9);
    [
        Policy::fixed_window_counter("window", quota),
        Policy::token_bucket("bucket", quota),
        Policy::sliding_window_log("log", quota),
        Policy::leaky_bucket("queue", quota),
        Policy::penalty("penalty", Strikes::of_denials(3, Duration::from_secs(9))),
    ]
    .map(|policy| policy.expect("the policies build"))
});

/// The call, and the number of charges in each request; `None` for a request without a verdict.
fn call(kinds: u8) -> (Batch, Vec<Option<usize>>) {
    let [window, bucket, log, queue, penalty] = &*POLICIES;
    let line = |key, policy, enforce, dry| {
        let KeyedCharge { key, charge } = KeyedCharge::new(key, policy, Cost::ONE);
        KeyedCharge { key, charge: Charge { enforce, dry, ..charge } }
    };
    let requests = [
        vec![line(&b"{a}w"[..], window, true, false)],
        vec![line(b"{a}w", window, true, false), line(b"{b}b", bucket, false, false)],
        // Two charges to the same key are summed.
        vec![line(b"{c}l", log, true, false), line(b"{c}l", log, true, false)],
        vec![line(b"{d}q", queue, true, false), line(b"{d}q", queue, true, true)],
    ];
    let (mut batch, mut charges) = (Batch::new(NONCE), Vec::new());
    for (bit, lines) in requests.iter().enumerate().filter(|(bit, _)| kinds >> bit & 1 == 1) {
        // An equal request joins the run of the request before it.
        for _ in 0..=bit % 2 {
            batch.decide(lines).expect("the call has room");
            charges.push(Some(lines.len()));
        }
    }
    if kinds & 0x10 != 0 {
        batch.reset(b"{a}w").expect("the call has room");
        charges.push(None);
    }
    if kinds & 0x40 != 0 {
        batch.block(b"{p}p", penalty, PenaltyBlock::of(Duration::from_secs(1))).expect("room");
        charges.push(None);
    }
    if kinds & 0x20 != 0 {
        let ask = Ask { tag: 3, units: 5, ttl: Micros::new(1_000_000) };
        batch.lease(b"{e}w", window, &[Spent { id: 1, units: 2 }], ask).expect("the call has room");
        charges.push(None);
    }
    (batch, charges)
}

fuzz_target!(|data: &[u8]| {
    let Some((&kinds, rest)) = data.split_first() else { return };
    let (batch, charges) = call(kinds);
    let reply = [&NONCE.to_be_bytes()[..], rest].concat();
    let Ok(reply) = batch.parse(&reply) else { return };
    assert_eq!(reply.rows.len(), charges.len());
    for (row, charges) in reply.rows.iter().zip(charges) {
        match row {
            ScriptAnswer::Verdict(verdict, frozen) => {
                assert_eq!(Some(verdict.decisions().len()), charges);
                assert!(frozen.is_empty() || Some(frozen.len()) == charges);
            }
            ScriptAnswer::Leased(_) | ScriptAnswer::Reset | ScriptAnswer::Blocked(_) => assert_eq!(charges, None),
            ScriptAnswer::Settlement(_) | ScriptAnswer::Renewal(_) => panic!("the call has no receipt"),
            ScriptAnswer::Stale | ScriptAnswer::Unmade | ScriptAnswer::Elsewhere | ScriptAnswer::Fault { .. } => {}
        }
    }
});
