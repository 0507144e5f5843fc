//! Starts replicas and opens their page.

use std::path::Path;

use tempfile::TempDir;
use tollgate_test_servers::Set;

use super::browser::Tab;
pub(crate) use crate::whole::support::TOKEN;
use crate::whole::support::start;

/// Three replicas behind nginx, and the first replica's page.
pub(crate) struct Stage {
    pub(crate) set: Set,
    pub(crate) tab: Tab,
    _folder: TempDir,
}

impl Stage {
    pub(crate) fn new(flags: &[&str]) -> Self {
        let set = start(flags);
        let folder = tempfile::tempdir().unwrap();
        let tab = Tab::open(&format!("http://{}", set.admins[0]), folder.path());
        Self { set, tab, _folder: folder }
    }

    pub(crate) fn wait_until_live(&self) {
        self.tab.shows("#connection", "3 of 3 live");
    }
}

/// Updates a picture in the documentation with `TOLLGATE_BLESS=1`.
pub(crate) fn bless(name: &str, picture: &[u8]) {
    assert!(picture.starts_with(b"\x89PNG"));
    assert!((10_000..200_000).contains(&picture.len()), "{name}: {} bytes", picture.len());
    if std::env::var("TOLLGATE_BLESS").is_ok_and(|value| value == "1") {
        let images = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images"));
        std::fs::write(images.join(name), picture).unwrap();
    }
}
