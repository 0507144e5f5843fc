//! Servers in other versions than the machine's own, from Debian's releases.
//!
//! They are not installed. The packages are unpacked below `target/servers`, and the server runs
//! with the loader and libraries that it was built for. Its program folder is the first on the
//! tests' `PATH`, so they start it as `redis-server`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::process::{self, Failure};
use crate::workspace;

/// A server that users have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    /// The Debian releases that contain it and its dependencies.
    suites: &'static str,
    package: &'static str,
    /// The start of the version that it reports.
    version: &'static str,
}

const SERVERS: &[Server] = &[
    Server {
        name: "redis-6.0",
        suites: "bullseye",
        package: "redis-server",
        version: "Redis server v=6.0.",
    },
    Server {
        name: "redis-7.0",
        suites: "bookworm",
        package: "redis-server",
        version: "Redis server v=7.0.",
    },
    Server {
        name: "redis-8.0",
        suites: "trixie",
        package: "redis-server",
        version: "Redis server v=8.0.",
    },
    Server {
        name: "valkey-8.0",
        suites: "bookworm bookworm-backports",
        package: "valkey-server",
        version: "Valkey server v=8.0.",
    },
    Server {
        name: "valkey-8.1",
        suites: "trixie",
        package: "valkey-server",
        version: "Valkey server v=8.1.",
    },
];

impl ValueEnum for Server {
    fn value_variants<'a>() -> &'a [Self] {
        SERVERS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name))
    }
}

/// The tests that run against each server, for `cargo test` and for nextest.
pub(crate) const TESTS: [&str; 7] = [
    "--package",
    "tollgate-redis",
    "--package",
    "tollgate-test-servers",
    "--test",
    "*",
    "--all-features",
];

impl Server {
    /// Returns a `PATH` that finds this server first. Fetches the server if necessary.
    pub(crate) fn before(self, path: &OsStr) -> Result<OsString, Failure> {
        let folders = iter::once(self.provide()?).chain(env::split_paths(path));
        env::join_paths(folders).map_err(|error| {
            Failure::Unready(format!("cannot put {} on the PATH: {error}", self.name))
        })
    }

    /// Returns a folder in which the program `redis-server` is this server. Fetches the server
    /// unless the folder contains it.
    fn provide(self) -> Result<PathBuf, Failure> {
        let folder = Path::new(&workspace::target_folder()?).join("servers").join(self.name);
        let programs = folder.join("bin");
        if !programs.join(PROGRAM).is_file() {
            println!("Fetching {}; nothing is installed.", self.name);
            // An earlier attempt may have stopped halfway.
            let _ = fs::remove_dir_all(&folder);
            self.fetch(&folder)?;
        }
        let version = process::read(Command::new(programs.join(PROGRAM)).arg("--version"))?;
        if !version.starts_with(self.version) {
            return Err(Failure::Broken(format!(
                "{} is `{}` and not `{}…`\n\
                 cure: remove {}; if that does not help, Debian has another version by now",
                self.name,
                version.trim(),
                self.version,
                folder.display(),
            )));
        }
        Ok(programs)
    }

    fn fetch(self, folder: &Path) -> Result<(), Failure> {
        let sources = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nSigned-By: {KEYRING}\n",
            mirror()?,
            self.suites,
        );
        if !Path::new(KEYRING).is_file() {
            return Err(Failure::Unready(format!(
                "no {KEYRING}, which tells packages of Debian from forged ones\n\
                 cure: apt-get install debian-archive-keyring"
            )));
        }
        let apt = folder.join("apt");
        self.download(&apt, &sources)?;
        let tree = folder.join("tree");
        for package in files(&apt.join("archives"))? {
            if package.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))?;
            }
        }
        self.write_program(folder, &tree)?;
        fs::remove_dir_all(&apt).map_err(|error| cannot_write(&apt, &error))
    }

    /// Downloads and verifies the packages with apt, but without the machine's apt configuration
    /// except its proxy.
    fn download(self, apt: &Path, sources: &str) -> Result<(), Failure> {
        for part in ["lists/partial", "archives/partial"] {
            let part = apt.join(part);
            fs::create_dir_all(&part).map_err(|error| cannot_write(&part, &error))?;
        }
        let installed = TAKEN_FOR_INSTALLED.map(|package| {
            format!(
                "Package: {package}\nStatus: install ok installed\nVersion: 9999\n\
                 Architecture: all\nMaintainer: none\nDescription: not needed\n\n"
            )
        });
        write(&apt.join("status"), &installed.concat())?;
        write(&apt.join("debian.sources"), sources)?;
        let options = [
            ("Dir::State", apt.to_owned()),
            ("Dir::State::status", apt.join("status")),
            ("Dir::Cache", apt.to_owned()),
            ("Dir::Etc::sourcelist", apt.join("debian.sources")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            // apt's user `_apt` cannot write below `target`.
            ("APT::Sandbox::User", "root".into()),
        ];
        let apt_get = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
            for (name, value) in &options {
                command.arg("-o").arg(format!("{name}={}", value.display()));
            }
            run(&mut command)
        };
        apt_get(&["update"])?;
        apt_get(&["install", "--yes", "--no-install-recommends", "--download-only", self.package])
    }

    /// Writes the program that tests start. Runs after unpacking, because `provide` looks for this
    /// file.
    fn write_program(self, folder: &Path, tree: &Path) -> Result<(), Failure> {
        let loader = loader(tree)?;
        let loader = loader.strip_prefix(tree).unwrap_or(&loader).display().to_string();
        let (libraries, _) = loader.rsplit_once('/').unwrap_or_default();
        let libraries = libraries.trim_start_matches("usr/");
        let script = format!(
            "#!/bin/sh\n\
             # {} with the loader and the libraries of Debian {}.\n\
             tree=${{0%/*}}/../tree\n\
             libraries=$tree/{libraries}:$tree/usr/{libraries}\n\
             exec \"$tree/{loader}\" --library-path \"$libraries\" \"$tree/usr/bin/{}\" \"$@\"\n",
            self.name, self.suites, self.package,
        );
        let program = folder.join("bin").join(PROGRAM);
        fs::create_dir_all(folder.join("bin")).map_err(|error| cannot_write(&program, &error))?;
        write(&program, &script)?;
        run(Command::new("chmod").arg("+x").arg(&program))
    }
}

/// The URL of a Debian mirror.
fn mirror() -> Result<String, Failure> {
    if let Ok(mirror) = env::var(MIRROR) {
        return Ok(mirror);
    }
    let mut lists = vec![PathBuf::from("/etc/apt/sources.list")];
    lists.extend(files(Path::new("/etc/apt/sources.list.d")).unwrap_or_default());
    let is_read = |list: &&PathBuf| {
        list.extension().is_some_and(|extension| extension == "list" || extension == "sources")
    };
    let texts = lists.iter().filter(is_read).filter_map(|list| fs::read_to_string(list).ok());
    let found = texts.filter_map(|text| mirror_in(&text).map(str::to_owned)).next();
    found.ok_or_else(|| {
        Failure::Unready(format!(
            "cannot fetch servers: /etc/apt names no mirror of Debian\n\
             cure: set {MIRROR} to the URL of one, which ends in /debian"
        ))
    })
}

/// The first mirror in a sources list, in the old or the new format.
fn mirror_in(sources: &str) -> Option<&str> {
    let lines = sources.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines
        .flat_map(str::split_whitespace)
        .find(|word| word.starts_with("http") && word.trim_end_matches('/').ends_with("/debian"))
}

/// The tree's dynamic loader. Links may lead out of the tree, so only an existing file counts.
fn loader(tree: &Path) -> Result<PathBuf, Failure> {
    let machines = ["lib", "usr/lib"].map(|part| files(&tree.join(part)).unwrap_or_default());
    let libraries = machines.concat().into_iter().filter_map(|machine| files(&machine).ok());
    let is_loader = |file: &PathBuf| {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("ld-linux")) && file.is_file()
    };
    libraries.flatten().find(is_loader).ok_or_else(|| {
        Failure::Broken(format!("no loader among the libraries in {}", tree.display()))
    })
}

/// The files and folders in a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = folder.read_dir().and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
    });
    let mut files = entries
        .map_err(|error| Failure::Broken(format!("cannot read {}: {error}", folder.display())))?;
    files.sort_unstable();
    Ok(files)
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| cannot_write(file, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Broken(format!("cannot write {}: {error}", path.display()))
}

/// Runs a command without printing it, because apt's many options would not help a reader.
fn run(command: &mut Command) -> Result<(), Failure> {
    process::read(command).map(drop).map_err(|failure| match failure {
        Failure::Unready(message) => Failure::Unready(format!(
            "{message}\n\
             cure: the servers are packages of Debian; run this where apt-get and dpkg-deb are"
        )),
        broken @ Failure::Broken(_) => broken,
    })
}

/// The program that tests start.
const PROGRAM: &str = "redis-server";

const MIRROR: &str = "TOLLGATE_DEBIAN_MIRROR";

/// The keys with which Debian signs its releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Packages that are only needed to install a server, not to run it.
const TAKEN_FOR_INSTALLED: [&str; 4] = ["adduser", "debconf", "init-system-helpers", "lsb-base"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_found_in_both_formats() {
        let cases = [
            (
                "# deb http://old.example/debian bookworm main\n\
                 deb [signed-by=/k.gpg] https://mirror.example/debian/ bookworm main\n",
                Some("https://mirror.example/debian/"),
            ),
            (
                "Types: deb\nURIs: http://mirror.example/debian-security http://mirror.example/debian\n",
                Some("http://mirror.example/debian"),
            ),
            ("deb http://mirror.example/ubuntu noble main\n", None),
            ("", None),
        ];
        for (sources, expected) in cases {
            assert_eq!(mirror_in(sources), expected, "{sources}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn loader_is_found_in_old_and_new_releases() {
        for machine in ["lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"] {
            let tree = tempfile::tempdir().unwrap();
            let libraries = tree.path().join(machine);
            fs::create_dir_all(&libraries).unwrap();
            assert!(loader(tree.path()).is_err());
            let file = libraries.join("ld-linux-machine.so.1");
            fs::write(&file, "").unwrap();
            // A link out of the tree is not the loader.
            std::os::unix::fs::symlink("/nowhere", libraries.join("ld-linux-a.so.1")).unwrap();
            assert_eq!(loader(tree.path()).unwrap(), file);
        }
    }
}
