//! The workspace's packages, read from `cargo metadata`.

use std::path::PathBuf;

use serde::Deserialize;

use crate::process::{self, Failure};

#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `dev` or `build`; `None` for the others.
    pub(crate) kind: Option<String>,
    pub(crate) optional: bool,
}

#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
    pub(crate) test: bool,
    pub(crate) src_path: PathBuf,
}

impl Metadata {
    pub(crate) fn read() -> Result<Self, Failure> {
        let question = ["metadata", "--no-deps", "--format-version=1", "--quiet"];
        let json = process::read(&mut process::cargo(&question))?;
        serde_json::from_str(&json).map_err(|error| {
            Failure::Broken(format!("`cargo metadata` printed what xtask cannot read: {error}"))
        })
    }
}

/// Cargo's target folder.
pub(crate) fn target_folder() -> Result<PathBuf, Failure> {
    Ok(Metadata::read()?.target_directory)
}
