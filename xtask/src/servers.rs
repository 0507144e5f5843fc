//! Servers in other versions than the machine's own, from Debian's releases.
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

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    /// Runs the script's functions with a fake mirror list and a fake tree.
    fn shell(commands: &str, folder: &Path) -> String {
        let script = include_str!("fetch-server.sh");
        let functions = script.split("# ---").next().unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{functions}\n{commands}")]).current_dir(folder);
        let output = shell.output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn mirror_is_found_in_both_formats() {
        let folder = tempfile::tempdir().unwrap();
        for (sources, expected) in [
            (
                "# deb http://old.example/debian bookworm main\n\
                 deb [signed-by=/k.gpg] https://mirror.example/debian/ bookworm main\n",
                "https://mirror.example/debian/",
            ),
            (
                "Types: deb\nURIs: http://mirror.example/debian-security http://mirror.example/debian\n",
                "http://mirror.example/debian",
            ),
            ("deb http://mirror.example/ubuntu noble main\n", ""),
            ("", ""),
        ] {
            fs::write(folder.path().join("sources.list"), sources).unwrap();
            let found = shell("mirror_in sources.list absent.list", folder.path());
            assert_eq!(found, expected, "{sources}");
        }
    }

    #[test]
    fn loader_is_found_in_old_and_new_releases() {
        for machine in ["lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"] {
            let tree = tempfile::tempdir().unwrap();
            let libraries = tree.path().join(machine);
            fs::create_dir_all(&libraries).unwrap();
            assert_eq!(shell("loader_in .", tree.path()), "");
            fs::write(libraries.join("ld-linux-machine.so.1"), "").unwrap();
            // A link out of the tree is not the loader.
            symlink("/nowhere", libraries.join("ld-linux-a.so.1")).unwrap();
            let expected = format!("./{machine}/ld-linux-machine.so.1");
            assert_eq!(shell("loader_in .", tree.path()), expected);
        }
    }
}
