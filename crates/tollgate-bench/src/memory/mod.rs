//! A decision in memory: Tollgate compared with governor.

mod algorithms;
pub(crate) mod bytes;
pub(crate) mod side;
pub(crate) mod sides;

use std::time::Duration;

use tollgate::policy::{Algorithm, Lease, Refill};

use self::side::{Expect, Keys, peer};
use self::sides::{
    Bucket, Direct, Global, Governor, Leased, Ready, Tenants, Tollgate, Two, TwoGovernors,
};
use crate::Failure;
use crate::report::{self, Table, Target};
use crate::rounds::{Spread, interleave};

const METHOD: &str = "\
A full decision through the public `Store` API, which returns limit, remaining, reset and retry,
beside governor's `check_key` on its default map, which returns yes or no. Both receive a `&str` of
13 bytes from the nearest cache and build the key that their API requires within the measured time.
Tollgate builds its `Key`. governor builds a `String`, copied into an existing buffer (the
reference, although a plain service would allocate), or an inline `[u8; 13]`, its shortest possible
key. For `&String`, the string is built outside the measured time. Many keys are requested in a
random order that differs from the insertion order. With one thread, a round counts the fastest of
ten slices of 1 ms. Numbers are nanoseconds per decision and thread.";

/// The time that a peer runs in a round, and the number of rounds.
const SPAN: Duration = Duration::from_millis(10);
const ROUNDS: usize = 40;

pub(crate) fn run() -> Result<(), Failure> {
    let tables = [keys()?, hot()?, algorithms::table()?, two()?, tenants()?, bytes::table()?];
    report::write("memory", METHOD, &tables)
}

const BUCKET: Algorithm = Algorithm::TokenBucket { refill: Refill::Greedy };

/// The same keys under all limiters.
fn keys() -> Result<Table, Failure> {
    let mut table = Table::new(
        "Token bucket, all allowed",
        "keys | threads | Tollgate | governor, `String` | governor, `&String` | governor, `[u8; 13]` | × `String` | target | met | × `&String` | × `[u8; 13]`",
    );
    for (count, bucket, targets) in [
        (1, Bucket::ENDLESS, [0.7, 0.7]),
        (100_000, Bucket::LASTING, [0.6, 0.6]),
        (1_000_000, Bucket::LASTING, [0.7, 0.7]),
    ] {
        let keys = Keys::new(count);
        let ours = Tollgate::new(BUCKET, bucket.ours(), count as usize)?;
        let strings = Governor::<String>::new(bucket.theirs()?);
        let ready = Ready::new(bucket.theirs()?);
        let inline = Governor::<[u8; 13]>::new(bucket.theirs()?);
        keys.insert(&ours);
        keys.insert(&strings);
        keys.insert(&ready);
        keys.insert(&inline);
        for (threads, target) in (1..).zip(targets) {
            let measured = interleave(
                &mut [
                    peer(&ours, &keys, threads, SPAN, Expect::Allowed),
                    peer(&strings, &keys, threads, SPAN, Expect::Allowed),
                    peer(&ready, &keys, threads, SPAN, Expect::Allowed),
                    peer(&inline, &keys, threads, SPAN, Expect::Allowed),
                ],
                ROUNDS,
            );
            let [ours, strings, others @ ..] = &measured[..] else { continue };
            let ratio = Spread::of_ratios(ours, strings);
            let ratios = others.iter().map(|theirs| (Spread::of_ratios(ours, theirs), 2));
            let ratios = ratios.collect::<Vec<_>>();
            let ratio = (ratio, Target::AtMost(target));
            table.row(&[&count, &threads, &spreads(&measured), &ratio, &ratios]);
        }
    }
    Ok(table)
}

fn spreads(measured: &[Vec<f64>]) -> Vec<Spread> {
    measured.iter().map(Spread::of).collect()
}

/// A policy without a key, and leases per thread.
fn hot() -> Result<Table, Failure> {
    let mut table = Table::new(
        "One quota without a key, and a hot key with leases of 1 % for each thread",
        "Tollgate | threads | ns | governor, `String` | governor, no key | × `String` | target | met | × no key",
    );
    let keys = Keys::new(1);
    let global = Global::new(BUCKET, Bucket::ENDLESS.ours())?;
    let leased = Leased::new(Bucket::ENDLESS.ours(), Lease::of(1, 100))?;
    let strings = Governor::<String>::new(Bucket::ENDLESS.theirs()?);
    let direct = Direct::new(Bucket::ENDLESS.theirs()?);
    for (threads, targets) in (1..).zip([[Some(0.5), None], [None, Some(0.15)]]) {
        let measured = interleave(
            &mut [
                peer(&global, &keys, threads, SPAN, Expect::Allowed),
                peer(&leased, &keys, threads, SPAN, Expect::Allowed),
                peer(&strings, &keys, threads, SPAN, Expect::Allowed),
                peer(&direct, &keys, threads, SPAN, Expect::Allowed),
            ],
            ROUNDS,
        );
        let [ours @ .., strings, direct] = &measured[..] else { continue };
        let names = ["a policy without a key", "leases for each thread"];
        for ((name, ours), target) in names.into_iter().zip(ours).zip(targets) {
            let ratio = Spread::of_ratios(ours, strings);
            let ns = [ours, strings, direct].map(Spread::of);
            let ratio = (ratio, target.map_or(Target::None, Target::AtMost));
            table.row(&[&name, &threads, &ns, &ratio, &(Spread::of_ratios(ours, direct), 2)]);
        }
    }
    Ok(table)
}

/// A global policy and a policy per key.
fn two() -> Result<Table, Failure> {
    let mut table = Table::new(
        "Two policies per request, global and per key, one thread",
        "keys | Tollgate, all or none | governor, in sequence | ratio | target | met",
    );
    for (count, bucket) in [(1, Bucket::ENDLESS), (100_000, Bucket::LASTING)] {
        let keys = Keys::new(count);
        let ours = Two::new(Bucket::ENDLESS.ours(), bucket.ours(), count as usize)?;
        let theirs = TwoGovernors::new(Bucket::ENDLESS.theirs()?, bucket.theirs()?);
        keys.insert(&ours);
        keys.insert(&theirs);
        let peers = &mut [
            peer(&ours, &keys, 1, SPAN, Expect::Allowed),
            peer(&theirs, &keys, 1, SPAN, Expect::Allowed),
        ];
        let measured = interleave(peers, ROUNDS);
        let [ours, theirs] = &measured[..] else { continue };
        let ratio = Spread::of_ratios(ours, theirs);
        table.row(&[&count, &spreads(&measured), &(ratio, Target::AtMost(1.0))]);
    }
    Ok(table)
}

/// Tenants with their own quotas under one policy.
fn tenants() -> Result<Table, Failure> {
    let mut table = Table::new(
        "100 000 keys of one policy with a quota each, one thread",
        "one quota | 5 000 quotas | ratio | target | met",
    );
    let keys = Keys::new(100_000);
    let tenants = |quotas| Tenants::new(Bucket::LASTING.ours(), quotas, 100_000);
    let (one, many) = (tenants(1)?, tenants(5_000)?);
    keys.insert(&one);
    keys.insert(&many);
    let peers = &mut [
        peer(&one, &keys, 1, SPAN, Expect::Allowed),
        peer(&many, &keys, 1, SPAN, Expect::Allowed),
    ];
    let measured = interleave(peers, ROUNDS);
    if let [one, many] = &measured[..] {
        let ratio = Spread::of_ratios(many, one);
        table.row(&[&spreads(&measured), &(ratio, Target::AtMost(1.15))]);
    }
    Ok(table)
}

/// Ten million decisions on a hot key, for a profiler:
/// `valgrind --tool=callgrind target/release/tollgate-bench alone "spin tollgate"`.
pub(crate) fn spin(side: &str) -> Result<Vec<f64>, Failure> {
    let ours = Tollgate::new(BUCKET, Bucket::ENDLESS.ours(), 1)?;
    let theirs = Governor::<String>::new(Bucket::ENDLESS.theirs()?);
    let allowed = match side {
        "tollgate" => side::spin(&ours),
        "two" => side::spin(&Two::new(Bucket::ENDLESS.ours(), Bucket::ENDLESS.ours(), 1)?),
        "governor" => side::spin(&theirs),
        _ => return Err(format!("there is no limiter `{side}`").into()),
    };
    Ok(vec![allowed])
}
