//! `cargo xtask lines`: the lines of code by crate, with tests apart.
//!
//! Comments, documentation and blank lines do not count. The tests of a crate are in its `tests`
//! folder, in modules for `cfg(test)`, and at the end of files. Tables in folders named `cases` count,
//! too, except for blank lines and comments, which start with `# `.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use crate::process::{self, Failure};

/// The folders by purpose. An entry that ends with `/` stands for each folder in it that no other
/// entry contains.
const GROUPS: [(&str, &[&str]); 3] = [
    ("product", &["crates/", "lua"]),
    (
        "support of tests",
        &[
            "crates/tollgate-interleavings",
            "crates/tollgate-simulator",
            "crates/tollgate-store-tests",
            "crates/tollgate-test-servers",
            "fuzz",
            "tests",
        ],
    ),
    ("tools and examples", &["crates/tollgate-bench", "examples/", "xtask"]),
];

pub(crate) fn run() -> Result<(), Failure> {
    let counted = count(&process::root());
    let table = counted.map_err(|error| Failure::Broken(format!("cannot read files: {error}")))?;
    print!("{table}");
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    tests: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.tests += other.tests;
    }
}

fn count(root: &Path) -> io::Result<String> {
    let named: Vec<_> = GROUPS.iter().flat_map(|(_, folders)| *folders).collect();
    let (mut table, mut all) = (row("", &"code", &"tests"), Lines::default());
    for (group, folders) in GROUPS {
        let mut sum = Lines::default();
        for folder in folders {
            let folders = match folder.strip_suffix('/') {
                Some(parent) => folders_in(root, parent, &named)?,
                None => vec![(*folder).to_owned()],
            };
            for folder in folders {
                let lines = lines_in(&root.join(&folder))?;
                table += &row(&folder, &lines.code, &lines.tests);
                sum += lines;
            }
        }
        table += &row(&format!("= {group}"), &sum.code, &sum.tests);
        all += sum;
    }
    Ok(table + &row("= all", &all.code, &all.tests))
}

fn row(name: &str, code: &dyn Display, tests: &dyn Display) -> String {
    format!("{name:32} {code:>7} {tests:>7}\n")
}

fn folders_in(root: &Path, parent: &str, named: &[&&str]) -> io::Result<Vec<String>> {
    let mut folders = Vec::new();
    for entry in root.join(parent).read_dir()? {
        let entry = entry?;
        let name = format!("{parent}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() && !named.iter().any(|other| **other == name) {
            folders.push(name);
        }
    }
    folders.sort();
    Ok(folders)
}

fn lines_in(folder: &Path) -> io::Result<Lines> {
    let mut files = Vec::new();
    read(folder, &mut files)?;
    let modules: BTreeSet<PathBuf> =
        files.iter().flat_map(|(path, source)| test_modules(path, source)).collect();
    let mut lines = Lines::default();
    for (path, source) in &files {
        let mut modules_of_file = path.ancestors().map(|it| it.with_extension(""));
        let is_test = path.starts_with(folder.join("tests"))
            || modules_of_file.any(|module| modules.contains(&module));
        let (code, tests) = if is_test { ("", &**source) } else { split(source) };
        let count = if is_table(path) { table_lines } else { code_lines };
        lines += Lines { code: count(code), tests: count(tests) };
    }
    Ok(lines)
}

fn read(folder: &Path, files: &mut Vec<(PathBuf, String)>) -> io::Result<()> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.is_symlink() || path.ends_with("target") {
            continue;
        }
        if path.is_dir() {
            read(&path, files)?;
        } else if is_counted(&path) {
            let source = fs::read_to_string(&path)?;
            files.push((path, source));
        }
    }
    Ok(())
}

fn is_counted(path: &Path) -> bool {
    is_table(path) || path.extension().is_some_and(|it| it == "rs" || it == "lua")
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "txt")
        && path.parent().is_some_and(|folder| folder.ends_with("cases"))
}

/// Returns the paths, without extension, of the test modules that a file declares as other files.
fn test_modules(path: &Path, source: &str) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap_or_default();
    let is_root = ["lib", "main", "mod"].iter().any(|name| stem == *name);
    let folder = if is_root { path.with_file_name("") } else { path.with_extension("") };
    let declared = source.split(TEST_MODULE).skip(1).filter_map(|rest| rest.split_once(';'));
    let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    declared.map(|(name, _)| name).filter(is_name).map(|name| folder.join(name)).collect()
}

const TEST_MODULE: &str = "#[cfg(test)]\nmod ";

/// Splits a file into its code and the test module at its end, which may need a feature too.
pub(crate) fn split(source: &str) -> (&str, &str) {
    let starts = source.match_indices("#[cfg(").map(|(at, _)| at);
    let ends_here = |at: &usize| {
        let mut lines = source[*at..].lines();
        let needs_test = lines.next().is_some_and(|it| it.starts_with(TEST) || it.starts_with(ALL));
        let opens_module = |it: &str| it.starts_with("mod ") && it.ends_with('{');
        needs_test && lines.next().is_some_and(opens_module)
    };
    source.split_at(starts.into_iter().find(ends_here).unwrap_or(source.len()))
}

const TEST: &str = "#[cfg(test)]";
const ALL: &str = "#[cfg(all(test, ";

fn code_lines(source: &str) -> usize {
    let is_code =
        |line: &&str| !(line.is_empty() || line.starts_with("//") || line.starts_with("--"));
    source.lines().map(str::trim_start).filter(is_code).count()
}

/// In a table, `---` starts a file or the steps, and is no comment.
fn table_lines(source: &str) -> usize {
    source.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("# ")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_are_apart() {
        let source = "//! A file.\n\nuse a;\n\n/// Documented.\nfn f() {\n    // Why.\n    g(); // So.\n}\n\n\
                      #[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let (code, tests) = split(source);
        assert_eq!((code_lines(code), code_lines(tests)), (4, 4));
        let of_linux = source.replace("cfg(test)", "cfg(all(test, unix))");
        assert_eq!(code_lines(split(&of_linux).1), 4);
    }

    #[test]
    fn tables_count_all_but_comments() {
        let source =
            "# A table.\n## a_case\nlisten: a\n--- file.yaml\n  # kept\n\n---\nGET //a -> 200\n";
        assert_eq!(table_lines(source), 6);
        assert!(is_table(Path::new("tests/cases/a.txt")) && !is_table(Path::new("tests/a.txt")));
    }

    #[test]
    fn test_modules_are_found_in_other_files() {
        let source = "mod a;\n#[cfg(test)]\nmod search;\nfn f() {}\n#[cfg(test)]\nmod tests {\n}\n";
        let modules = |path: &str| test_modules(Path::new(path), source);
        assert_eq!(modules("src/blocks/mod.rs"), [Path::new("src/blocks/search")]);
        assert_eq!(modules("src/blocks.rs"), [Path::new("src/blocks/search")]);
        assert!(split(source).0.ends_with("fn f() {}\n"));
    }

    #[test]
    fn every_group_has_code() {
        let table = count(&process::root()).unwrap();
        for name in ["crates/tollgate-core ", "lua ", "tests ", "examples/demo ", "= all "] {
            let line = table.lines().find(|line| line.starts_with(name)).expect(name);
            assert!(line.split_whitespace().any(|it| it.parse().is_ok_and(|n: usize| n > 100)));
        }
    }
}
