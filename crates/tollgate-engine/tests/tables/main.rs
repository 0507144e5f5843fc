//! What happens to requests, in tables: limits, a script of events, and the outcome of each request.
//!
//! A table has a promise and its limits, and below them scripts with their outcomes:
//!
//! ```text
//! requests wait in the order of arrival: p log 1/10 wait 60
//!     0: a a*2 5: a -1 => gone 0 10
//! ```
//!
//! A script moves the clock by hand. At second 0, this script sends two requests of client `a`, the
//! second one with cost 2. At second 5, a third request arrives, and the first request's caller leaves.
//! `script.rs` describes all events, and [`World::play`] the outcomes.
//!
//! Each script runs in several variants, in which other limits or another order of wakes must change
//! nothing.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

mod law;
mod overridden;
mod permits;
mod primary;
mod script;
mod settling;
mod waiting;
mod world;

use self::world::{Variant, World};

/// Checks each script of a table in each variant.
fn check(table: &str) {
    let (mut row, mut failed) = ("", String::new());
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((script, expected)) = line.split_once(" => ") else {
            row = line;
            continue;
        };
        let (_, limits) = row.split_once(": ").unwrap();
        let outcomes = |variant: Variant| (variant, World::new(limits, variant).play(script));
        let wrong = |(_, outcomes): &(Variant, String)| outcomes != expected;
        if let Some((variant, outcomes)) = Variant::ALL.into_iter().map(outcomes).find(wrong) {
            failed += &format!("\n{row}\n{line}\n    {variant:?}: {outcomes}");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
