//! Finds programs on this machine.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Failure;

/// Finds a program on `PATH` or in the folders where Debian installs servers.
///
/// # Errors
/// The program is not installed. The error names the package if it is known.
pub fn find(program: &str) -> Result<PathBuf, Failure> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    // `join` with an absolute path ignores the folder.
    let found = folders.map(|folder| folder.join(program)).find(|file| is_executable(file));
    found.ok_or_else(|| {
        let package = PACKAGES.iter().find(|(known, _)| *known == program);
        let cure =
            package.map(|(_, package)| format!("; install it with `apt-get install {package}`"));
        Failure::new(format!("{program} is missing{}", cure.unwrap_or_default()))
    })
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

const SYSTEM: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

const PACKAGES: [(&str, &str); 3] =
    [("nginx", "nginx"), ("redis-server", "redis-server"), ("chromium", "chromium")];
