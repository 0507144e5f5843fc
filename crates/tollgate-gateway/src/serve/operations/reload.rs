//! Loads the configuration again when its files change, and on SIGHUP.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tollgate::observe::Inspect;

use super::loader::{Fingerprints, Loader, files, settled};
use crate::serve::gateway::Gateway;

pub(crate) struct Reload<St: Inspect> {
    gateway: Arc<Gateway<St>>,
    loader: Loader,
    asked: Arc<Notify>,
    /// The contents of the files that the last attempt named, read before it. Also set if it
    /// failed.
    tried: Fingerprints,
    seen: Fingerprints,
}

#[derive(Clone)]
pub(crate) struct Ask(Arc<Notify>);

impl Ask {
    pub(crate) fn now(&self) {
        self.0.notify_one();
    }
}

impl<St: Inspect> Reload<St> {
    pub(crate) fn new(gateway: Arc<Gateway<St>>, loader: Loader) -> (Self, Ask) {
        let asked = Arc::new(Notify::new());
        let ask = Ask(Arc::clone(&asked));
        let (tried, seen) = Default::default();
        let mut reload = Self { gateway, loader, asked, tried, seen };
        reload.seen = reload.look();
        (reload, ask)
    }

    /// Reloads when the files change or `Ask` requests it. Needs a multi-threaded runtime, because
    /// a hanging file system must not block other tasks.
    pub(crate) async fn run(mut self) {
        loop {
            let is_asked = timeout(INTERVAL, self.asked.notified()).await.is_ok();
            let now = block_in_place(|| self.look());
            if !self.seen.differ_from(&now) && !is_asked {
                self.seen.adopt_metadata(&now);
                continue;
            }
            self.seen = settled(now, || block_in_place(|| self.look())).await;
            if self.loader.file.is_none() {
                tracing::warn!("a configuration from stdin cannot be read again");
                continue;
            }
            self.reload().await;
            // Add the files that only this attempt names.
            self.seen.add(self.tried.clone());
        }
    }

    /// Loads the configuration on a blocking thread, because a large file takes time.
    async fn reload(&mut self) {
        let (gateway, loader) = (Arc::clone(&self.gateway), self.loader.clone());
        match tokio::task::spawn_blocking(move || gateway.replace(&loader)).await {
            Ok(tried) => self.tried = tried,
            Err(error) => {
                tracing::error!(
                    %error,
                    "loading the configuration ended early: the earlier one stays in use"
                );
            }
        }
    }

    fn look(&self) -> Fingerprints {
        let mut files = files(&self.loader, &self.gateway.app().plan);
        files.extend(self.tried.files().map(ToOwned::to_owned));
        Fingerprints::of(files, &self.seen)
    }
}

const INTERVAL: Duration = Duration::from_millis(500);
