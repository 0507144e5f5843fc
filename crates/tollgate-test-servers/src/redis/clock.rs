//! Skews a server's wall clock.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Variables that shift a program's wall clock by `ahead` microseconds. The monotonic
/// clock is unaffected, just like on a machine with the wrong time.
pub(super) fn shift(folder: &Path, ahead: i64) -> [(String, String); 2] {
    let [source, library] = ["clock.c", "clock.so"].map(|name| folder.join(name));
    fs::write(&source, SOURCE).expect("a full disk?");
    // Available wherever rustc is, because rustc links with it.
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    let status = compiler.status().expect("cc, which Rust needs too");
    assert!(status.success(), "cc cannot compile clock.c");
    let variables =
        [("LD_PRELOAD", library.display().to_string()), ("AHEAD_MICROS", ahead.to_string())];
    variables.map(|(name, value)| (name.to_owned(), value))
}

const SOURCE: &str = include_str!("clock.c");
