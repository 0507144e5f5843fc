//! The files that a configuration names, and where it does.

use std::path::PathBuf;

use super::problem::{Place, Problem, Severity};
use super::rate_limits;
use crate::files;
use crate::plan::{KeyOrigin, TlsFiles};

/// Files that have to be there for a configuration to work.
#[derive(Clone, Debug)]
pub enum NamedFile {
    /// A certificate and its key.
    Tls {
        /// The files.
        files: TlsFiles,
        /// Where the first is named.
        certificate: Place,
        /// Where the second is named.
        key: Place,
    },
    /// Keys of tokens.
    Keys {
        /// The file, and what is in it.
        origin: KeyOrigin,
        /// Where it is named.
        place: Place,
    },
    /// Who is refused, or never limited.
    Subjects {
        /// The file.
        file: PathBuf,
        /// Where it is named.
        place: Place,
    },
    /// Rules of Envoy's Rate Limit Service.
    RateLimits {
        /// The file.
        file: PathBuf,
        /// Where it is named.
        place: Place,
    },
}

impl NamedFile {
    /// Opens the file and returns its problem, if it has one.
    pub(super) fn problem(&self) -> Option<Problem> {
        let (error, place) = match self {
            Self::Tls { files, certificate, key } => {
                let error = files::tls(files).err()?;
                let place = if error.file == files.certificate { certificate } else { key };
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
