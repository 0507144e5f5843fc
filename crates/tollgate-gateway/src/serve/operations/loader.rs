use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::sleep;
use tollgate_config::plan::Plan;

/// A plan and its description, without secrets.
#[derive(Debug)]
pub struct Loaded {
    pub plan: Plan,
    pub words: String,
}

/// Reads and checks the configuration. The error describes its problems.
pub type Load = Arc<dyn Fn() -> Result<Loaded, String> + Send + Sync>;

/// Loads the configuration at startup, and again for each reload.
#[derive(Clone)]
pub struct Loader {
    /// The file, or `None` for stdin, which cannot be read again.
    pub file: Option<PathBuf>,
    pub load: Load,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The configuration file and the files that it names.
pub(crate) fn files(loader: &Loader, plan: &Plan) -> Vec<PathBuf> {
    loader.file.iter().chain(&plan.files).cloned().collect()
}

/// Fingerprints of files, to detect changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprints(HashMap<PathBuf, Fingerprint>);

#[derive(Clone, Copy, Debug)]
struct Fingerprint {
    hash: u64,
    stamp: Option<(SystemTime, u64)>,
    /// When the stamp was first seen.
    since: Instant,
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Fingerprint {}

impl Fingerprints {
    /// Reads the files. A file with the same metadata as in `before` is not read again.
    pub(crate) fn of(files: impl IntoIterator<Item = PathBuf>, before: &Self) -> Self {
        let fingerprint = |file: PathBuf| {
            // A pipe has no lasting contents, and reading it can block forever.
            let metadata = fs::metadata(&file).ok().filter(fs::Metadata::is_file);
            let stamp = metadata.and_then(|it| Some((it.modified().ok()?, it.len())));
            let known = before.0.get(&file).filter(|before| before.stamp == stamp);
            if let (Some((modified, _)), Some(known)) = (stamp, known)
                // The modification time may lie in the future.
                && modified.elapsed().unwrap_or_default().max(known.since.elapsed()) > SAME_TIME
            {
                return (file, *known);
            }
            let since = known.map_or_else(Instant::now, |known| known.since);
            let mut hasher = DefaultHasher::new();
            stamp.and_then(|_| fs::read(&file).ok()).hash(&mut hasher);
            (file, Fingerprint { hash: hasher.finish(), stamp, since })
        };
        Self(files.into_iter().map(fingerprint).collect())
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    pub(crate) fn differ_from(&self, now: &Self) -> bool {
        self.0.iter().any(|(file, before)| now.0.get(file).is_some_and(|new| new != before))
    }

    /// Takes over the metadata of files with the same contents, so that these files are not read
    /// again.
    pub(crate) fn adopt_metadata(&mut self, now: &Self) {
        for (file, before) in &mut self.0 {
            if let Some(new) = now.0.get(file).filter(|new| *new == before) {
                *before = *new;
            }
        }
    }

    pub(crate) fn add(&mut self, now: Self) {
        for (file, new) in now.0 {
            self.0.entry(file).or_insert(new);
        }
    }
}

/// Two changes within this interval may have the same modification time.
const SAME_TIME: Duration = Duration::from_secs(4);

/// Waits until the contents no longer change, because a file may be written in several steps. Files
/// that always change delay a reload by at most a second.
pub(crate) async fn settled(
    mut now: Fingerprints,
    mut look: impl FnMut() -> Fingerprints,
) -> Fingerprints {
    for _ in 0..MOST_LOOKS {
        sleep(SETTLED).await;
        let next = look();
        if next == now {
            break;
        }
        now = next;
    }
    now
}

/// Changes within this interval belong together.
const SETTLED: Duration = Duration::from_millis(100);
const MOST_LOOKS: usize = 10;

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn changes_are_noticed_until_added() {
        let folder = tempfile::TempDir::new().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        let of = |files: &[PathBuf], before: &Fingerprints| {
            Fingerprints::of(files.iter().cloned(), before)
        };
        let mut seen = of(std::slice::from_ref(&one), &Fingerprints::default());
        let files = [one.clone(), other.clone()];
        assert!(!seen.differ_from(&of(&files, &seen)));
        // The file changes while a new plan with another file is being loaded.
        fs::write(&one, "2").unwrap();
        seen.add(of(&files, &seen));
        assert!(seen.differ_from(&of(&files, &seen)));
        seen = of(&files, &seen);
        // A new file and a removed file count as changes.
        fs::write(&other, "").unwrap();
        assert!(seen.differ_from(&of(&files, &seen)));
        seen = of(&files, &seen);
        fs::remove_file(&one).unwrap();
        assert!(seen.differ_from(&of(&files, &seen)));
    }

    #[test]
    fn unchanged_metadata_avoids_reading() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("file");
        let write = |text: &str, age: Duration| {
            fs::write(&file, text).unwrap();
            let modified = SystemTime::now() - age;
            File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
            modified
        };
        let modified = write("1", 2 * SAME_TIME);
        let seen = Fingerprints::of([file.clone()], &Fingerprints::default());
        fs::write(&file, "2").unwrap();
        let is_seen = || seen.differ_from(&Fingerprints::of([file.clone()], &seen));
        assert!(is_seen());
        File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
        assert!(!is_seen());
        write("22", 2 * SAME_TIME);
        assert!(is_seen());
    }

    #[test]
    fn touched_file_is_read_once() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("file");
        let write = |text: &str, modified: SystemTime| {
            fs::write(&file, text).unwrap();
            File::options().append(true).open(&file).unwrap().set_modified(modified).unwrap();
        };
        let of = |before: &Fingerprints| Fingerprints::of([file.clone()], before);
        let now = SystemTime::now();
        for touched in [now - 2 * SAME_TIME, now + 1_000 * SAME_TIME] {
            write("1", now - 3 * SAME_TIME);
            let mut seen = of(&Fingerprints::default());
            write("1", touched);
            let looked = of(&seen);
            assert!(!seen.differ_from(&looked));
            seen.adopt_metadata(&looked);
            // Another change within this interval may have the same modification time.
            for known in seen.0.values_mut() {
                known.since -= 2 * SAME_TIME;
            }
            // A reader would notice these contents.
            write("2", touched);
            assert!(!seen.differ_from(&of(&seen)));
            write("2", touched + SAME_TIME);
            assert!(seen.differ_from(&of(&seen)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_until_changes_settle() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("file");
        for (steps, most) in [(3, 4), (usize::MAX, MOST_LOOKS)] {
            let mut looks = 0;
            let before = Fingerprints::of([file.clone()], &Fingerprints::default());
            let last = settled(before, || {
                looks += 1;
                fs::write(&file, looks.min(steps).to_string()).unwrap();
                Fingerprints::of([file.clone()], &Fingerprints::default())
            });
            let last = last.await;
            assert_eq!(looks, most);
            assert!(!last.differ_from(&Fingerprints::of([file.clone()], &Fingerprints::default())));
        }
    }
}
