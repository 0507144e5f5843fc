//! A wall clock that differs from the machine's.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Arguments for `env` that shift a program's wall clock by `ahead` microseconds. They leave the
/// monotonic clock unchanged, like on a machine with a wrong clock.
pub(super) fn shift(folder: &Path, ahead: i64) -> [OsString; 2] {
    let [source, library] = ["clock.c", "clock.so"].map(|name| folder.join(name));
    fs::write(&source, SOURCE).expect("a full disk?");
    // rustc links with the same program.
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    let status = compiler.status().expect("cc, which Rust needs too");
    assert!(status.success(), "cc cannot compile clock.c");
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(library);
    [preload, format!("AHEAD_MICROS={ahead}").into()]
}

const SOURCE: &str = include_str!("clock.c");
