//! Checks the dependencies between crates against the architecture.

use std::path::Path;
use std::{fs, io};

use crate::process::{self, Failure};
use crate::workspace::{Dependency, Metadata};

/// The packages on which a crate must not depend. Lists are separated by spaces.
struct Boundary {
    package: &'static str,
    /// The features for this check, as an argument to cargo.
    features: &'static str,
    /// The allowed direct dependencies. `None` allows any.
    direct: Option<&'static str>,
    /// Families of crates that the crate must not depend on, even indirectly. `http` includes
    /// `http-body`.
    forbidden: &'static str,
    reason: &'static str,
}

impl Boundary {
    /// A boundary for all features and any direct dependency.
    const fn new(package: &'static str, forbidden: &'static str, reason: &'static str) -> Self {
        Self { package, features: "--all-features", direct: None, forbidden, reason }
    }

    const fn without_features(self) -> Self {
        Self { features: "--no-default-features", ..self }
    }

    const fn only(self, direct: &'static str) -> Self {
        Self { direct: Some(direct), ..self }
    }
}

const BOUNDARIES: [Boundary; 15] = [
    Boundary::new(
        "tollgate-core",
        "async-std axum chrono crossbeam dashmap fred futures getrandom http hyper jiff libc mio \
         parking_lot quanta rand redis smol socket2 time tokio tonic tower tracing",
        "the core receives the time as an argument, and has no clock, I/O or runtime",
    )
    .only("smallvec thiserror"),
    Boundary::new(
        "tollgate-engine",
        "async-std axum chrono crossbeam fred futures getrandom http hyper jiff mio quanta rand \
         redis smol socket2 time tokio tonic tower tracing",
        "the engine receives the time and the store's replies as arguments",
    )
    .only("parking_lot smallvec tollgate-core"),
    Boundary::new("tollgate-memory", "axum fred http hyper redis tonic tower", STORE),
    Boundary::new("tollgate-redis", "axum http hyper tollgate-memory tonic tower", STORE),
    Boundary::new(
        "tollgate-calendar",
        "chrono jiff-tzdb-platform tokio",
        "time zones are built in, so replicas on different machines agree",
    )
    .only("jiff thiserror tollgate-core"),
    Boundary::new(
        "tollgate-proxy",
        "axum redis tollgate-config tollgate-core tollgate-engine tonic",
        "the proxy knows no limits and no configuration file, so it can be tested without them",
    ),
    Boundary::new(
        "tollgate-proxy",
        "hyper metrics tokio tracing",
        "a configuration contains the proxy's settings, but no server",
    )
    .without_features(),
    Boundary::new(
        "tollgate-config",
        "axum clap flate2 hyper indicatif tollgate-admin tollgate-gateway tollgate-replay \
         tonic",
        "a plan is plain data, so reading a file needs no server",
    ),
    Boundary::new(
        "tollgate-gateway",
        "clap flate2 indicatif tollgate-replay zstd",
        "the server contains no commands, so its users get no tools for reports",
    ),
    Boundary::new(
        "tollgate-llm",
        "http hyper tokio tollgate-core tower",
        "usage is read from bytes, so a proxy with any framework can use it",
    )
    .without_features()
    .only(
        "axum bytes http http-body memchr serde serde_json thiserror tollgate tower-layer \
         tower-service tracing",
    ),
    Boundary::new(
        "tollgate-replay",
        "http hyper tokio tollgate-redis tower",
        "a replay needs no network, so tests that use it build fast",
    ),
    Boundary::new(
        "tollgate-testing",
        "flate2 http hyper jsonwebtoken redis rustls tokio tollgate-config tower zstd",
        "the command `tollgate test` and tests of services share requests and expectations",
    )
    .without_features(),
    Boundary::new(
        "tollgate-reqwest",
        "axum fred hickory hyper-tls jiff metrics openssl redis rustls tollgate-redis tonic",
        "the program chooses the store and the TLS library",
    ),
    Boundary::new(
        "tollgate-store-tests",
        "fred http hyper redis tollgate-memory tower",
        "the conformance suite does not know the store that it tests",
    ),
    Boundary::new(
        "tollgate",
        "axum fred jiff metrics redis tollgate-memory tollgate-redis tonic",
        "the layer depends on a store or framework only through a feature",
    )
    .without_features(),
];

const STORE: &str = "a store depends neither on HTTP nor on another store";

/// The crates whose callers wait for them, so they contain no `async` code.
const SYNCHRONOUS: [&str; 2] = ["tollgate-core", "tollgate-engine"];

pub(crate) fn run() -> Result<(), Failure> {
    for package in SYNCHRONOUS {
        let folder = process::root().join("crates").join(package).join("src");
        check_synchronous(package, &folder)?;
    }
    let packages = Metadata::read()?.packages;
    for boundary in &BOUNDARIES {
        let package = packages.iter().find(|package| package.name == boundary.package);
        let package = package.ok_or_else(|| {
            Failure::Broken(format!(
                "the workspace has no package {}, which xtask/src/purity.rs checks",
                boundary.package
            ))
        })?;
        check(boundary, &package.dependencies)?;
    }
    Ok(())
}

fn check(boundary: &Boundary, dependencies: &[Dependency]) -> Result<(), Failure> {
    let Boundary { package: name, features, reason, .. } = boundary;
    let direct = dependencies.iter().filter(|it| it.kind.is_none()).map(|it| &it.name);
    if let Some(allowed) = boundary.direct
        && let Some(extra) = direct.clone().find(|it| !allowed.split(' ').any(|name| name == *it))
    {
        return Err(Failure::Broken(format!(
            "{name} depends on {extra}, and only these are allowed: {allowed}\n\
             cure: remove it, or allow it in xtask/src/purity.rs; {reason}",
        )));
    }
    let tree = ["tree", "--package", name, "--edges", "normal", features];
    let listing = ["--prefix", "none", "--format", "{p}"];
    let behind = process::read(process::cargo(&tree).args(listing))?;
    if let Some(intruder) = intruder(&behind, boundary) {
        return Err(Failure::Broken(format!(
            "{name} ({features}) depends on {intruder}: {reason}\n\
             cure: find the dependency that needs it with `cargo {} --invert {intruder}`",
            tree.join(" "),
        )));
    }
    println!("{name} ({features}): {reason}");
    Ok(())
}

fn check_synchronous(package: &str, folder: &Path) -> Result<(), Failure> {
    let broken = |error: io::Error| Failure::Broken(format!("{}: {error}", folder.display()));
    for entry in folder.read_dir().map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        if path.is_dir() {
            check_synchronous(package, &path)?;
        } else if is_async(&fs::read_to_string(&path).map_err(broken)?) {
            return Err(Failure::Broken(format!(
                "{package} must not wait, but {} contains `async` code\n\
                 cure: return what the caller has to wait for",
                path.display(),
            )));
        }
    }
    Ok(())
}

/// Whether the code outside of comments contains `async` or `.await`.
fn is_async(source: &str) -> bool {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')))
        .any(|word| matches!(word, "async" | "await"))
}

fn intruder<'a>(tree: &'a str, boundary: &Boundary) -> Option<&'a str> {
    let mut names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.find(|name| boundary.forbidden.split(' ').any(|family| is_of(family, name)))
}

fn is_of(family: &str, name: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: Boundary = Boundary::new("layer", "http redis", "a reason").only("bytes");

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
    fn async_code_is_found_outside_of_comments() {
        assert!(is_async("fn f() {}\n    pub async fn g() {}"));
        assert!(is_async("let reply = reply.await;"));
        assert!(!is_async("/// An async caller polls it: `reply.await`.\nlet is_async = true;"));
    }

    #[test]
    fn forbidden_dependency_is_named() {
        let dependency =
            |name: &str| Dependency { name: name.to_owned(), kind: None, optional: false };
        let dependencies = ["bytes", "log"].map(dependency);
        let failure = check(&LAYER, &dependencies).unwrap_err().to_string();
        assert!(
            failure.starts_with("layer depends on log, and only these are allowed: bytes\n"),
            "{failure}"
        );
    }
}
