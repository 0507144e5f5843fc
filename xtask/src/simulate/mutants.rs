//! Seeded bugs that the simulator must find.

use std::fs;
use std::path::Path;

use crate::process::{self, Failure};

/// A seeded bug.
struct Mutant<'a> {
    /// A description.
    bug: &'a str,
    file: &'a str,
    from: String,
    to: String,
}

const MUTANTS: &str = include_str!("../../../crates/tollgate-simulator/mutants.txt");

/// The number of seeds that may be needed to find a bug.
const SEEDS: &str = "2000";

fn mutants() -> impl Iterator<Item = Mutant<'static>> {
    MUTANTS.split("\n\n").skip(1).map(|mutant| {
        let mut lines = mutant.lines();
        let (bug, file) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let text = |sign| Vec::from_iter(lines.clone().filter_map(|line| line.strip_prefix(sign)));
        Mutant { bug, file, from: text("- ").join("\n"), to: text("+ ").join("\n") }
    })
}

/// Seeds the bugs with `text` in their description.
pub(super) fn run(text: &str) -> Result<(), Failure> {
    let tree = process::root().join("target/mutants");
    // Files that no longer exist would still be compiled.
    let _ = fs::remove_dir_all(tree.join("crates"));
    process::export(&tree)?;
    let (mut found, mut missed) = (0, String::new());
    for mutant in mutants().filter(|mutant| mutant.bug.contains(text)) {
        println!("\n{}", mutant.bug);
        let (source, path) = (process::read_file(mutant.file)?, tree.join(mutant.file));
        write(&path, &mutant.replace(&source)?)?;
        let is_found = is_found(&tree);
        write(&path, &source)?;
        if is_found? {
            found += 1;
            println!("found");
        } else {
            println!("missed");
            missed = format!("{missed}\n  {}", mutant.bug);
        }
    }
    println!("\nfound {found} bugs");
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::Broken(format!("the simulator missed these bugs:{missed}")))
}

/// Whether the simulator reports a violation in the tree.
fn is_found(tree: &Path) -> Result<bool, Failure> {
    let cargo = |task: &str, rest: &[&str]| {
        let mut command = process::cargo(&[task, "--quiet", "--package", "tollgate-simulator"]);
        // Cargo would mistake a build with a bug for a build of this tree, so share no target. A little
        // optimization takes less time than it saves.
        command.current_dir(tree).env("CARGO_TARGET_DIR", tree.join("target"));
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").args(rest);
        command
    };
    process::run(&mut cargo("build", &[]))?;
    Ok(!process::status(&mut cargo("run", &["--", "--seeds", SEEDS]))?.success())
}

fn write(path: &Path, source: &str) -> Result<(), Failure> {
    fs::write(path, source)
        .map_err(|error| Failure::Unready(format!("cannot write {}: {error}", path.display())))
}

impl Mutant<'_> {
    /// Returns the file's text with the bug.
    fn replace(&self, source: &str) -> Result<String, Failure> {
        let Self { file, from, to, .. } = self;
        match source.matches(from).count() {
            1 if from != to => Ok(source.replace(from, to)),
            count => Err(Failure::Broken(format!(
                "expected this text once in {file}, found it {count} times:\n{from}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_changes_one_place() {
        for mutant in mutants() {
            let source = process::read_file(mutant.file).unwrap();
            mutant.replace(&source).unwrap();
        }
        assert!(mutants().count() > 20);
    }
}
