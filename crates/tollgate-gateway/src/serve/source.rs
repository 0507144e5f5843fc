//! Where the configuration comes from.

use std::collections::HashMap;
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
    files.extend([&plan.deny, &plan.allow].into_iter().filter_map(|list| list.file.clone()));
    files.extend(plan.rate_limits.iter().flat_map(|it| it.files.iter().cloned()));
    files
}

/// What the files hold, as far as one can tell by it whether it has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents(HashMap<PathBuf, u64>);

impl Contents {
    pub(super) fn of(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let hashed = files.into_iter().map(|file| {
            let mut hasher = DefaultHasher::new();
            // Nothing else has contents that stay, and to read a pipe may take for ever.
            let held =
                fs::metadata(&file).is_ok_and(|it| it.is_file()).then(|| fs::read(&file).ok());
            held.hash(&mut hasher);
            (file, hasher.finish())
        });
        Self(hashed.collect())
    }

    /// The files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// Whether one of these files holds something else now.
    pub(super) fn differ_from(&self, now: &Self) -> bool {
        self.0.iter().any(|(file, held)| now.0.get(file).is_some_and(|holds| holds != held))
    }

    /// Takes the files in that were not looked at before, and leaves the others as they are.
    pub(super) fn add(&mut self, now: Self) {
        for (file, holds) in now.0 {
            self.0.entry(file).or_insert(holds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_noticed_until_it_was_taken_in() {
        let folder = tempfile::TempDir::new().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        let mut seen = Contents::of([one.clone()]);
        let files = [one.clone(), other.clone()];
        assert!(!seen.differ_from(&Contents::of(files.clone())));
        // It changes while the new plan, which names a further file, is being put to work.
        fs::write(&one, "2").unwrap();
        seen.add(Contents::of(files.clone()));
        assert!(seen.differ_from(&Contents::of(files.clone())));
        seen = Contents::of(files.clone());
        // A file that appears has changed, too, and so has one that is gone.
        fs::write(&other, "").unwrap();
        assert!(seen.differ_from(&Contents::of(files.clone())));
        seen = Contents::of(files.clone());
        fs::remove_file(&one).unwrap();
        assert!(seen.differ_from(&Contents::of(files)));
    }
}
