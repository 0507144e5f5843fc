//! A decision in memory: Tollgate compared with governor.

pub(crate) mod limiters;
pub(crate) mod work;

use std::hint::black_box;
use std::time::Duration;

use tollgate::policy::{Algorithm, LeakyMode, Lease, Refill, Resolution};
use tollgate::store::Micros;
use tollgate::{MemoryStore, Policy, Quota};

use self::limiters::{
    BUCKET, Bucket, Limiter, Text, acquire, global, governor, governor_direct, governor_inline,
    governor_until_ready, governors, several, store, tenants, tollgate,
};
use self::work::Keys;
use crate::clock::Ticking;
use crate::report::{Goal, OURS, Options, Page, Table};
use crate::rounds::Side;
use crate::{Counter, Failure, process};

const ROUNDS: usize = 40;

const GOVERNOR: &str = "governor, `String`";
const INLINE: &str = "governor, `[u8; 13]`";
const DIRECT: &str = "governor, no key";

/// One thread.
const ONE: usize = 1;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut page = Page::new(options, ROUNDS);
    page.table("Token bucket, all allowed", "keys | threads | limiter", "ns", keys)?;
    page.table(
        "One quota without a key, and a hot key with leases of 1 % for each thread",
        "threads | limiter",
        "ns",
        hot,
    )?;
    page.table(
        "All algorithms, one hot key, one thread, beside governor's token bucket",
        "answer | quota | limiter",
        "ns",
        algorithms,
    )?;
    page.table(
        "Several policies per request, one global and the others per key, one thread",
        "keys | policies | limiter",
        "ns",
        policies,
    )?;
    page.table(
        "100 000 keys of one policy with a quota each, one thread",
        "quotas",
        "ns",
        |table| {
            let (keys, quota) = (Keys::new(100_000), Bucket::LASTING.ours());
            let side = |name, quotas| {
                Ok::<_, Failure>(keys.side(name, ONE, true, tenants(100_000, quota, quotas)?))
            };
            let goal = Goal::at_most("ns", 1.15).of("5 000").against("one");
            table.ratio("× one", "ns", "one");
            table.measure(&[], vec![side("one", 1)?, side("5 000", 5_000)?], &[goal])
        },
    )?;
    page.table("A call that does not wait, one hot key, one task", "limiter", "ns", |table| {
        const UNTIL_READY: &str = "governor, `until_key_ready`";
        let (keys, quota) = (Keys::new(1), Bucket::ENDLESS);
        let policy = Policy::token_bucket("bench", quota.ours())?;
        let sides = vec![
            keys.side("Tollgate, `Limiter::acquire`", ONE, true, acquire(policy)?),
            keys.side(UNTIL_READY, ONE, true, governor_until_ready(quota.theirs()?)),
        ];
        table.ratio("× governor", "ns", UNTIL_READY).measure(&[], sides, &[])
    })?;
    let columns = "resident bytes | bytes on the heap";
    page.table("Bytes per key, with a million keys", "limiter", columns, |table| {
        let side = |name, case: &'static str| {
            Side::new(name, move || {
                let resident = process::alone(&format!("bytes {case}"))?;
                let heap = process::count(&format!("bytes {case}"))?;
                Ok([resident, vec![heap.unwrap_or(f64::NAN)]].concat())
            })
        };
        let sides = [side(OURS, "ours"), side(GOVERNOR, "strings"), side(INLINE, "inline")];
        let goal = Goal::at_most("resident bytes", 0.75).against(GOVERNOR);
        table.rounds = 1;
        table.ratio("resident × governor", "resident bytes", GOVERNOR);
        table.measure(&[], sides.into(), &[goal])
    })?;
    page.write("memory", include_str!("../../methods/memory.md"))
}

/// A bucket per key.
fn bucket(keys: u32, quota: Quota) -> Result<impl Limiter, Failure> {
    Ok(tollgate(store(keys), Policy::new("bench", quota, BUCKET)?))
}

/// The same keys under all limiters.
fn keys(table: &mut Table) -> Result<(), Failure> {
    table.ratio("× `String`", "ns", GOVERNOR).ratio("× `[u8; 13]`", "ns", INLINE);
    for (count, quota, most) in [
        (1, Bucket::ENDLESS, 0.7),
        (100_000, Bucket::LASTING, 0.6),
        (1_000_000, Bucket::LASTING, 0.7),
    ] {
        let keys = Keys::new(count);
        for threads in [1, 2] {
            let sides = vec![
                keys.side(OURS, threads, true, bucket(count, quota.ours())?),
                keys.side(GOVERNOR, threads, true, governor(quota.theirs()?)),
                keys.side(INLINE, threads, true, governor_inline(quota.theirs()?)),
            ];
            let goal = Goal::at_most("ns", most).against(GOVERNOR);
            table.measure(&[&count, &threads], sides, &[goal])?;
        }
    }
    Ok(())
}

/// A policy without a key, and leases per thread.
fn hot(table: &mut Table) -> Result<(), Failure> {
    const GLOBAL: &str = "Tollgate, a policy without a key";
    const LEASED: &str = "Tollgate, leases for each thread";
    let (keys, quota) = (Keys::new(1), Bucket::ENDLESS);
    table.ratio("× `String`", "ns", GOVERNOR).ratio("× no key", "ns", DIRECT);
    for (threads, goal) in
        [(1, Goal::at_most("ns", 0.5).of(GLOBAL)), (2, Goal::at_most("ns", 0.15).of(LEASED))]
    {
        let policy = Policy::token_bucket("bench", quota.ours())?.with_lease(Lease::of(1, 100))?;
        let leased = tollgate(MemoryStore::new().with_thread_leases(), policy);
        let sides = vec![
            keys.side(GLOBAL, threads, true, global(quota.ours())?),
            keys.side(LEASED, threads, true, leased),
            keys.side(GOVERNOR, threads, true, governor(quota.theirs()?)),
            keys.side(DIRECT, threads, true, governor_direct(quota.theirs()?)),
        ];
        table.measure(&[&threads], sides, &[goal.against(GOVERNOR)])?;
    }
    Ok(())
}

const LOG: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Auto };
const EXACT: &str = "sliding window log, exact";

/// The algorithms with a state of fixed size.
const SMALL: [(&str, Algorithm); 6] = [
    ("token bucket, greedy", BUCKET),
    ("token bucket, interval", Algorithm::TokenBucket { refill: Refill::Interval }),
    ("leaky bucket, meter", Algorithm::LeakyBucket { mode: LeakyMode::Meter }),
    ("leaky bucket, queue", Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } }),
    ("fixed window counter", Algorithm::FixedWindowCounter),
    ("sliding window counter", Algorithm::SlidingWindowCounter),
];

fn algorithms(table: &mut Table) -> Result<(), Failure> {
    const COARSE: &str = "sliding window log, thousandths";
    let keys = Keys::new(1);
    let real = |algorithm, quota| {
        Ok::<_, Failure>(tollgate(store(1), Policy::new("bench", quota, algorithm)?))
    };
    // Each decision takes a microsecond of the clock, so a log with a unit per microsecond removes
    // an entry and adds an entry.
    let log = |entries, window| {
        let store = MemoryStore::builder().clock(Ticking::each(1, Micros::new(1))).build();
        Ok::<_, Failure>(tollgate(store, Policy::new("bench", Quota::new(entries, window), LOG)?))
    };
    table.ratio("× governor", "ns", GOVERNOR);
    for (answer, bucket, name) in
        [("allowed", Bucket::ENDLESS, "10^9 per s"), ("denied", Bucket::SPENT, "1 per h")]
    {
        let is_allowed = answer == "allowed";
        let side = |name, limiter| keys.side(name, ONE, is_allowed, limiter);
        let mut sides = vec![keys.side(GOVERNOR, ONE, is_allowed, governor(bucket.theirs()?))];
        for (name, algorithm) in SMALL {
            sides.push(side(name, real(algorithm, bucket.ours())?));
        }
        if is_allowed {
            sides.push(side(COARSE, real(LOG, bucket.ours())?));
        }
        let goal = |name| Goal::at_most("ns", 1.0).of(name).against(GOVERNOR);
        let goals: Vec<_> = SMALL.iter().map(|(name, _)| goal(*name)).collect();
        table.measure(&[&answer, &name], sides, &[&goals[..], &[goal(COARSE)]].concat())?;
        for entries in [100, 1_000] {
            let micros = if is_allowed { entries } else { 3_600_000_000 };
            let limiter = log(entries, Duration::from_micros(micros))?;
            let sides = vec![
                keys.side(GOVERNOR, ONE, is_allowed, governor(bucket.theirs()?)),
                keys.side(EXACT, ONE, is_allowed, limiter),
            ];
            let window = if is_allowed { format!("{micros} µs") } else { "h".to_owned() };
            let quota = format!("{entries} per {window}, an entry each");
            table.measure(&[&answer, &quota], sides, &[goal(EXACT)])?;
        }
    }
    Ok(())
}

fn policies(table: &mut Table) -> Result<(), Failure> {
    const IN_SEQUENCE: &str = "governor, in sequence";
    table.ratio("× governor", "ns", IN_SEQUENCE);
    for (count, quota) in [(1, Bucket::ENDLESS), (100_000, Bucket::LASTING)] {
        let keys = Keys::new(count);
        let (global, each) = (Bucket::ENDLESS.ours(), quota.ours());
        let mut measure = |policies: usize, ours, goals: &[Goal]| {
            let theirs = governors(policies, Bucket::ENDLESS.theirs()?, quota.theirs()?);
            let sides = vec![ours, keys.side(IN_SEQUENCE, ONE, true, theirs)];
            table.measure(&[&count, &policies], sides, goals)
        };
        let goal = Goal::at_most("ns", 1.0).against(IN_SEQUENCE);
        let two = several::<2>(count, global, each)?;
        measure(2, keys.side(OURS, ONE, true, two), &[goal])?;
        let three = several::<3>(count, global, each)?;
        measure(3, keys.side(OURS, ONE, true, three), &[])?;
        let four = several::<4>(count, global, each)?;
        measure(4, keys.side(OURS, ONE, true, four), &[])?;
    }
    Ok(())
}

/// Ten million decisions on a hot key, for a profiler:
/// `valgrind --tool=callgrind target/release/tollgate-bench alone "spin tollgate"`.
pub(crate) fn spin(side: &str) -> Result<Vec<f64>, Failure> {
    let (quota, theirs) = (Bucket::ENDLESS.ours(), Bucket::ENDLESS.theirs()?);
    let allowed = match side {
        "tollgate" => work::spin(bucket(1, quota)?),
        "two" => work::spin(several::<2>(1, quota, quota)?),
        "governor" => work::spin(governor(theirs)),
        _ => return Err(format!("there is no limiter `{side}`").into()),
    };
    Ok(vec![allowed])
}

/// The keys of which the bytes are measured.
const MILLION: u32 = 1_000_000;

/// Resident bytes per key. Needs its own process.
pub(crate) fn resident(side: &str) -> Result<Vec<f64>, Failure> {
    let mut grown = Ok(0.0);
    with_keys(side, |fill| {
        grown = process::memory("self", "VmRSS").and_then(|before| {
            fill();
            Ok(process::memory("self", "VmRSS")? - before)
        });
    })?;
    Ok(vec![grown? / f64::from(MILLION)])
}

/// Heap bytes per key, measured by the counting program.
pub(crate) fn counted(side: &str, counter: Counter) -> Result<f64, Failure> {
    let mut bytes = 0;
    with_keys(side, |fill| bytes = counter(fill).1)?;
    Ok(bytes as f64 / f64::from(MILLION))
}

/// Passes a function to `measure` that fills a limiter with keys. Drops the limiter after `measure`
/// has returned.
fn with_keys(side: &str, measure: impl FnOnce(&mut dyn FnMut())) -> Result<(), Failure> {
    fn fill(limiter: impl Limiter, measure: impl FnOnce(&mut dyn FnMut())) {
        let keys = Keys::new(MILLION);
        // A first insertion outside of the measurement, so the shuffled numbers do not count as
        // keys.
        keys.insert(&|text: &Text, _: &mut String| black_box(text).len() == 13);
        measure(&mut || keys.insert(&limiter));
        black_box(&limiter);
    }
    match side {
        "ours" => fill(bucket(MILLION, Bucket::LASTING.ours())?, measure),
        "strings" => fill(governor(Bucket::LASTING.theirs()?), measure),
        "inline" => fill(governor_inline(Bucket::LASTING.theirs()?), measure),
        _ => return Err(format!("there is no limiter `{side}`").into()),
    }
    Ok(())
}
