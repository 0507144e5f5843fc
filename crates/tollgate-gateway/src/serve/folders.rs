//! The folders in which a change of some files shows.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

/// What is being watched; nothing where the system cannot.
#[derive(Default)]
pub(super) struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: HashMap<PathBuf, Identity>,
}

/// What tells a folder from another that was put in its place.
type Identity = Option<(u64, u64)>;

impl Folders {
    /// Calls `changed` for each change in folders that are yet to be named.
    pub(super) fn watched(changed: impl Fn() + Send + 'static) -> Self {
        let heard = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                changed();
            }
        };
        let watcher = notify::recommended_watcher(heard).inspect_err(warn).ok();
        Self { watcher, watched: HashMap::new() }
    }

    /// Watches wherever a change of these files would show, and no longer anywhere else.
    /// Whatever changes after this returns is noticed.
    pub(super) fn watch(&mut self, files: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        // What a folder holds may change while one begins to watch it, and then there are
        // others to watch. Each turn watches a further one, so that a few will do.
        for _ in 0..MOST_TURNS {
            let folders = folders(files);
            self.watched.retain(|folder, watched| {
                let stays = folders.contains(folder) && identity(folder) == *watched;
                if !stays {
                    // It is gone mostly, and its watch with it.
                    let _ = watcher.unwatch(folder);
                }
                stays
            });
            let mut is_all = true;
            for folder in folders {
                if self.watched.contains_key(&folder) {
                    continue;
                }
                is_all = false;
                let identity = identity(&folder);
                if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive)
                    && folder.exists()
                {
                    warn(&error);
                }
                self.watched.insert(folder, identity);
            }
            if is_all {
                return;
            }
        }
    }
}

/// The folder of each file and of each link on the way to it; where there is none yet, the
/// nearest above it. Kubernetes changes none of the files of a config map: it swaps a symbolic
/// link beside them.
fn folders(files: &[PathBuf]) -> HashSet<PathBuf> {
    let mut folders = HashSet::new();
    for file in files {
        let mut file = file.clone();
        for _ in 0..MOST_LINKS {
            let folder = parent(&file);
            folders.insert(nearest(&folder).to_owned());
            let Ok(target) = fs::read_link(&file) else { break };
            file = folder.join(target);
        }
        if let Ok(real) = file.canonicalize() {
            folders.insert(parent(&real));
        }
    }
    folders
}

fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
        Some(folder) => folder.to_owned(),
        None => PathBuf::from("/"),
    }
}

/// The folder itself, or the first above it that there is.
fn nearest(folder: &Path) -> &Path {
    let there = folder.ancestors().find(|it| it.is_dir());
    there.filter(|it| !it.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

#[cfg(unix)]
fn identity(folder: &Path) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(folder).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(folder: &Path) -> Identity {
    folder.is_dir().then_some((0, 0))
}

fn warn(error: &notify::Error) {
    tracing::warn!(%error, "changes of the configuration go unnoticed; send SIGHUP after one");
}

/// As many as Linux follows.
const MOST_LINKS: usize = 40;

/// More than a path has folders, mostly.
const MOST_TURNS: usize = 64;
