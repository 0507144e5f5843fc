//! Starts replicas and opens their page.

use std::path::Path;

use tempfile::TempDir;
use tollgate_replicas::{Admin, Order, Set};

use super::browser::Tab;

pub(crate) const TOKEN: &str = "0123456789abcdef";

/// Three replicas behind nginx, and the first replica's page.
pub(crate) struct Stage {
    pub(crate) set: Set,
    pub(crate) tab: Tab,
    _folder: TempDir,
}

impl Stage {
    pub(crate) fn new(flags: &[&str]) -> Self {
        // Long enough for a busy machine, unless the test sets its own timeout.
        let patient: &[&str] =
            if flags.contains(&"--store-timeout") { &[] } else { &["--store-timeout", "10s"] };
        let usual = patient.iter().chain(&["--on-store-error", "closed"]);
        let order = Order {
            program: env!("CARGO_BIN_EXE_replica").into(),
            port: 0,
            replica_port: 0,
            redis_port: 0,
            flags: usual.chain(flags).map(|flag| (*flag).to_owned()).collect(),
            variables: vec![("RUST_LOG".to_owned(), "error".to_owned())],
            admin: Some(Admin { port: 0, token: TOKEN.to_owned() }),
        };
        let set = Set::start(&order).unwrap_or_else(|failure| panic!("{failure}"));
        let folder = tempfile::tempdir().unwrap();
        let tab = Tab::open(&format!("http://{}", set.admins[0]), folder.path());
        Self { set, tab, _folder: folder }
    }

    pub(crate) fn wait_until_live(&self) {
        self.tab.shows("#connection", "3 of 3 live");
    }
}

/// Updates a picture in the documentation if `cargo xtask screenshot` runs the test.
pub(crate) fn bless(name: &str, picture: &[u8]) {
    assert!(picture.starts_with(b"\x89PNG"));
    assert!((10_000..150_000).contains(&picture.len()), "{name}: {} bytes", picture.len());
    if std::env::var("TOLLGATE_BLESS").is_ok_and(|value| value == "1") {
        let images = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images"));
        std::fs::write(images.join(name), picture).unwrap();
    }
}
