//! The workspace's packages, read from `cargo metadata`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{self, Failure};

/// A package in the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The manifest's folder.
    pub(crate) folder: PathBuf,
    /// All features except `default`, sorted.
    pub(crate) features: Vec<String>,
    /// Whether a registry may publish it: it has no `publish = false`.
    pub(crate) is_published: bool,
    /// Its direct dependencies without dev and build dependencies, including optional dependencies.
    pub(crate) dependencies: Vec<String>,
}

/// Every package, in the order of `cargo metadata`.
pub(crate) fn packages() -> Result<Vec<Package>, Failure> {
    parse(&metadata()?).ok_or_else(unreadable)
}

/// Cargo's target folder.
pub(crate) fn target_folder() -> Result<String, Failure> {
    metadata()?["target_directory"].as_str().map(str::to_owned).ok_or_else(unreadable)
}

/// The root files of libraries and programs without a test program.
pub(crate) fn untested_targets() -> Result<Vec<PathBuf>, Failure> {
    untested_in(&metadata()?).ok_or_else(unreadable)
}

fn metadata() -> Result<Value, Failure> {
    let question = ["metadata", "--no-deps", "--format-version=1", "--quiet"];
    let json = process::read(&mut process::cargo(&question))?;
    serde_json::from_str(&json).map_err(|_| unreadable())
}

fn unreadable() -> Failure {
    Failure::Broken("`cargo metadata` printed what xtask cannot read".to_owned())
}

fn parse(metadata: &Value) -> Option<Vec<Package>> {
    metadata["packages"].as_array()?.iter().map(package).collect()
}

fn package(value: &Value) -> Option<Package> {
    let mut features: Vec<_> = value["features"].as_object()?.keys().cloned().collect();
    features.retain(|feature| feature != "default");
    features.sort_unstable();
    let is_normal = |dependency: &&Value| dependency["kind"].is_null();
    let dependencies = value["dependencies"].as_array()?.iter().filter(is_normal);
    Some(Package {
        name: value["name"].as_str()?.to_owned(),
        features,
        folder: Path::new(value["manifest_path"].as_str()?).parent()?.to_owned(),
        // A missing list allows all registries, an empty list none.
        is_published: value["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        dependencies: dependencies
            .map(|dependency| dependency["name"].as_str().map(str::to_owned))
            .collect::<Option<_>>()?,
    })
}

fn untested_in(metadata: &Value) -> Option<Vec<PathBuf>> {
    let mut roots = Vec::new();
    for package in metadata["packages"].as_array()? {
        for target in package["targets"].as_array()? {
            let kinds = target["kind"].as_array()?;
            let is_code = kinds.iter().any(|kind| {
                ["lib", "bin", "proc-macro"].contains(&kind.as_str().unwrap_or_default())
            });
            if is_code && !target["test"].as_bool()? {
                roots.push(target["src_path"].as_str()?.into());
            }
        }
    }
    Some(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_metadata() {
        let json = r#"{"packages": [
            {"name": "layer", "manifest_path": "/w/layer/Cargo.toml", "publish": null,
             "features": {"memory": [], "default": ["memory"], "jwt": []},
             "dependencies": [{"name": "http", "kind": null}, {"name": "proptest", "kind": "dev"}]},
            {"name": "bench", "manifest_path": "/w/bench/Cargo.toml", "publish": [],
             "features": {}, "dependencies": []}
        ]}"#;
        let packages = parse(&serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!(packages[0].features, ["jwt", "memory"]);
        assert_eq!(packages[0].dependencies, ["http"]);
        assert_eq!(packages[0].folder, Path::new("/w/layer"));
        assert!(packages[0].is_published);
        assert!(!packages[1].is_published);
    }

    #[test]
    fn untested_code_is_listed() {
        let json = r#"{"packages": [{"targets": [
            {"kind": ["lib"], "test": true, "src_path": "/w/src/lib.rs"},
            {"kind": ["bin"], "test": false, "src_path": "/w/src/main.rs"},
            {"kind": ["example"], "test": false, "src_path": "/w/examples/a.rs"}
        ]}]}"#;
        let roots = untested_in(&serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!(roots, [Path::new("/w/src/main.rs")]);
    }

    #[test]
    fn unexpected_metadata_is_an_error() {
        for json in ["{}", r#"{"packages": [{"name": "layer"}]}"#] {
            assert!(parse(&serde_json::from_str(json).unwrap()).is_none(), "{json}");
        }
    }
}
