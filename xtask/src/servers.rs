//! Other server versions than the installed ones, from Debian releases.
//!
//! They are not installed. `fetch-server.sh` unpacks the packages below `target/servers`, and the
//! program's folder is the first on the tests' `PATH`, so they start it as `redis-server`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::process::Command;

use crate::process::Failure;
use crate::workspace;

/// The servers that users have, each with the Debian releases that contain it and its dependencies.
pub(crate) const SERVERS: [(&str, &str); 5] = [
    ("redis-6.0", "bullseye"),
    ("redis-7.0", "bookworm"),
    ("redis-8.0", "trixie"),
    ("valkey-8.0", "bookworm bookworm-backports"),
    ("valkey-8.1", "trixie"),
];

/// Returns a `PATH` that finds this server first. Fetches the server if necessary.
pub(crate) fn before(path: &OsStr, name: &str, suites: &str) -> Result<OsString, Failure> {
    let folder = workspace::target_folder()?.join("servers").join(name);
    let (product, version) = name.split_once('-').unwrap_or((name, ""));
    let mut fetch = Command::new("sh");
    fetch.args(["-c", include_str!("fetch-server.sh"), "fetch-server.sh"]).arg(&folder);
    let status = fetch.args([suites, &format!("{product}-server"), version]).status();
    if !status.is_ok_and(|status| status.success()) {
        return Err(Failure::Unready(format!("cannot fetch {name}; see the message above")));
    }
    env::join_paths(iter::once(folder.join("bin")).chain(env::split_paths(path)))
        .map_err(|error| Failure::Unready(error.to_string()))
}

/// The tests that run against each server, for `cargo test` and for nextest.
pub(crate) const TESTS: [&str; 5] = [
    "--package=tollgate-redis",
    "--package=tollgate-simulator",
    "--package=tollgate-test-servers",
    "--test=*",
    "--all-features",
];
