//! Where the configuration comes from.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

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

/// What files hold, as far as a change shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents(HashMap<PathBuf, Held>);

#[derive(Clone, Copy, Debug)]
struct Held {
    hash: u64,
    /// When the file was modified, and its length.
    stamp: Option<(SystemTime, u64)>,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Held {}

impl Contents {
    /// Reads the files. A file that is the same as `before` by its metadata is not read again.
    pub(super) fn of(files: impl IntoIterator<Item = PathBuf>, before: &Self) -> Self {
        let held = |file: PathBuf| {
            // A pipe has no contents that stay, and reading it can block forever.
            let metadata = fs::metadata(&file).ok().filter(fs::Metadata::is_file);
            let stamp = metadata.and_then(|it| Some((it.modified().ok()?, it.len())));
            if let Some((modified, _)) = stamp
                && let Some(before) = before.0.get(&file).filter(|before| before.stamp == stamp)
                && modified.elapsed().is_ok_and(|age| age > SAME_TIME)
            {
                return (file, *before);
            }
            let mut hasher = DefaultHasher::new();
            stamp.and_then(|_| fs::read(&file).ok()).hash(&mut hasher);
            (file, Held { hash: hasher.finish(), stamp })
        };
        Self(files.into_iter().map(held).collect())
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

/// Two changes within this time may leave the same time of modification.
const SAME_TIME: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_change_is_noticed_until_it_was_taken_in() {
        let folder = tempfile::TempDir::new().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        let of = |files: &[PathBuf], before: &Contents| Contents::of(files.iter().cloned(), before);
        let mut seen = of(std::slice::from_ref(&one), &Contents::default());
        let files = [one.clone(), other.clone()];
        assert!(!seen.differ_from(&of(&files, &seen)));
        // It changes while the new plan, which names a further file, is being put to work.
        fs::write(&one, "2").unwrap();
        seen.add(of(&files, &seen));
        assert!(seen.differ_from(&of(&files, &seen)));
        seen = of(&files, &seen);
        // A file that appears has changed, too, and so has one that is gone.
        fs::write(&other, "").unwrap();
        assert!(seen.differ_from(&of(&files, &seen)));
        seen = of(&files, &seen);
        fs::remove_file(&one).unwrap();
        assert!(seen.differ_from(&of(&files, &seen)));
    }

    #[test]
    fn a_file_whose_metadata_stays_is_not_read_again() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("file");
        let write = |text: &str, age: Duration| {
            fs::write(&file, text).unwrap();
            let modified = SystemTime::now() - age;
            File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
            modified
        };
        let modified = write("1", 2 * SAME_TIME);
        let seen = Contents::of([file.clone()], &Contents::default());
        fs::write(&file, "2").unwrap();
        let is_seen = || seen.differ_from(&Contents::of([file.clone()], &seen));
        assert!(is_seen());
        File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
        assert!(!is_seen());
        write("22", 2 * SAME_TIME);
        assert!(is_seen());
    }
}
