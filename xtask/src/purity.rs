//! Checks the dependencies between crates against the architecture.

use crate::process::{self, Failure};
use crate::workspace::{self, Package};

/// The packages on which a crate must not depend.
struct Boundary {
    package: &'static str,
    /// The features for this check, as an argument to cargo.
    features: &'static str,
    /// The allowed direct dependencies. `None` allows any.
    direct: Option<&'static [&'static str]>,
    /// Families of crates that it must not depend on, even indirectly. `http` includes `http-body`.
    forbidden: &'static [&'static str],
    reason: &'static str,
}

const BOUNDARIES: &[Boundary] = &[
    Boundary {
        package: "tollgate-core",
        features: "--all-features",
        direct: Some(&["smallvec", "thiserror"]),
        forbidden: &[
            "async-std",
            "axum",
            "chrono",
            "crossbeam",
            "dashmap",
            "fred",
            "futures",
            "getrandom",
            "http",
            "hyper",
            "jiff",
            "libc",
            "mio",
            "parking_lot",
            "quanta",
            "rand",
            "redis",
            "smol",
            "socket2",
            "time",
            "tokio",
            "tonic",
            "tower",
            "tracing",
        ],
        reason: "the core is handed the time and does nothing else: no clock, no I/O, no runtime",
    },
    Boundary {
        package: "tollgate-memory",
        features: "--all-features",
        direct: None,
        forbidden: &["axum", "fred", "http", "hyper", "redis", "tonic", "tower"],
        reason: "a store knows neither HTTP nor another store",
    },
    Boundary {
        package: "tollgate-redis",
        features: "--all-features",
        direct: None,
        forbidden: &["axum", "http", "hyper", "tollgate-memory", "tonic", "tower"],
        reason: "a store knows neither HTTP nor another store",
    },
    Boundary {
        package: "tollgate-calendar",
        features: "--all-features",
        direct: Some(&["jiff", "thiserror", "tollgate-core"]),
        forbidden: &["chrono", "jiff-tzdb-platform", "tokio"],
        reason: "time zones are those built in, so that replicas agree whatever their machines have",
    },
    Boundary {
        package: "tollgate-llm",
        features: "--no-default-features",
        direct: Some(&["memchr", "serde", "serde_json", "thiserror"]),
        forbidden: &["http", "hyper", "tokio", "tollgate-core", "tower"],
        reason: "usage is read from bytes, by a proxy of any framework",
    },
    Boundary {
        package: "tollgate-replay",
        features: "--all-features",
        direct: None,
        forbidden: &["http", "hyper", "tokio", "tollgate-redis", "tower"],
        reason: "recorded requests of any service can be replayed, in a test that builds fast",
    },
    Boundary {
        package: "tollgate-store-tests",
        features: "--all-features",
        direct: None,
        forbidden: &["fred", "http", "hyper", "redis", "tollgate-memory", "tower"],
        reason: "the conformance suite is blind to the store it tests",
    },
    Boundary {
        package: "tollgate",
        features: "--no-default-features",
        direct: None,
        forbidden: &[
            "axum",
            "fred",
            "jiff",
            "metrics",
            "redis",
            "tollgate-memory",
            "tollgate-redis",
            "tonic",
        ],
        reason: "the layer names no store and no framework unless a feature asks for it",
    },
];

pub(crate) fn run() -> Result<(), Failure> {
    let packages = workspace::packages()?;
    for boundary in BOUNDARIES {
        let package = packages.iter().find(|package| package.name == boundary.package);
        check(boundary, package.ok_or_else(|| renamed(boundary))?)?;
    }
    Ok(())
}

fn check(boundary: &Boundary, package: &Package) -> Result<(), Failure> {
    let Boundary { package: name, features, reason, .. } = boundary;
    if let Some(allowed) = boundary.direct
        && let Some(extra) = package.dependencies.iter().find(|it| !allowed.contains(&it.as_str()))
    {
        return Err(Failure::Broken(format!(
            "{name} depends on {extra}, and only {} are allowed: {reason}\n\
             cure: do without it, or argue for it in xtask/src/purity.rs",
            allowed.join(" and "),
        )));
    }
    let tree = ["tree", "--package", name, "--edges", "normal", features];
    let listing = ["--prefix", "none", "--format", "{p}"];
    let behind = process::read(process::cargo(&tree).args(listing))?;
    if let Some(intruder) = intruder(&behind, boundary) {
        return Err(Failure::Broken(format!(
            "{intruder} stands behind {name} ({features}): {reason}\n\
             cure: see who brings it with `cargo {} --invert {intruder}`",
            tree.join(" "),
        )));
    }
    println!("{name} ({features}): {reason}");
    Ok(())
}

fn intruder<'a>(tree: &'a str, boundary: &Boundary) -> Option<&'a str> {
    let mut names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.find(|name| boundary.forbidden.iter().any(|family| is_of(family, name)))
}

fn is_of(family: &str, name: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

/// The error if a boundary's crate does not exist. Otherwise the check would pass silently.
fn renamed(boundary: &Boundary) -> Failure {
    Failure::Broken(format!(
        "the workspace has no package {}, whose boundary is to be checked\n\
         cure: if it got another name, give it that name in xtask/src/purity.rs too",
        boundary.package,
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const LAYER: Boundary = Boundary {
        package: "layer",
        features: "--all-features",
        direct: Some(&["bytes"]),
        forbidden: &["http", "redis"],
        reason: "a reason",
    };

    #[test]
    fn intruders_match_by_family() {
        let tree = |name| format!("layer v0.1.0 (/somewhere/http/layer)\n{name} v1.3.1 (*)\n");
        for name in ["http", "http-body", "redis_store"] {
            assert_eq!(intruder(&tree(name), &LAYER), Some(name));
        }
        for name in ["httparse", "predis", "bytes"] {
            assert_eq!(intruder(&tree(name), &LAYER), None, "{name}");
        }
    }

    #[test]
    fn forbidden_dependency_is_named() {
        let package = Package {
            name: "layer".to_owned(),
            folder: PathBuf::new(),
            features: vec![],
            is_published: true,
            dependencies: vec!["bytes".to_owned(), "log".to_owned()],
        };
        let failure = check(&LAYER, &package).unwrap_err().to_string();
        assert!(failure.starts_with("layer depends on log, and only bytes"), "{failure}");
    }
}
