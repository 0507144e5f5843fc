//! Properties that a test cannot see from outside.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use http::{HeaderValue, Request};
use tollgate_core::{Decision, Key, Timestamp, Verdict};

use super::cancel::next_id;
use super::conclude::seed_of;
use crate::RequestHead;

#[test]
fn the_jitter_of_a_key_is_the_same_on_all_replicas_and_of_all_versions() {
    // FNV-1a as its authors published it.
    for (key, expected) in [
        ("", 0xcbf2_9ce4_8422_2325),
        ("a", 0xaf63_dc4c_8601_ec8c),
        ("foobar", 0x8594_4171_f739_67e8),
    ] {
        assert_eq!(seed_of([Key::from(key)].iter()), expected, "{key:?}");
    }
}

#[test]
fn clients_are_told_apart_behind_a_limit_that_all_share() {
    let seed = |client: &str| seed_of([Key::GLOBAL, Key::from(client)].iter());
    assert_ne!(seed("a"), seed("b"));
}

#[test]
fn receipts_have_names_of_their_own_in_all_threads() {
    let decision = Decision::undecided(1);
    let names = move || {
        let verdict = Verdict::single(true, Timestamp::EPOCH, decision);
        (0..1_000).map(|_| next_id(&verdict)).collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(names)).collect();
    let all: HashSet<_> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).chain(names()).collect();
    assert_eq!(all.len(), 5_000);
}

#[test]
fn only_a_whole_preflight_is_one() {
    for (method, headers, expected) in [
        ("OPTIONS", &["origin", "access-control-request-method"][..], true),
        ("OPTIONS", &["origin"], false),
        ("OPTIONS", &["access-control-request-method"], false),
        ("OPTIONS", &["origin", "access-control-request-headers"], false),
        ("POST", &["origin", "access-control-request-method"], false),
    ] {
        let mut request = Request::builder().method(method).body(()).unwrap();
        for name in headers {
            request.headers_mut().insert(*name, HeaderValue::from_static("x"));
        }
        assert_eq!(RequestHead::of(&request).is_preflight(), expected, "{method} {headers:?}");
    }
}

/// Each file of the folder, with the files that it imports.
fn imports() -> BTreeMap<String, Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/layer");
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|it| it == "rs"));
    // An indented import is in the tests of the same file.
    let names = |source: &str| -> Vec<_> {
        let imports = source.lines().filter_map(|line| line.strip_prefix("use super::"));
        imports.filter_map(|import| Some(import.split_once("::")?.0.to_owned())).collect()
    };
    let file = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, names(&std::fs::read_to_string(&path).unwrap()))
    };
    sources.map(file).filter(|(name, _)| name != "mod" && name != "tests").collect()
}

/// The levels of a file and of all that it imports.
fn levels(file: &str, imports: &BTreeMap<String, Vec<String>>, above: &[&str]) -> usize {
    assert!(!above.contains(&file), "a circle: {above:?}, {file}");
    let above = [above, &[file]].concat();
    let below = imports[file].iter().map(|below| levels(below, imports, &above));
    1 + below.max().unwrap_or_default()
}

#[test]
fn files_import_each_other_without_a_circle_and_in_at_most_seven_levels() {
    let imports = imports();
    let highest = imports.keys().map(|file| levels(file, &imports, &[])).max().unwrap();
    assert!((3..=7).contains(&highest), "{highest} levels: {imports:?}");
}
