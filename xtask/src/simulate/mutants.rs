//! Seeded bugs that the simulator must find.
//!
//! Each bug replaces a text in a copy of the tree. Some of these bugs were once real.

use std::fs;
use std::path::Path;

use super::export;
use crate::process::{self, Failure};

/// A seeded bug.
struct Mutant {
    /// A description.
    bug: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// The number of seeds that may be needed to find a bug.
const SEEDS: &str = "2000";

/// Bugs that the simulator does not find reliably yet.
const MISSED: &[&str] = &[
    "denials are remembered that were on their way during a reset",
    "a block has no margin for clocks that are slewed",
];

const MUTANTS: &[Mutant] = &[
    Mutant {
        bug: "a call whose answer is lost is sent again",
        file: "crates/tollgate-redis/src/node.rs",
        from: "answer.as_ref().err().is_some_and(CommandError::is_no_script)",
        to: "answer.as_ref().err().is_some_and(|it| it.is_no_script() || it.is_silence())",
    },
    Mutant {
        bug: "a lost answer means that nothing was charged",
        file: "crates/tollgate-redis/src/failure.rs",
        from: "CommandError::Lost(reason) => Self::Lost(reason)",
        to: "CommandError::Lost(reason) => Self::Refused(Refusal::Other(reason))",
    },
    Mutant {
        bug: "an expired request was not charged, although it was sent",
        file: "crates/tollgate-redis/src/ticket.rs",
        from: "Err(if is_sent {\n                StoreError::maybe_charged(STORE, \"no answer in time\")",
        to: "Err(if is_sent {\n                StoreError::not_charged(STORE, \"no answer in time\")",
    },
    Mutant {
        bug: "calls have no deadline",
        file: "crates/tollgate-redis/src/combiner/call.rs",
        from: "batch.set_deadline(first.and_then(|first| node.at_server(first)));",
        to: "let _ = (first, batch);",
    },
    Mutant {
        bug: "a call has the deadline of its latest request",
        file: "crates/tollgate-redis/src/combiner/call.rs",
        from: "let first = tickets.iter().map(|ticket| ticket.deadline).min();",
        to: "let first = tickets.iter().map(|ticket| ticket.deadline).max();",
    },
    Mutant {
        bug: "each process grants half of the quota during an outage",
        file: "crates/tollgate-core/src/fallback.rs",
        from: "self.store.replicas()?.get()",
        to: "self.store.replicas()?.get().min(2)",
    },
    Mutant {
        bug: "the slowest answer sets the server's clock",
        file: "crates/tollgate-redis/src/server_clock.rs",
        from: "|least| least.min(sample)",
        to: "|least| least.max(sample)",
    },
    Mutant {
        bug: "a step of the server's clock is not noticed",
        file: "crates/tollgate-redis/src/combiner/answers.rs",
        from: "if is_clock_wrong {",
        to: "if is_clock_wrong && false {",
    },
    Mutant {
        bug: "requests of a call wait longer than their timeout",
        file: "crates/tollgate-redis/src/combiner/deadlines.rs",
        from: "late.push(Arc::clone(ticket));",
        to: "",
    },
    Mutant {
        bug: "a silent connection is never replaced",
        file: "crates/tollgate-redis/src/node.rs",
        from: "if (is_led_elsewhere || is_silent) && is_due {",
        to: "if is_led_elsewhere && !is_silent && is_due {",
    },
    Mutant {
        bug: "an open breaker stays open",
        file: "crates/tollgate-redis/src/node_breaker.rs",
        from: "self.is_open.store(breaker.state().is_open(), Ordering::Relaxed);",
        to: "",
    },
    Mutant {
        bug: "the answers of a call are in the order of its runs",
        file: "crates/tollgate-redis/src/reply.rs",
        from: "if self.run_of.is_sorted() {",
        to: "if self.run_of.is_sorted() || !rows.is_empty() {",
    },
    Mutant {
        bug: "a denial is remembered for a second from its answer on",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "until: call.start.saturating_add(stands.get()),",
        to: "until: call.end.saturating_add(stands.get()),",
    },
    Mutant {
        bug: "a denial is remembered for longer than the key has no units",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "for bound in [lease, frozen].into_iter().flatten() {",
        to: "let _ = frozen;\n        for bound in [lease].into_iter().flatten() {",
    },
    Mutant {
        bug: "denials are remembered that were on their way during a reset",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "if self.epoch() != ticket.epoch {",
        to: "if self.epoch() < ticket.epoch {",
    },
    Mutant {
        bug: "a reset does not clear the deny cache",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "entries.table.clear();\n        self.count.store(0, Ordering::Relaxed);",
        to: "let _ = &mut entries;",
    },
    Mutant {
        bug: "denials of a policy that settles are remembered",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "            lines.iter().any(settles)",
        to: "            lines.iter().all(|line| settles(line) && false)",
    },
    Mutant {
        bug: "leased units are spent after their block has ended",
        file: "crates/tollgate-redis/src/lease/blocks/mod.rs",
        from: "if now > block.span.last {",
        to: "if now > block.span.lapses + 50_000 {",
    },
    Mutant {
        bug: "a block has no margin for clocks that are slewed",
        file: "crates/tollgate-redis/src/clock.rs",
        from: "if self.is_redis { 0 } else { lasts.div_ceil(MARGIN) }",
        to: "if self.is_redis { 0 } else { lasts / (100 * MARGIN) }",
    },
    Mutant {
        bug: "too few spent units are reported",
        file: "crates/tollgate-redis/src/lease/blocks/mod.rs",
        from: "Spent { id, units: units - left }",
        to: "Spent { id, units: (units - left) / 2 }",
    },
    Mutant {
        bug: "a request that gets no lease puts back more than it took",
        file: "crates/tollgate-redis/src/lease/blocks/mod.rs",
        from: "block.left += taken.units;",
        to: "block.left += 2 * taken.units;",
    },
    Mutant {
        bug: "the local fallback's error forgets a doubtful charge",
        file: "crates/tollgate-core/src/fallback.rs",
        from: "return Err(if self.may_have_charged {",
        to: "return Err(if self.may_have_charged && false {",
    },
    Mutant {
        bug: "a call is not repeated after Redis has forgotten the script",
        file: "crates/tollgate-redis/src/node.rs",
        from: "answer.as_ref().err().is_some_and(CommandError::is_no_script)",
        to: "answer.as_ref().err().is_some_and(|it| it.is_no_script() && false)",
    },
    Mutant {
        bug: "a settlement refunds what it should charge",
        file: "crates/tollgate-redis/src/encode/settle.rs",
        from: "if actual > cost { OWE } else { GIVE_BACK }",
        to: "if actual > cost { GIVE_BACK } else { OWE }",
    },
    Mutant {
        bug: "a remembered denial in shadow mode denies the request",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "|(line, decision): (&Line, &Decision)| line.enforce && decision.denies();",
        to: "|(_, decision): (&Line, &Decision)| decision.denies();",
    },
    Mutant {
        bug: "a denial is remembered for as long as the key has no units",
        file: "crates/tollgate-redis/src/deny_cache.rs",
        from: "let mut stands = Micros::from(self.bound);",
        to: "let mut stands = Micros::from(self.bound * 3_600);",
    },
    Mutant {
        bug: "a redirection to a moved slot is not followed",
        file: "crates/tollgate-redis/src/combiner/redirect.rs",
        from: "Refusal::Moved { to, .. } => {",
        to: "Refusal::Moved { to, .. } if to.is_empty() => {",
    },
    Mutant {
        bug: "a call to a node that has no slot yet does not ask for it",
        file: "crates/tollgate-redis/src/combiner/redirect.rs",
        from: "(topology.named(&Place::of_redirection(to, asked)?)?, true)",
        to: "(topology.named(&Place::of_redirection(to, asked)?)?, false)",
    },
    Mutant {
        bug: "a denial by a later slot does not refund",
        file: "crates/tollgate-redis/src/cross_slot.rs",
        from: "self.refund(before).await;",
        to: "",
    },
    Mutant {
        bug: "a lost refund does not count as a charge",
        file: "crates/tollgate-redis/src/cross_slot.rs",
        from: "may_be_charged |= !self.refund(&verdicts).await;",
        to: "self.refund(&verdicts).await;",
    },
    Mutant {
        bug: "the local fallback grants the whole quota",
        file: "crates/tollgate-core/src/fallback.rs",
        from: "policy.share(share.0, share.1)",
        to: "policy.share(1, 1)",
    },
];

/// Seeds the bugs with `text` in their description.
pub(super) fn run(text: &str) -> Result<(), Failure> {
    let root = process::root();
    let tree = root.join("target/mutants");
    export(&tree)?;
    let mutants: Vec<_> = MUTANTS.iter().filter(|mutant| mutant.bug.contains(text)).collect();
    let mut missed = Vec::new();
    for Mutant { bug, file, from, to } in &mutants {
        println!("\n{bug}");
        let (source, path) = (read(&root, file)?, tree.join(file));
        write(&path, &replace(&source, file, from, to)?)?;
        let is_found = is_found(&tree);
        write(&path, &source)?;
        let is_found = is_found?;
        println!("{}", if is_found { "found" } else { "missed" });
        if !is_found {
            missed.push(*bug);
        }
    }
    println!("\nfound {} of {} bugs", mutants.len() - missed.len(), mutants.len());
    let (known, unexpected): (Vec<&str>, Vec<&str>) =
        missed.into_iter().partition(|bug| MISSED.contains(bug));
    known.iter().for_each(|bug| println!("missed, as before: {bug}"));
    if unexpected.is_empty() {
        return Ok(());
    }
    let unexpected = unexpected.join("\n  ");
    Err(Failure::Broken(format!("the simulator missed these bugs:\n  {unexpected}")))
}

/// Whether the simulator reports a violation in the tree.
fn is_found(tree: &Path) -> Result<bool, Failure> {
    let cargo = |task: &str, rest: &[&str]| {
        let mut command = process::cargo(&[task, "--quiet", "--package", "tollgate-simulator"]);
        // Cargo would take a build with a bug for a build of this tree, so share no target. A little
        // optimization takes less time than it saves.
        command.current_dir(tree).env("CARGO_TARGET_DIR", tree.join("target"));
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").args(rest);
        command
    };
    process::run(&mut cargo("build", &[]))?;
    Ok(!process::status(&mut cargo("run", &["--", "--seeds", SEEDS]))?.success())
}

fn read(root: &Path, file: &str) -> Result<String, Failure> {
    fs::read_to_string(root.join(file))
        .map_err(|error| Failure::Unready(format!("cannot read {file}: {error}")))
}

fn write(path: &Path, source: &str) -> Result<(), Failure> {
    fs::write(path, source)
        .map_err(|error| Failure::Unready(format!("cannot write {}: {error}", path.display())))
}

/// Returns a file's text with the bug.
fn replace(source: &str, file: &str, from: &str, to: &str) -> Result<String, Failure> {
    match source.matches(from).count() {
        1 => Ok(source.replace(from, to)),
        count => Err(Failure::Broken(format!(
            "expected this text once in {file}, found it {count} times:\n{from}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_bugs_are_in_the_list() {
        for missed in MISSED {
            assert!(MUTANTS.iter().any(|mutant| mutant.bug == *missed), "{missed}");
        }
    }

    #[test]
    fn every_bug_changes_one_place() {
        for Mutant { file, from, to, .. } in MUTANTS {
            let source = read(&process::root(), file).unwrap_or_else(|error| panic!("{error}"));
            replace(&source, file, from, to).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
