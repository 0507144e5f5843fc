//! Seeded bugs that tests must find.
//!
//! A list has one bug per paragraph: a description, a file, and the lines to replace (`-`) by others
//! (`+`).

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::{self, Failure};

/// A seeded bug.
struct Mutant<'a> {
    /// A description.
    bug: &'a str,
    file: &'a str,
    from: String,
    to: String,
}

fn mutants(list: &str) -> impl Iterator<Item = Mutant<'_>> {
    list.split("\n\n").skip(1).map(|mutant| {
        let mut lines = mutant.lines();
        let (bug, file) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let text = |sign| Vec::from_iter(lines.clone().filter_map(|line| line.strip_prefix(sign)));
        Mutant { bug, file, from: text("- ").join("\n"), to: text("+ ").join("\n") }
    })
}

/// Seeds the bugs with `text` in their description, and fails if `is_found` misses one.
pub(crate) fn run(
    finder: &str,
    list: &str,
    text: &str,
    is_found: impl Fn(&Path) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let tree = process::root().join("target/mutants");
    // Files that no longer exist would still be compiled.
    let _ = fs::remove_dir_all(tree.join("crates"));
    process::export(&tree)?;
    let (mut found, mut missed) = (0, String::new());
    for mutant in mutants(list).filter(|mutant| mutant.bug.contains(text)) {
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
    Err(Failure::Broken(format!("{finder} missed these bugs:{missed}")))
}

/// A cargo command for a tree with a bug.
pub(crate) fn cargo(tree: &Path, args: &[&str]) -> Command {
    let mut command = process::cargo(args);
    // Cargo would mistake a build with a bug for a build of this tree, so share no target. A little
    // optimization takes less time than it saves.
    command.current_dir(tree).env("CARGO_TARGET_DIR", tree.join("target"));
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    command
}

/// Counts a list's bugs.
///
/// # Panics
/// If a bug does not change exactly one place.
#[cfg(test)]
pub(crate) fn check(list: &str) -> usize {
    for mutant in mutants(list) {
        let source = process::read_file(mutant.file).expect("a file");
        mutant.replace(&source).expect("one place");
    }
    mutants(list).count()
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
