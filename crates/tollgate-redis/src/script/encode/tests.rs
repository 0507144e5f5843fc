//! Checks a call's bytes.

use std::time::Duration;

use tollgate_core::{
    Algorithm, Charged, Cost, Key, LeakyMode, Micros, Quota, Receipt, ReceiptId, Source, Strikes,
};

use super::*;

fn policy(limit: u64) -> Policy {
    Policy::fixed_window_counter("p", Quota::per_minute(limit)).unwrap()
}

fn line<'a>(key: &'a [u8], policy: &'a Policy, cost: u64) -> KeyedCharge<'a> {
    KeyedCharge::new(key, policy, Cost::new(cost))
}

/// Returns the bytes of the requests in a call.
fn requests(batch: &Batch) -> Vec<u8> {
    batch.args(None)[2].clone()
}

#[test]
fn equal_requests_share_a_run() {
    let policy = policy(100);
    let mut batch = Batch::new(7);
    batch.set_deadline(Some(Timestamp::from_micros(0x0102)));
    for _ in 0..3 {
        batch.decide(&[line(b"k", &policy, 1)]).unwrap();
    }
    assert_eq!(batch.keys().collect::<Vec<_>>(), [b"k"]);
    assert_eq!(batch.len(), 3);
    let args = batch.args(None);
    assert_eq!(
        args[0],
        [[0, 0, 0, 0, 0, 0, 0, 7].as_slice(), &[0, 0, 0, 0, 0, 1, 2], &[1]].concat()
    );
    assert_eq!(args[1], [2, 1, 0, 0, 0, 0, 100, 0, 0, 0x03, 0x93, 0x87, 0]);
    assert_eq!(args[2], [1, 0, 3, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(args.len(), 3);
    assert_eq!(batch.args(Some(Timestamp::from_micros(42)))[3], b"42");
}

/// Returns whether the header allows the script's plain path.
fn may_be_plain(batch: &Batch) -> bool {
    batch.args(None)[0][15] == 1
}

#[test]
fn general_request_disables_plain_path() {
    let quota = Quota::per_minute(9);
    let queue = |max_wait| Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } };
    let bucket = policy(9);
    let cases = [
        (Policy::sliding_window_counter("p", quota), true),
        (Policy::token_bucket("p", quota), true),
        (Policy::new("p", quota, queue(None)), true),
        (Policy::new("p", quota, queue(Some(Micros::new(7)))), false),
        (Policy::sliding_window_log("p", quota), false),
        (Policy::concurrent_requests("p", 9, Duration::from_secs(60)), false),
    ];
    for (policy, is_plain) in cases {
        let policy = policy.unwrap();
        let mut batch = Batch::new(0);
        batch.decide(&[line(b"k", &bucket, 1)]).unwrap();
        assert!(may_be_plain(&batch));
        batch.decide(&[line(b"l", &policy, 1)]).unwrap();
        assert_eq!(may_be_plain(&batch), is_plain, "{policy:?}");
    }
    let mut asks = Batch::new(0);
    asks.decide(&[KeyedCharge { key: b"k", charge: line(b"k", &bucket, 1).charge.dry() }]).unwrap();
    let mut resets = Batch::new(0);
    resets.reset(b"k").unwrap();
    assert!(!may_be_plain(&asks) && !may_be_plain(&resets));
}

#[test]
fn cross_slot_call_declares_no_keys() {
    let policy = policy(100);
    let mut batch = Batch::new(7);
    batch.set_cross_slot();
    batch.decide(&[line(b"k", &policy, 1), line(b"l", &policy, 1)]).unwrap();
    assert_eq!(batch.declared_keys().len(), 0);
    assert_eq!(batch.args(None)[3..], [b"".to_vec(), b"k".to_vec(), b"l".to_vec()]);
    assert_eq!(batch.args(Some(Timestamp::from_micros(42)))[3], b"42");
}

#[test]
fn interleaved_key_prevents_joining() {
    let policy = policy(100);
    let (a, b) = (line(b"a", &policy, 1), line(b"b", &policy, 1));
    let cases: [(&[&[KeyedCharge<'_>]], &[u32]); 5] = [
        (&[&[a], &[b], &[a], &[b]], &[0, 1, 0, 1]),
        (&[&[a], &[line(b"a", &policy, 2)], &[a]], &[0, 1, 2]),
        (&[&[a], &[a, b], &[a], &[b]], &[0, 1, 2, 3]),
        (&[&[a, b], &[line(b"c", &policy, 1)], &[a, b], &[b, a]], &[0, 1, 0, 2]),
        // The charges differ, although their sums are equal.
        (&[&[a, a], &[line(b"a", &policy, 2)]], &[0, 1]),
    ];
    for (requests, runs) in cases {
        let mut batch = Batch::new(0);
        for lines in requests {
            batch.decide(lines).unwrap();
        }
        assert_eq!(batch.run_of, runs, "{requests:?}");
    }
    let mut batch = Batch::new(0);
    batch.decide(&[a]).unwrap();
    batch.reset(b"a").unwrap();
    batch.decide(&[a]).unwrap();
    assert_eq!(batch.run_of, [0, 1, 2]);
}

#[test]
fn charges_to_a_key_are_summed() {
    let policy = policy(100);
    let mut batch = Batch::new(0);
    let shadow =
        |cost| KeyedCharge { key: b"k", charge: line(b"k", &policy, cost).charge.shadow() };
    let enforced = |cost| line(b"k", &policy, cost);
    let lines =
        [shadow(2), line(b"other", &policy, 9), shadow(4), enforced(3), shadow(8), enforced(2)];
    batch.decide(&lines).unwrap();
    let operations = requests(&batch);
    let sum = [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 5];
    let other = [0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(operations, [&[1, 0, 1, 2], &sum[..], &other[..]].concat());
    let Asked::Decide { charges, .. } = &batch.runs[0].asked else { panic!() };
    assert_eq!(charges[..], [0, 1, 0, 0, 0, 0]);
    batch.decide(&[shadow(2), shadow(4)]).unwrap();
    let operations = requests(&batch);
    assert_eq!(operations[28..], [1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]);
}

#[test]
fn two_quotas_for_a_key_are_rejected() {
    let (small, large) = (policy(10), policy(20));
    let mut batch = Batch::new(0);
    let lines = [line(b"k", &small, 1), line(b"k", &large, 1)];
    assert_eq!(batch.decide(&lines), Err(EncodeError::TwoQuotas));
    assert!(batch.is_empty());
    assert_eq!(batch.keys().len(), 0);
    // Two requests in a call may differ, for example for two versions of a policy.
    batch.decide(&lines[..1]).unwrap();
    batch.decide(&lines[1..]).unwrap();
    assert_eq!((batch.len(), batch.keys().len(), batch.forms.len()), (2, 1, 2));
}

#[test]
fn full_batch_rejects_requests() {
    let policy = policy(1);
    let mut batch = Batch::new(0);
    for number in 0..Batch::MAX as u32 {
        batch.decide(&[line(&number.to_be_bytes(), &policy, 1)]).unwrap();
    }
    assert_eq!(batch.decide(&[line(b"k", &policy, 1)]), Err(EncodeError::Full));
    let keys: Vec<_> = (0..256_u32).map(u32::to_be_bytes).collect();
    let lines: Vec<_> = keys.iter().map(|key| line(key, &policy, 1)).collect();
    let mut batch = Batch::new(0);
    assert_eq!(batch.decide(&lines), Err(EncodeError::TooManyCharges));
    assert_eq!(batch.decide(&lines[..255]), Ok(()));
}

#[test]
fn penalty_limits_request_to_64_keys() {
    let minute = Duration::from_secs(60);
    let banned = Policy::penalty("b", Strikes::of_denials(9, minute).block(minute)).unwrap();
    let keys: Vec<_> = (0..65).map(|number| format!("{{{number}}}")).collect();
    let lines: Vec<_> = keys.iter().map(|key| line(key.as_bytes(), &banned, 1)).collect();
    let mut batch = Batch::new(0);
    assert_eq!(batch.decide(&lines[..64]), Ok(()));
    let error = batch.decide(&lines).unwrap_err();
    assert_eq!(error, EncodeError::TooManyCharges);
    assert!(error.to_string().ends_with("or more than 64 with a penalty"), "{error}");
}

#[test]
fn huge_cost_is_clamped_for_lua() {
    let policy = policy(1);
    let mut batch = Batch::new(0);
    batch.decide(&[line(b"k", &policy, u64::MAX)]).unwrap();
    let operations = requests(&batch);
    assert_eq!(operations[9..], [0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn settlement_encodes_direction_and_units() {
    let policy = policy(100);
    let receipt = Receipt {
        id: ReceiptId(1),
        source: Source::Store,
        policy,
        key: Key::GLOBAL,
        charged: Charged {
            cost: Cost::new(5),
            charged_at: Timestamp::from_micros(3),
            leaves_at: Timestamp::from_micros(4),
            resets_at: Timestamp::from_micros(6),
            refunded: 7,
            lifetime: Micros::new(8),
        },
    };
    for (actual, kind, units) in [(2, GIVE_BACK, 3), (5, GIVE_BACK, 0), (9, OWE, 4)] {
        let mut batch = Batch::new(0);
        batch.settle(b"k", b"r", &receipt, Cost::new(actual)).unwrap();
        let operations = requests(&batch);
        assert_eq!(operations[..9], [kind, 0, 1, 0, 1, 0, 0, 0, 2]);
        assert_eq!([operations[15], operations[22], operations[29]], [units, 5, 3]);
        assert_eq!([operations[36], operations[43], operations[50]], [4, 6, 7]);
    }
}
