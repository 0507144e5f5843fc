//! Files of a crate must not use each other in a circle.
//!
//! A file uses another file if a name in its code is defined there: a type, a function, a method, a
//! field, a constant or a macro. `rust-analyzer lsif` resolves the names, so names that macros
//! define and `impl` blocks in several files count. Names of modules, re-exports, tests and
//! disabled features do not count.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::arrows::reached_from;
use crate::lines;
use crate::process::{self, Failure};

/// The crates without circles. In the others, two names need each other: a policy has an algorithm,
/// which decides about a policy, and a request to a model or a log format calls its parser.
const CRATES: [&str; 9] = [
    "tollgate",
    "tollgate-admin",
    "tollgate-cli",
    "tollgate-config",
    "tollgate-engine",
    "tollgate-gateway",
    "tollgate-memory",
    "tollgate-proxy",
    "tollgate-redis",
];

/// A circle that must exist.
struct Exception {
    package: &'static str,
    files: &'static [&'static str],
}

const EXCEPTIONS: [Exception; 1] = [
    // A call may find that another node has a request's key, and then the request is queued again.
    Exception {
        package: "tollgate-redis",
        files: &[
            "calls/combiner/call.rs",
            "calls/combiner/lane.rs",
            "calls/combiner/redirect.rs",
            "calls/combiner/submit.rs",
        ],
    },
];

pub(crate) fn run() -> Result<(), Failure> {
    println!("+ rust-analyzer lsif (takes minutes and 4 GB)");
    let mut analyzer = Command::new("rust-analyzer");
    analyzer.args(["lsif", "--exclude-vendored-libraries", "."]).current_dir(process::root());
    analyzer.stdout(Stdio::piped()).stderr(Stdio::null());
    let unready = |error| {
        Failure::Unready(format!(
            "cannot run rust-analyzer: {error}\ncure: rustup component add rust-analyzer"
        ))
    };
    let mut child = analyzer.spawn().map_err(unready)?;
    let mut index = Index::default();
    let output = child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines());
    for line in output {
        index.read(&line.map_err(unready)?)?;
    }
    if !child.wait().map_err(unready)?.success() {
        return Err(Failure::Unready("rust-analyzer failed".to_owned()));
    }
    let mut problems = Vec::new();
    for package in CRATES {
        let uses = index.uses(&process::root().join("crates").join(package).join("src"))?;
        if uses.files.len() < 3 {
            return Err(Failure::Broken(format!("rust-analyzer found no files of {package}")));
        }
        let found = uses.problems(package);
        if found.is_empty() {
            println!("{package}: no circle in {} files", uses.files.len());
        }
        problems.extend(found);
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Broken(problems.join("\n"))) }
}

/// A file's use of another file, by their paths.
#[derive(Debug, Default)]
struct Uses {
    files: BTreeSet<String>,
    /// A used name for each pair of files.
    names: BTreeMap<(String, String), String>,
}

impl Uses {
    /// Describes circles that must not exist, and exceptions that are not necessary.
    fn problems(&self, package: &str) -> Vec<String> {
        let mut circles = self.circles();
        let mut problems = Vec::new();
        for Exception { files, .. } in EXCEPTIONS.iter().filter(|it| it.package == package) {
            match circles.iter().position(|circle| circle == *files) {
                Some(known) => drop(circles.remove(known)),
                None => problems.push(format!(
                    "{package} has no circle of {} any more\n\
                     cure: remove it from xtask/src/circles.rs",
                    files.join(", "),
                )),
            }
        }
        problems.extend(circles.iter().map(|circle| self.describe(package, circle)));
        problems
    }

    fn describe(&self, package: &str, circle: &[String]) -> String {
        let mut text = format!("files of {package} use each other in a circle:");
        for ((user, file), name) in &self.names {
            if circle.contains(user) && circle.contains(file) {
                text += &format!("\n  {user} uses {file}: {name}");
            }
        }
        text + "\ncure: move what both need into a file that uses neither"
    }

    /// Returns the groups of files in which each file leads to each other file.
    fn circles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<_, _> =
            self.files.iter().map(|file| (file, reached_from(file, &self.names.keys()))).collect();
        let mut circles = Vec::new();
        for (file, ends) in &reached {
            let circle: Vec<_> = ends.iter().filter(|end| reached[*end].contains(*file)).collect();
            // Each circle is listed at its first file.
            if circle.first() == Some(file) {
                circles.push(circle.into_iter().cloned().collect());
            }
        }
        circles
    }
}

/// The definitions and references in an index of the Language Server Index Format, by its ids.
#[derive(Debug, Default)]
struct Index {
    documents: HashMap<u64, String>,
    ranges: HashMap<u64, Position>,
    definitions: Vec<Item>,
    references: HashMap<u64, Vec<Item>>,
}

/// Where a name starts.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Position {
    line: usize,
    character: usize,
}

#[derive(Debug, Deserialize)]
struct Document {
    id: u64,
    uri: String,
}

#[derive(Debug, Deserialize)]
struct Range {
    id: u64,
    start: Position,
}

/// The ranges of a name in a document. Those of one definition have the same `outV`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    out_v: u64,
    in_vs: Vec<u64>,
    document: u64,
    property: Option<String>,
}

impl Index {
    /// Reads a line of the index. Most lines describe what an editor shows, and are not parsed.
    fn read(&mut self, line: &str) -> Result<(), Failure> {
        let is = |label| line.contains(label);
        if is(r#""label":"range""#) {
            let Range { id, start } = parse(line)?;
            self.ranges.insert(id, start);
        } else if is(r#""label":"document""#) {
            let Document { id, uri } = parse(line)?;
            self.documents.insert(id, uri.trim_start_matches("file://").to_owned());
        } else if is(r#""label":"item""#) {
            let item: Item = parse(line)?;
            match item.property.as_deref() {
                Some("definitions") => self.definitions.push(item),
                Some("references") => self.references.entry(item.out_v).or_default().push(item),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the uses between the files in a folder.
    fn uses(&self, folder: &Path) -> Result<Uses, Failure> {
        let mut uses = Uses::default();
        let mut files = HashMap::new();
        for (id, path) in &self.documents {
            if let Ok(name) = Path::new(path).strip_prefix(folder) {
                let source = fs::read_to_string(path);
                let source = source.map_err(|error| Failure::Broken(format!("{path}: {error}")))?;
                let name = name.to_string_lossy().into_owned();
                uses.files.insert(name.clone());
                files.insert(*id, File::new(name, &source));
            }
        }
        for definition in &self.definitions {
            let Some(file) = files.get(&definition.document) else { continue };
            let mut names =
                definition.in_vs.iter().filter_map(|it| file.defined(*self.ranges.get(it)?));
            let Some(name) = names.next() else { continue };
            for item in self.references.get(&definition.out_v).into_iter().flatten() {
                let Some(user) = files.get(&item.document) else { continue };
                let mut positions = item.in_vs.iter().filter_map(|it| self.ranges.get(it));
                if user.name != file.name && positions.any(|position| user.is_use(*position)) {
                    let ends = (user.name.clone(), file.name.clone());
                    uses.names.entry(ends).or_insert_with(|| name.to_owned());
                }
            }
        }
        Ok(uses)
    }
}

fn parse<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, Failure> {
    serde_json::from_str(line).map_err(|error| {
        Failure::Broken(format!("rust-analyzer printed what xtask cannot read: {error}"))
    })
}

/// The lines of a file without its tests.
#[derive(Debug)]
struct File {
    name: String,
    lines: Vec<String>,
    /// Whether each line belongs to a re-export.
    is_re_export: Vec<bool>,
}

impl File {
    fn new(name: String, source: &str) -> Self {
        let lines: Vec<_> = lines::split(source).0.lines().map(str::to_owned).collect();
        let mut is_inside = false;
        let is_re_export = lines.iter().map(|line| {
            let line = line.trim_start();
            let is_re_export = is_inside
                || line.starts_with("pub use ")
                || line.starts_with("pub(") && line.contains(") use ");
            is_inside = is_re_export && !line.contains(';');
            is_re_export
        });
        let is_re_export = is_re_export.collect();
        Self { name, lines, is_re_export }
    }

    /// Returns the name that is defined at this position, unless it is a module's or a test's.
    fn defined(&self, position: Position) -> Option<&str> {
        let (before, name) = self.lines.get(position.line)?.split_at_checked(position.character)?;
        let is_module = before.ends_with("mod ") || (position.line, position.character) == (0, 0);
        let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
        (!is_module).then_some(&name[..end])
    }

    /// Whether a reference counts.
    fn is_use(&self, position: Position) -> bool {
        self.is_re_export.get(position.line) == Some(&false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(uses: &[(&str, &str)]) -> Uses {
        let mut all = Uses::default();
        for (user, file) in uses {
            all.files.extend([*user, *file].map(str::to_owned));
            all.names.insert(((*user).to_owned(), (*file).to_owned()), "Name".to_owned());
        }
        all
    }

    fn circles(pairs: &[(&str, &str)]) -> Vec<Vec<String>> {
        uses(pairs).circles()
    }

    #[test]
    fn only_exceptions_are_accepted() {
        let [Exception { package, files: [call, lane, redirect, submit] }] = EXCEPTIONS else {
            panic!("another exception");
        };
        let known = [(*call, *lane), (lane, redirect), (redirect, submit), (submit, call)];
        assert!(uses(&known).problems(package).is_empty());
        assert!(
            uses(&known).problems("other")[0].contains("call.rs uses calls/combiner/lane.rs: Name")
        );
        let [missing] = &uses(&known[1..]).problems(package)[..] else { panic!("one problem") };
        assert!(missing.contains("no circle"), "{missing}");
        let more = [&known[..], &[("a", "b"), ("b", "a")]].concat();
        assert_eq!(uses(&more).problems(package).len(), 1);
    }

    #[test]
    fn circles_of_any_length_are_found() {
        assert!(circles(&[("a", "b"), ("a", "c"), ("b", "c")]).is_empty());
        assert_eq!(circles(&[("b", "a"), ("a", "b"), ("b", "c")]), [["a", "b"]]);
        let two = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")];
        assert_eq!(circles(&two), [vec!["a", "b", "c"], vec!["d", "e"]]);
    }

    /// The index of a definition in the second file at `defined`, and of a reference in the first
    /// file at `used`.
    fn used(sources: [&str; 2], defined: (usize, usize), used: (usize, usize)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let mut index = Index::default();
        for (id, source) in sources.iter().enumerate() {
            let path = folder.path().join(format!("{id}.rs"));
            fs::write(&path, source).unwrap();
            let uri = path.display();
            index
                .read(&format!(
                    r#"{{"id":{id},"type":"vertex","label":"document","uri":"file://{uri}"}}"#
                ))
                .unwrap();
        }
        for (id, (line, character)) in [(10, defined), (11, used)] {
            let position = format!(r#"{{"line":{line},"character":{character}}}"#);
            let range = format!(
                r#"{{"id":{id},"type":"vertex","label":"range","start":{position},"end":{position}}}"#
            );
            index.read(&range).unwrap();
        }
        for (property, document, range) in [("definitions", 1, 10), ("references", 0, 11)] {
            index.read(&format!(
                r#"{{"id":20,"type":"edge","label":"item","document":{document},"property":"{property}","inVs":[{range}],"outV":15}}"#
            )).unwrap();
        }
        let uses = index.uses(folder.path()).unwrap();
        uses.names.contains_key(&("0.rs".to_owned(), "1.rs".to_owned()))
    }

    #[test]
    fn names_in_code_are_uses() {
        let definition = "//! Docs.\npub struct Name;\npub mod name;\n";
        assert!(used(["fn f(_: Name) {}\n", definition], (1, 11), (0, 8)));
        assert!(used(["use super::Name;\n", definition], (1, 11), (0, 11)));
        assert!(!used(["use super::name;\n", definition], (2, 8), (0, 11)), "a module");
        assert!(!used(["use super::one;\n", definition], (0, 0), (0, 11)), "a file");
        assert!(!used(["pub use super::{\n    Name,\n};\n", definition], (1, 11), (1, 4)));
        let test = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use super::Name;\n}\n";
        assert!(!used([test, definition], (1, 11), (3, 15)));
    }
}
