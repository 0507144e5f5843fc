//! Helpers for the configuration tests.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_config::plan::Plan;
use tollgate_config::{Outcome, Source, read};

/// The only environment variables that test files can use.
pub(crate) fn env(name: &str) -> Option<String> {
    let value = match name {
        "WORD" => "not to be shown: it may be a secret",
        "LIMIT_OF_TEST" => "7",
        "JWT_SECRET" => "an-hs256-secret-of-more-than-32-bytes",
        "REDIS_URL" => "redis://:hunter2@localhost:6379",
        "OTLP_HEADERS" => "authorization=Bearer%20hunter2,x-tenant=shop",
        "REDIS_KEY_SECRET" => "hunter2 again",
        _ => return None,
    };
    Some(value.to_owned())
}

pub(crate) fn read_text(name: &str, text: &str) -> Outcome {
    read(&Source::new(name, text), &env)
}

/// Reads a valid file; panics with the report otherwise.
pub(crate) fn plan(text: &str) -> Plan {
    let outcome = read_text("test.yaml", text);
    outcome.plan.unwrap_or_else(|| panic!("{}", outcome.report))
}

/// The YAML files in a test folder.
pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let folder = root().join("crates/tollgate-config/tests").join(folder);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|it| it == "yaml")).collect();
    files.sort();
    files
}

pub(crate) fn outcome(file: &Path) -> Outcome {
    let name = file.file_name().unwrap().to_str().unwrap();
    read_text(name, &fs::read_to_string(file).unwrap())
}

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
