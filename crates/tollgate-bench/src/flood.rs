//! A store that receives far more keys than it may hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::{Charge, Decision};
use tollgate::{MemoryStore, Policy, Quota, Store};

use crate::memory::side::{Side, Text, text, write_text};
use crate::memory::sides::{Bucket, Governor};
use crate::report::{self, Table, Target};
use crate::rounds::{Spread, shuffled};
use crate::{Failure, process};

const METHOD: &str = "\
Ten million distinct keys are charged one time each in a `MemoryStore` with room for a million keys
and 256 MiB, under a policy that lets no key expire during the run. A second thread decides on a
thousand live keys before and during the flood, and its times include reading the clock around each
decision. Two victims exist before the flood: the first has used up its quota, the second a part.
governor stores every key without a bound. Each limiter runs in its own process, and resident memory
is measured above the process's memory before the store was created.";

const FLOOD: u32 = 10_000_000;
const MAX_KEYS: u32 = 1_000_000;
const MAX_BYTES: u32 = 256 << 20;
const LIVE: u32 = 1_000;

/// The number of runs per side. A single run is too noisy.
const RUNS: usize = 3;

pub(crate) fn run() -> Result<(), Failure> {
    let mut runs = [vec![], vec![]];
    for _ in 0..RUNS {
        for (side, runs) in ["tollgate", "governor"].iter().zip(&mut runs) {
            runs.push(process::alone(&format!("flood {side}"))?);
        }
    }
    let mut table = Table::new("Ten million keys", "what | Tollgate | governor | target | met");
    let mib = f64::from(1 << 20);
    let held = [
        Target::AtMost(f64::from(MAX_KEYS)),
        Target::AtMost(f64::from(MAX_BYTES) / mib),
        Target::AtMost(f64::from(MAX_BYTES) / mib),
        Target::AtMost(0.0),
    ];
    let none = [Target::None; 6];
    for (index, (name, target)) in NAMES.iter().zip(none.into_iter().chain(held)).enumerate() {
        let spread =
            |runs: &[Vec<f64>]| Spread::of(runs.iter().filter_map(|numbers| numbers.get(index)));
        let [ours, theirs] = [spread(&runs[0]), spread(&runs[1])];
        let theirs = if theirs.median.is_nan() { "–".to_owned() } else { theirs.to_string() };
        table.row(&[name, &ours, &theirs, &target.met(ours)]);
    }
    report::write("flood", METHOD, &[table])
}

/// The names of the numbers in a run, in order. governor lacks the last.
const NAMES: [&str; 10] = [
    "ns per new key, the first million",
    "ns per new key, the other nine million",
    "median ns per decision on a live key, before",
    "median ns per decision on a live key, during",
    "99th percentile, before",
    "99th percentile, during",
    "keys in the store, at the end",
    "MiB resident, at the end",
    "MiB resident, maximum",
    "changed answers to the two victims",
];

/// Floods one side, in its own process.
pub(crate) fn alone(side: &str) -> Result<Vec<f64>, Failure> {
    let resident = process::memory("VmRSS")?;
    let grown = |line| Ok::<_, Failure>((process::memory(line)? - resident) / f64::from(1 << 20));
    match side {
        "tollgate" => {
            let store = MemoryStore::builder()
                .max_keys(MAX_KEYS as usize)
                .max_bytes(MAX_BYTES as usize)
                .build();
            let policy = Policy::token_bucket("bench", Bucket::LASTING.ours())?;
            let flooded = Flooded { store, policy };
            let victims = Victims::new(&flooded.store)?;
            let before = victims.answers()?;
            let mut numbers = flood(&flooded);
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            numbers.push(flooded.store.stats().keys as f64);
            numbers.extend([grown("VmRSS")?, grown("VmHWM")?]);
            let after = victims.answers()?;
            let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
            numbers.push(f64::from(u32::try_from(changed.count())?));
            Ok(numbers)
        }
        "governor" => {
            let flooded = Governor::<String>::new(Bucket::LASTING.theirs()?);
            let mut numbers = flood(&flooded);
            numbers.extend([f64::from(FLOOD + LIVE), grown("VmRSS")?, grown("VmHWM")?]);
            Ok(numbers)
        }
        _ => Err(format!("there is no limiter `{side}`").into()),
    }
}

/// The store under attack, as a limiter.
struct Flooded {
    store: MemoryStore,
    policy: Policy,
}

impl Side for Flooded {
    type Buffer = ();

    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        let key = Key::new(text);
        let verdict = self.store.decide(&[Charge::new(&self.policy, &key, Cost::ONE)]);
        verdict.into_inner().is_ok_and(|verdict| verdict.is_admitted())
    }
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
fn flood<S: Side>(side: &S) -> Vec<f64> {
    let live: Vec<_> = (0..LIVE).map(|number| text(FLOOD + number)).collect();
    let order = shuffled(LIVE, 3);
    let mut buffer = S::Buffer::default();
    for text in &live {
        side.decide(text, &mut buffer);
    }
    let ended = AtomicBool::new(false);
    let watch = |until: &dyn Fn() -> bool| {
        // A count per nanosecond, because a growing list would add to the measured time and memory.
        let mut buffer = S::Buffer::default();
        let (mut counts, mut sum) = (vec![0_u32; 1 << 16], 0);
        for number in order.iter().cycle() {
            let begin = Instant::now();
            side.decide(&live[*number as usize], &mut buffer);
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
        let (mut text, mut buffer) = (Text::new(), S::Buffer::default());
        let begin = Instant::now();
        for number in from..to {
            // The factor has no common divisor with the number of keys. So each key occurs one
            // time, in a scattered order.
            let number = u64::from(number) * 7_654_321 % u64::from(FLOOD);
            write_text(u32::try_from(number).unwrap_or_default(), &mut text);
            side.decide(&text, &mut buffer);
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
