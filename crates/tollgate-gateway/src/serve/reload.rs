//! Loads the configuration again when its files change, or when asked by SIGHUP.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout_at};
use tollgate::status::Inspect;

use super::folders::Folders;
use super::gateway::Gateway;
use super::source::{Contents, Source, files};

/// Why to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    ask: mpsc::Sender<Reason>,
    reasons: mpsc::Receiver<Reason>,
    folders: Folders,
    /// What the files of the last attempt held before it, whether or not it is what serves.
    tried: Contents,
    /// What all files held before they were last loaded.
    seen: Contents,
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
        let (ask, reasons) = mpsc::channel(16);
        let noticed = ask.clone();
        let folders = match source.file {
            Some(_) => Folders::watched(move || {
                // As above.
                let _ = noticed.try_send(Reason::Change);
            }),
            None => Folders::default(),
        };
        let asked = Ask(ask.clone());
        let (tried, seen) = Default::default();
        let mut reload = Self { gateway, source, ask, reasons, folders, tried, seen };
        reload.seen = reload.look();
        (reload, asked)
    }

    /// Reloads whenever there is a reason, for as long as it is polled: on a runtime with several
    /// threads, since a file system that does not answer must stop nothing but this.
    pub(super) async fn run(mut self) {
        while let Some(reason) = settled(&mut self.reasons).await {
            let now = block_in_place(|| self.look());
            if !self.seen.differ_from(&now) && reason != Reason::Asked {
                continue;
            }
            self.seen = now;
            if self.source.file.is_none() {
                tracing::warn!("a configuration from stdin cannot be read again");
                continue;
            }
            self.reload().await;
            // Nobody watched the files that only this attempt names, which may have come since.
            self.seen.add(self.tried.clone());
            let now = block_in_place(|| self.look());
            if self.seen.differ_from(&now) {
                let _ = self.ask.try_send(Reason::Change);
            }
        }
    }

    /// Reading and checking a large file takes a while, in which requests go on.
    async fn reload(&mut self) {
        let (gateway, source) = (Arc::clone(&self.gateway), self.source.clone());
        match tokio::task::spawn_blocking(move || gateway.replace(&source)).await {
            Ok(tried) => self.tried = tried,
            Err(error) => {
                tracing::error!(
                    %error,
                    "loading the configuration ended early: the one before goes on"
                );
            }
        }
    }

    /// Watches the folders of all files, and says what is in these.
    fn look(&mut self) -> Contents {
        let mut files = files(&self.source, &self.gateway.app().plan);
        files.extend(self.tried.files().map(ToOwned::to_owned));
        self.folders.watch(&files);
        Contents::of(files)
    }
}

/// The next reason, once no more come: a file is written in several steps, and a link swapped in
/// some more. Where something always changes nearby, that is not waited for.
async fn settled(reasons: &mut mpsc::Receiver<Reason>) -> Option<Reason> {
    let mut reason = reasons.recv().await?;
    let last = Instant::now() + BUSY;
    while Instant::now() < last
        && let Ok(Some(next)) = timeout_at(last.min(Instant::now() + SETTLED), reasons.recv()).await
    {
        if next == Reason::Asked {
            reason = next;
        }
    }
    Some(reason)
}

/// Changes that follow within this time belong together.
const SETTLED: Duration = Duration::from_millis(100);

/// After this time it is looked at what there is.
const BUSY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that is written in the same folder, say.
    #[tokio::test(start_paused = true)]
    async fn a_folder_in_which_something_always_changes_hides_no_change() {
        let (sender, mut reasons) = mpsc::channel(16);
        tokio::spawn(async move {
            while sender.send(Reason::Change).await.is_ok() {
                tokio::time::sleep(SETTLED / 2).await;
            }
        });
        let started = Instant::now();
        assert_eq!(settled(&mut reasons).await, Some(Reason::Change));
        assert!(started.elapsed() <= BUSY, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_follow_each_other_are_one_and_nobody_who_asks_is_missed() {
        let (sender, mut reasons) = mpsc::channel(16);
        for reason in [Reason::Change, Reason::Asked, Reason::Change] {
            sender.send(reason).await.unwrap();
        }
        let started = Instant::now();
        assert_eq!(settled(&mut reasons).await, Some(Reason::Asked));
        assert!((SETTLED..BUSY).contains(&started.elapsed()), "{:?}", started.elapsed());
        assert!(reasons.try_recv().is_err());
    }
}
