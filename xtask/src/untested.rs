//! Targets with `test = false` must contain no tests, because no command would run them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::Failure;
use crate::workspace;

pub(crate) fn run() -> Result<(), Failure> {
    let mut lost = Vec::new();
    for root in workspace::untested_targets()? {
        let files = sources(&root)
            .map_err(|error| Failure::Broken(format!("cannot read {}: {error}", root.display())))?;
        lost.extend(files.into_iter().filter(|file| has_tests(file)));
    }
    let Some(file) = lost.first() else { return Ok(()) };
    Err(Failure::Broken(format!(
        "the tests in {} never run, because the manifest sets `test = false` for their target\n\
         cure: remove that line from the manifest",
        file.display()
    )))
}

/// The source files of the target with this root file.
fn sources(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let folder = root.parent().unwrap_or(root);
    let is_lib = root.file_name() == Some(OsStr::new("lib.rs"));
    let has_folder = root.file_name() == Some(OsStr::new("main.rs"));
    if !is_lib && (!has_folder || folder.join("lib.rs").exists()) {
        return Ok(vec![root.to_owned()]);
    }
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            if path.is_dir() {
                // Each program in this folder is its own target.
                folders.extend((path.file_name() != Some(OsStr::new("bin"))).then_some(path));
            } else if path.extension() == Some(OsStr::new("rs")) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

fn has_tests(file: &Path) -> bool {
    let is_test = |line: &str| {
        let line = line.trim_start();
        ["#[test]", "#[tokio::test", "proptest!"].iter().any(|test| line.starts_with(test))
    };
    fs::read_to_string(file).is_ok_and(|text| text.lines().any(is_test))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_per_target() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            file
        };
        let lib = write("lib.rs", "mod deep;");
        let deep = write("deep/a.rs", "    #[tokio::test(flavor = \"multi_thread\")]\n");
        let main = write("main.rs", "fn main() {}");
        let program = write("bin/one/main.rs", "#[test]");
        let with_tests = |root: &Path| -> Vec<_> {
            sources(root).unwrap().into_iter().filter(|file| has_tests(file)).collect()
        };
        assert_eq!(with_tests(&lib), [deep]);
        assert!(with_tests(&main).is_empty());
        assert_eq!(with_tests(&program).len(), 1);
    }
}
