//! The files that a configuration names. `check` opens them, and a reload watches them.

use std::path::PathBuf;

use super::place::Place;
use crate::plan::{KeyOrigin, TargetTlsFiles, TlsFiles};

/// Files that belong together, each with its place in the configuration.
#[derive(Clone, Debug)]
pub struct NamedFiles {
    pub files: Vec<(PathBuf, Place)>,
    pub contents: FileContents,
}

#[derive(Clone, Debug)]
pub enum FileContents {
    /// A certificate chain, its key, and possibly the authorities for client certificates.
    Tls(TlsFiles),
    /// Authorities for a target's certificate, and possibly a certificate for the gateway.
    TargetTls(TargetTlsFiles),
    /// Token keys.
    Keys(KeyOrigin),
    /// A blocklist or an allowlist.
    Subjects(PathBuf),
    /// Rules of the Rate Limit Service, and whether several files may contain the same domain.
    RateLimits(Vec<PathBuf>, bool),
}
