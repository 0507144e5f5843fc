//! Helpers for the tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Compares text with a file, or overwrites the file if `TOLLGATE_BLESS` is set.
pub(crate) fn expect_beside(file: &Path, found: &str) -> Result<(), String> {
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(file, found).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    if found == expected {
        return Ok(());
    }
    Err(format!("{}: expected\n{expected}\nfound\n{found}", file.display()))
}
