//! The files that a configuration names.

use std::path::PathBuf;

use super::problem::{Place, Problem, Severity};
use super::rate_limits;
use crate::files;
use crate::plan::{KeyOrigin, TlsFiles};

/// A file, and its place in the configuration. `check` opens these files, and a reload watches them.
#[derive(Clone, Debug)]
pub enum NamedFile {
    Tls {
        files: TlsFiles,
        certificate: Place,
        key: Place,
        client_ca: Place,
    },
    Keys {
        origin: KeyOrigin,
        place: Place,
    },
    /// A blocklist or an allowlist.
    Subjects {
        file: PathBuf,
        place: Place,
    },
    RateLimits {
        file: PathBuf,
        place: Place,
    },
}

impl NamedFile {
    pub(super) fn paths(&self) -> Vec<&PathBuf> {
        match self {
            Self::Tls { files: TlsFiles { certificate, key, client_ca }, .. } => {
                [certificate, key].into_iter().chain(client_ca).collect()
            }
            Self::Keys {
                origin: KeyOrigin::Pem { file, .. } | KeyOrigin::JwksFile(file), ..
            }
            | Self::Subjects { file, .. }
            | Self::RateLimits { file, .. } => vec![file],
            Self::Keys { origin: KeyOrigin::Secret(_) | KeyOrigin::JwksUrl(_), .. } => Vec::new(),
        }
    }

    pub(super) fn problem(&self) -> Option<Problem> {
        let (error, place) = match self {
            Self::Tls { files, certificate, key, client_ca } => {
                let error = files::tls(files).err()?;
                let place = match &error.file {
                    file if *file == files.certificate => certificate,
                    file if *file == files.key => key,
                    _ => client_ca,
                };
                (error, place)
            }
            Self::Keys { origin, place } => (files::keys(origin).err()?, place),
            Self::RateLimits { file, place } => return rate_limits::problem(file, place),
            Self::Subjects { file, place } => (files::subjects(file).err()?, place),
        };
        let (severity, place) = (Severity::Error, place.clone());
        Some(Problem { severity, place, what: error.what, cure: error.cure })
    }
}
