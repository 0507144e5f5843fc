//! Loads the configuration again when its files change, or when asked by SIGHUP.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tollgate::status::Inspect;

use super::gateway::Gateway;
use super::source::{Contents, Source, files, folders};

/// Why to look.
enum Reason {
    /// Something has changed in one of the folders.
    Change,
    /// Somebody asks for it.
    Asked,
}

/// Starts to watch. Whatever changes from here on is noticed.
pub(super) struct Reload<St> {
    gateway: Arc<Gateway<St>>,
    source: Source,
    reasons: mpsc::Receiver<Reason>,
    folders: Folders,
    /// What the files held before they were last loaded.
    seen: Contents,
}

/// What is being watched; nothing where the system cannot.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: HashSet<PathBuf>,
}

/// Asks for a reload.
#[derive(Clone)]
pub(super) struct Ask(mpsc::Sender<Reason>);

impl Ask {
    pub(super) fn now(&self) {
        // If it is full, what is in it leads to a reload all the same.
        let _ = self.0.try_send(Reason::Asked);
    }
}

impl<St: Inspect> Reload<St> {
    pub(super) fn new(gateway: Arc<Gateway<St>>, source: Source) -> (Self, Ask) {
        let (sender, reasons) = mpsc::channel(16);
        let noticed = sender.clone();
        let watcher = source.file.as_ref().and_then(|_| {
            let heard = move |event: notify::Result<notify::Event>| {
                if event.is_ok_and(|event| !event.kind.is_access()) {
                    let _ = noticed.try_send(Reason::Change);
                }
            };
            notify::recommended_watcher(heard).inspect_err(warn).ok()
        });
        let folders = Folders { watcher, watched: HashSet::new() };
        let mut reload = Self { gateway, source, reasons, folders, seen: Contents::default() };
        reload.seen = reload.look();
        (reload, Ask(sender))
    }

    /// Reloads whenever there is a reason, for as long as it is polled.
    pub(super) async fn run(mut self) {
        while let Some(reason) = self.reasons.recv().await {
            let mut asked = matches!(reason, Reason::Asked);
            // A file is written in several steps, and a link swapped in some more.
            while let Ok(Some(reason)) = timeout(SETTLED, self.reasons.recv()).await {
                asked |= matches!(reason, Reason::Asked);
            }
            let now = self.look();
            if !self.seen.differ_from(&now) && !asked {
                continue;
            }
            self.seen = now;
            if self.source.file.is_none() {
                tracing::warn!("a configuration from stdin cannot be read again");
                continue;
            }
            self.reload().await;
            // The new plan may name other files. What the ones before hold by now is not
            // looked at: if they have changed meanwhile, that is still to be loaded.
            let now = self.look();
            self.seen.add(now);
        }
    }

    /// Reading and checking a large file takes a while, in which requests go on.
    async fn reload(&self) {
        let (gateway, load) = (Arc::clone(&self.gateway), Arc::clone(&self.source.load));
        let replaced = tokio::task::spawn_blocking(move || gateway.replace(load())).await;
        if let Err(error) = replaced {
            tracing::error!(%error, "loading the configuration ended early: the one before goes on");
        }
    }

    /// Watches the folders of all files, and says what is in these.
    fn look(&mut self) -> Contents {
        let files = files(&self.source, &self.gateway.app().plan);
        let folders = folders(&files);
        self.folders.watch(folders);
        Contents::of(&files)
    }
}

impl Folders {
    fn watch(&mut self, folders: Vec<PathBuf>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for folder in folders {
            if self.watched.contains(&folder) {
                continue;
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.watched.insert(folder)),
                Err(error) => warn(&error),
            }
        }
    }
}

fn warn(error: &notify::Error) {
    tracing::warn!(%error, "changes of the configuration go unnoticed; send SIGHUP after one");
}

/// Changes that follow within this time belong together.
const SETTLED: Duration = Duration::from_millis(100);
