//! A store that receives far more keys than it may hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::{Charge, Decision};
use tollgate::{MemoryStore, Policy, Quota, Store};

use crate::memory::limiters::{Bucket, Limiter, Text, governor, tollgate};
use crate::memory::work::{text, write_text};
use crate::report::{Goal, OURS, Options, Page};
use crate::rounds::{Side, shuffled};
use crate::{Failure, process};

const FLOOD: u32 = 10_000_000;
const MAX_KEYS: u32 = 1_000_000;
const MAX_BYTES: u32 = 256 << 20;
const LIVE: u32 = 1_000;

/// The number of runs per side. A single run is too noisy.
const RUNS: usize = 3;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut page = Page::new(options, RUNS);
    let columns = "ns per new key, first million | ns per new key, the others | \
                   median ns of a live key, before | during | p99 before | p99 during | \
                   keys at the end | MiB resident at the end | MiB at most | changed answers";
    page.table("Ten million keys", "limiter", columns, |table| {
        let side = |name, case| Side::new(name, move || process::alone(case));
        let sides = vec![side(OURS, "flood ours"), side("governor", "flood theirs")];
        let mib = f64::from(MAX_BYTES >> 20);
        let goals = [
            Goal::at_most("keys at the end", f64::from(MAX_KEYS)),
            Goal::at_most("MiB at most", mib),
            Goal::at_most("changed answers", 0.0),
        ];
        table.measure(&[], sides, &goals)
    })?;
    page.write("flood", include_str!("../methods/flood.md"))
}

/// Floods one side, in its own process.
pub(crate) fn alone(side: &str) -> Result<Vec<f64>, Failure> {
    let resident = process::memory("self", "VmRSS")?;
    let grown =
        |line| Ok::<_, Failure>((process::memory("self", line)? - resident) / f64::from(1 << 20));
    let sizes = |keys: f64| Ok::<_, Failure>([keys, grown("VmRSS")?, grown("VmHWM")?]);
    if side != "ours" {
        let mut numbers = flood(governor(Bucket::LASTING.theirs()?));
        numbers.extend(sizes(f64::from(FLOOD + LIVE))?);
        return Ok(numbers);
    }
    let store =
        MemoryStore::builder().max_keys(MAX_KEYS as usize).max_bytes(MAX_BYTES as usize).build();
    let victims = Victims::new(&store)?;
    let before = victims.answers()?;
    let policy = Policy::token_bucket("bench", Bucket::LASTING.ours())?;
    let mut numbers = flood(tollgate(store.clone(), policy));
    numbers.extend(sizes(store.stats().keys as f64)?);
    let after = victims.answers()?;
    numbers
        .push(before.iter().zip(&after).filter(|(before, after)| before != after).count() as f64);
    Ok(numbers)
}

/// Two clients that have used quota before the flood.
struct Victims<'a> {
    store: &'a MemoryStore,
    policy: Policy,
    keys: [Key; 2],
}

impl<'a> Victims<'a> {
    fn new(store: &'a MemoryStore) -> Result<Self, Failure> {
        // The refill is so slow that no unit is refilled during the run.
        let policy = Policy::token_bucket("victims", Quota::per_day(100))?;
        let victims = Self { store, policy, keys: [Key::new("spent"), Key::new("half spent")] };
        for (key, cost) in victims.keys.iter().zip([100, 50]) {
            let charge = Charge::new(&victims.policy, key, Cost::new(cost));
            store.decide(&[charge]).into_inner()?;
        }
        Ok(victims)
    }

    /// Whether each client's request is admitted, and its remaining units.
    fn answers(&self) -> Result<Vec<(bool, u64)>, Failure> {
        let answer = |key| -> Result<_, Failure> {
            // The cost exceeds the remaining units of both, so this request is not charged.
            let charge = Charge::new(&self.policy, key, Cost::new(60));
            let verdict = self.store.decide(&[charge]).into_inner()?;
            let left =
                verdict.decisions().first().map_or(0, |decision: &Decision| decision.remaining);
            Ok((verdict.is_admitted(), left))
        };
        self.keys.iter().map(answer).collect()
    }
}

/// Measures the first six numbers.
fn flood(limiter: impl Limiter) -> Vec<f64> {
    let live: Vec<_> = (0..LIVE).map(|number| text(FLOOD + number)).collect();
    let order = shuffled(LIVE, 3);
    for text in &live {
        limiter(text, &mut String::new());
    }
    let ended = AtomicBool::new(false);
    let watch = |until: &dyn Fn() -> bool| {
        // A count per nanosecond, because a growing list would add to the measured time and memory.
        let (mut counts, mut sum, mut buffer) = (vec![0_u32; 1 << 16], 0, String::new());
        for number in order.iter().cycle() {
            let begin = Instant::now();
            limiter(&live[*number as usize], &mut buffer);
            let nanos = usize::try_from(begin.elapsed().as_nanos()).unwrap_or(usize::MAX);
            counts[nanos.min((1 << 16) - 1)] += 1;
            sum += 1;
            if number % 64 == 0 && until() {
                break;
            }
        }
        [50, 99].map(|percent| quantile(&counts, sum / 100 * percent))
    };
    let started = Instant::now();
    let calm = watch(&|| started.elapsed() > Duration::from_millis(300));
    let insert = |from: u32, to: u32| {
        let (mut text, mut buffer) = (Text::new(), String::new());
        let begin = Instant::now();
        for number in from..to {
            // The factor has no common divisor with the number of keys. So each key occurs one
            // time, in a scattered order.
            let number = u64::from(number) * 7_654_321 % u64::from(FLOOD);
            write_text(number as u32, &mut text);
            limiter(&text, &mut buffer);
        }
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(to - from)
    };
    let (first, rest, storm) = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&|| ended.load(Ordering::Relaxed)));
        let (first, rest) = (insert(0, MAX_KEYS), insert(MAX_KEYS, FLOOD));
        ended.store(true, Ordering::Relaxed);
        (first, rest, watching.join().expect("the observer does not panic"))
    });
    vec![first, rest, calm[0], storm[0], calm[1], storm[1]]
}

/// The nanoseconds that `rank` decisions did not exceed.
fn quantile(counts: &[u32], rank: u64) -> f64 {
    let mut below = 0;
    let nanos = counts.iter().take_while(|count| {
        below += u64::from(**count);
        below < rank
    });
    f64::from(u32::try_from(nanos.count()).unwrap_or(u32::MAX))
}
