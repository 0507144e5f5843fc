//! Where programs are.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Failure;

/// Finds a program on `PATH`, or where Debian keeps servers.
///
/// # Errors
/// It is nowhere; the line says how to get it.
pub fn find(program: &str) -> Result<PathBuf, Failure> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    // A name with a `/` in it stays as it is when it is joined with nothing, and is absolute here.
    let found = folders.map(|folder| folder.join(program)).find(|file| is_executable(file));
    found.ok_or_else(|| {
        let package = PACKAGES.iter().find(|(known, _)| *known == program);
        let cure = package.map(|(_, package)| format!("; cure: apt-get install {package}"));
        Failure::new(format!("{program} is missing{}", cure.unwrap_or_default()))
    })
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

const SYSTEM: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

const PACKAGES: [(&str, &str); 3] =
    [("nginx", "nginx"), ("redis-server", "redis-server"), ("chromium", "chromium")];
