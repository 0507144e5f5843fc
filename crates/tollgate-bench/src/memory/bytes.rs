//! Bytes per key, with each limiter in its own process.

use std::hint::black_box;

use tollgate::policy::{Algorithm, Refill};

use super::side::{Keys, Side, Text};
use super::sides::{Bucket, Governor, Tollgate};
use crate::report::{Table, Target};
use crate::rounds::Spread;
use crate::{Counter, Failure, process};

const COUNT: u32 = 1_000_000;

const OURS: &str = "tollgate";
const STRINGS: &str = "governor-strings";
const INLINE: &str = "governor-inline";

pub(super) fn table() -> Result<Table, Failure> {
    let mut table = Table::new(
        "Bytes per key, with a million keys",
        "limiter | resident | on the heap | resident × governor | target | met",
    );
    let resident = |side: &str| -> Result<f64, Failure> {
        let bytes = process::alone(&format!("bytes {side}"))?;
        Ok(bytes.first().copied().unwrap_or(f64::NAN))
    };
    let reference = resident(STRINGS)?;
    for (name, side, target) in [
        ("Tollgate", OURS, Target::AtMost(0.75)),
        ("governor, `String` keys", STRINGS, Target::None),
        ("governor, `[u8; 13]` keys", INLINE, Target::None),
    ] {
        let bytes = resident(side)?;
        let heap = process::count(&format!("bytes {side}"))?;
        let ratio = Spread::of([bytes / reference]);
        let bytes = [(Some(bytes), 1), (heap, 1), (Some(ratio.median), 2)];
        table.row(&[&name, &bytes, &target.met(ratio)]);
    }
    Ok(table)
}

/// Resident bytes per key. Needs its own process.
pub(crate) fn resident(side: &str) -> Result<Vec<f64>, Failure> {
    let mut grown = Ok(0.0);
    with_keys(side, |fill| {
        grown = process::memory("VmRSS").and_then(|before| {
            fill();
            Ok(process::memory("VmRSS")? - before)
        });
    })?;
    Ok(vec![grown? / f64::from(COUNT)])
}

/// Heap bytes per key, measured by the counting program.
pub(crate) fn counted(side: &str, counter: Counter) -> Result<f64, Failure> {
    let mut bytes = 0;
    with_keys(side, |fill| bytes = counter(fill).1)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Ok(bytes as f64 / f64::from(COUNT))
}

/// Passes a function to `measure` that fills a limiter with keys. Drops the limiter after `measure`
/// has returned.
fn with_keys(side: &str, measure: impl FnOnce(&mut dyn FnMut())) -> Result<(), Failure> {
    let bucket = Algorithm::TokenBucket { refill: Refill::Greedy };
    match side {
        OURS => fill(&Tollgate::new(bucket, Bucket::LASTING.ours(), COUNT as usize)?, measure),
        STRINGS => fill(&Governor::<String>::new(Bucket::LASTING.theirs()?), measure),
        INLINE => fill(&Governor::<[u8; 13]>::new(Bucket::LASTING.theirs()?), measure),
        _ => return Err(format!("there is no limiter `{side}`").into()),
    }
    Ok(())
}

fn fill<S: Side>(side: &S, measure: impl FnOnce(&mut dyn FnMut())) {
    let keys = Keys::new(COUNT);
    // A first insertion outside of the measurement, so the shuffled numbers do not count as keys.
    keys.insert(&Nothing);
    measure(&mut || keys.insert(side));
    black_box(side);
}

/// A limiter that stores no keys.
struct Nothing;

impl Side for Nothing {
    type Buffer = ();

    fn decide(&self, text: &Text, (): &mut ()) -> bool {
        black_box(text).len() == 13
    }
}
