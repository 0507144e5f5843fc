//! Where the configuration comes from.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::plan::{IdentitySource, KeyOrigin, Plan};

/// A plan, and the same in words, without secrets.
#[derive(Debug)]
pub struct Loaded {
    /// What is to be done.
    pub plan: Plan,
    /// What an operator is shown.
    pub words: String,
}

/// Reads and checks the configuration; what is wrong with it, in words.
pub type Load = Arc<dyn Fn() -> Result<Loaded, String> + Send + Sync>;

/// Where the configuration comes from.
#[derive(Clone)]
pub struct Source {
    /// The file, unless it came on stdin, which cannot be read again.
    pub file: Option<PathBuf>,
    /// Reads and checks it.
    pub load: Load,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("file", &self.file).finish_non_exhaustive()
    }
}

/// All files that a plan is made of: the configuration, and certificates and keys that it
/// names.
pub(super) fn files(source: &Source, plan: &Plan) -> Vec<PathBuf> {
    let mut files: Vec<_> = source.file.iter().cloned().collect();
    for tls in plan.listen.iter().filter_map(|listen| listen.tls.as_ref()) {
        files.extend([tls.certificate.clone(), tls.key.clone()]);
    }
    for identity in &plan.identity {
        if let IdentitySource::User(jwt) = identity
            && let KeyOrigin::Pem { file, .. } | KeyOrigin::JwksFile(file) = &jwt.keys
        {
            files.push(file.clone());
        }
    }
    files
}

/// The folders in which a change of these files shows. Kubernetes changes none of the files
/// of a config map: it swaps a symbolic link beside them.
pub(super) fn folders(files: &[PathBuf]) -> Vec<PathBuf> {
    let parent = |file: &Path| match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
        Some(folder) => folder.to_owned(),
        None => PathBuf::from("/"),
    };
    let mut folders = Vec::new();
    for file in files {
        folders.push(parent(file));
        if let Ok(real) = file.canonicalize() {
            folders.push(parent(&real));
        }
    }
    folders.sort();
    folders.dedup();
    folders
}

/// Equal as long as no content has changed.
pub(super) fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        fs::read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}
