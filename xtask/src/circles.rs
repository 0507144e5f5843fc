//! Files in a crate must not import each other in a circle.
//!
//! An import refers to the file that defines the name, so re-exports are followed. A re-export only
//! counts as an import if its file also uses the name. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::process::{self, Failure};

/// The crates that must not contain a circle.
const CRATES: [&str; 8] = [
    "tollgate",
    "tollgate-admin",
    "tollgate-cli",
    "tollgate-config",
    "tollgate-engine",
    "tollgate-gateway",
    "tollgate-memory",
    "tollgate-redis",
];

pub(crate) fn run() -> Result<(), Failure> {
    for name in CRATES {
        let folder = process::root().join("crates").join(name).join("src");
        let mut files = Files::default();
        files.read(&folder, &[]).map_err(|error| {
            Failure::Broken(format!("cannot read {}: {error}", folder.display()))
        })?;
        if files.0.len() < 3 {
            return Err(Failure::Broken(format!("{} has no sources", folder.display())));
        }
        if let Some(circle) = files.circle() {
            return Err(Failure::Broken(format!(
                "files of {name} import each other in a circle: {}\n\
                 cure: move what both need into a file that imports neither",
                circle.join(" → "),
            )));
        }
        println!("{name}: no circle in {} files", files.0.len());
    }
    Ok(())
}

/// A path to a module or a name in a module, without `crate`.
type Name = Vec<String>;

/// A crate's files, by their modules.
#[derive(Default)]
struct Files(BTreeMap<Name, File>);

#[derive(Default)]
struct File {
    defined: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in the code, such as `crate::key::route::pattern`.
    paths: Vec<Name>,
    words: BTreeSet<String>,
}

struct Import {
    path: Name,
    alias: String,
    is_public: bool,
}

impl Files {
    fn read(&mut self, folder: &Path, module: &[String]) -> std::io::Result<()> {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let name = match &*stem {
                "tests" => continue,
                "mod" | "lib" => module.to_vec(),
                _ => [module, &[stem]].concat(),
            };
            if path.is_dir() {
                self.read(&path, &name)?;
            } else if path.extension().is_some_and(|it| it == "rs") {
                self.0.insert(name, File::parse(&fs::read_to_string(path)?));
            }
        }
        Ok(())
    }

    /// Resolves a path in a module to an absolute path. `None` if it leads out of the crate.
    /// Follows at most `depth` imports, because imports from outer crates may refer to each other.
    fn absolute(&self, module: &[String], path: &[String], depth: usize) -> Option<Name> {
        let supers = path.iter().take_while(|it| *it == "super").count();
        let (base, rest) = match path.first().map(String::as_str) {
            Some("crate") => (&[][..], &path[1..]),
            Some("self") => (module, &path[1..]),
            Some("super") => (module.get(..module.len().checked_sub(supers)?)?, &path[supers..]),
            Some(first) => {
                if self.0.contains_key(&[module, &[first.to_owned()]].concat()) {
                    (module, path)
                } else {
                    let imports = &self.0[module].imports;
                    let import = imports.iter().find(|it| it.alias == first)?;
                    let depth = depth.checked_sub(1)?;
                    let start = self.absolute(module, &import.path, depth)?;
                    return Some([&*start, &path[1..]].concat());
                }
            }
            None => return None,
        };
        Some([base, rest].concat())
    }

    /// Finds the module that defines a name.
    fn file(&self, name: &[String], depth: usize) -> Option<Name> {
        let (length, file) =
            (0..=name.len()).rev().find_map(|it| Some((it, self.0.get(&name[..it])?)))?;
        let (module, rest) = name.split_at(length);
        let Some(first) = rest.first().filter(|first| !file.defined.contains(*first)) else {
            return Some(module.to_vec());
        };
        if depth == 0 {
            return None;
        }
        file.imports.iter().find_map(|import| {
            let path = self.absolute(module, &import.path, MAX_DEPTH)?;
            if import.alias == "*" && import.is_public {
                self.file(&[&path[..path.len() - 1], rest].concat(), depth - 1)
            } else if import.alias == *first {
                self.file(&[&*path, &rest[1..]].concat(), depth - 1)
            } else {
                None
            }
        })
    }

    fn imported(&self, module: &Name) -> BTreeSet<Name> {
        let file = &self.0[module];
        let counts = |it: &&Import| !it.is_public || file.words.contains(&it.alias);
        let imports = file.imports.iter().filter(counts).map(|it| &it.path);
        let paths =
            imports.chain(&file.paths).filter_map(|path| self.absolute(module, path, MAX_DEPTH));
        paths.filter_map(|path| self.file(&path, MAX_DEPTH)).filter(|it| it != module).collect()
    }

    fn circle(&self) -> Option<Vec<String>> {
        let graph: BTreeMap<_, _> =
            self.0.keys().map(|module| (module, self.imported(module))).collect();
        // Remove files without imports until only circles remain.
        let mut left: BTreeSet<_> = graph.keys().copied().collect();
        while let Some(end) = left.iter().find(|it| graph[**it].is_disjoint(&owned(&left))) {
            let end = *end;
            left.remove(end);
        }
        let mut way = vec![*left.first()?];
        loop {
            let last = way[way.len() - 1];
            let next = *left.iter().find(|it| graph[last].contains(**it))?;
            if let Some(start) = way.iter().position(|it| *it == next) {
                way.push(next);
                return Some(
                    way[start..].iter().map(|it| format!("{}.rs", it.join("/"))).collect(),
                );
            }
            way.push(next);
        }
    }
}

/// The longest chain of re-exports or imports that is followed.
const MAX_DEPTH: usize = 9;

fn owned(names: &BTreeSet<&Name>) -> BTreeSet<Name> {
    names.iter().map(|name| (*name).clone()).collect()
}

impl File {
    fn parse(source: &str) -> Self {
        let code = code(source);
        let mut file = Self::default();
        let mut rest = String::new();
        let mut statement: Option<(bool, String)> = None;
        for line in code.lines() {
            let trimmed = line.trim_start();
            let start = trimmed.split_once("use ").filter(|(before, _)| {
                before.is_empty() || (before.starts_with("pub") && !before.contains("fn"))
            });
            if let Some((before, tree)) = start.filter(|_| statement.is_none()) {
                statement = Some((!before.is_empty(), tree.to_owned()));
            } else if let Some((_, tree)) = &mut statement {
                tree.push_str(line);
            } else {
                rest.push_str(line);
                rest.push('\n');
            }
            if let Some((is_public, tree)) = statement.take_if(|(_, tree)| tree.contains(';')) {
                let tree = tree.split(';').next().unwrap_or_default();
                flatten(tree, &[], is_public, &mut file.imports);
            }
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let words: Vec<_> = rest.split(|c| !is_word(c)).filter(|it| !it.is_empty()).collect();
        for pair in words.windows(2) {
            let kinds = ["struct", "enum", "trait", "fn", "type", "const", "static", "macro_rules"];
            if kinds.contains(&pair[0]) {
                file.defined.insert(pair[1].to_owned());
            }
        }
        file.words = words.iter().map(|&word| word.to_owned()).collect();
        let paths = rest.split(|c| !is_word(c) && c != ':').filter(|it| it.contains("::"));
        let segments = |path: &str| path.split("::").map(str::to_owned).collect::<Name>();
        let starts_low = |path: &Name| path[0].starts_with(char::is_lowercase);
        file.paths = paths.map(segments).filter(starts_low).collect();
        file
    }
}

/// Removes comments, string literals, and the tests at the end.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = source.lines().map(|line| {
        let mut parts = line.split("//").next().unwrap_or_default().split('"');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.skip(1).step_by(2).fold(first, |code, part| code + part)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Collects the paths in an import such as `super::{a::{self, B}, c}`.
fn flatten(tree: &str, prefix: &[String], is_public: bool, imports: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((start, list)) = tree.split_once('{') {
        let segments = start.split("::").map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
        let prefix: Name = prefix.iter().cloned().chain(segments).collect();
        let list = list.trim_end().strip_suffix('}').unwrap_or(list);
        let mut depth = 0;
        let parts = list.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        parts.for_each(|part| flatten(part, &prefix, is_public, imports));
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let segments = path.trim().split("::").map(str::to_owned);
        let mut path: Name = prefix.iter().cloned().chain(segments).collect();
        if path.len() > 1 && path[path.len() - 1] == "self" {
            path.pop();
        }
        let last = path[path.len() - 1].clone();
        let alias = if alias.is_empty() { last } else { alias.trim().to_owned() };
        imports.push(Import { path, alias, is_public });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> Option<Vec<String>> {
        let module = |name: &str| {
            name.split('/').filter(|it| !it.is_empty()).map(str::to_owned).collect::<Name>()
        };
        let files = files.iter().map(|(name, source)| (module(name), File::parse(source)));
        Files(files.collect()).circle()
    }

    #[test]
    fn imports_are_followed_through_re_exports() {
        let root = ("", "mod a;\npub mod b;\npub use a::A;\n");
        let a = ("a", "use crate::b::B;\npub struct A(B);\n");
        assert_eq!(circle(&[root, a, ("b", "pub struct B;\n")]), None);
        let b = ("b", "use crate::A;\npub struct B(Option<Box<A>>);\n");
        assert_eq!(circle(&[root, a, b]).unwrap(), ["a.rs", "b.rs", "a.rs"]);
        let in_code = ("b", "pub struct B;\nfn f() {\n    super::a::A::new();\n}\n");
        assert!(circle(&[root, a, in_code]).is_some());
    }

    #[test]
    fn comments_strings_and_tests_do_not_count() {
        let a = ("a", "use crate::b::B;\npub struct A(B);\n");
        let b = "/// See [`crate::a::A`].\npub struct B;\nconst T: &str = \"crate::a::A\";\n\
                 #[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
        assert_eq!(circle(&[("", "mod a;\nmod b;\n"), a, ("b", b)]), None);
    }

    #[test]
    fn circular_imports_end_the_search() {
        let a = ("a", "use b::c;\nuse c::b;\nfn f() {\n    b::g();\n}\n");
        assert_eq!(circle(&[("", "mod a;\n"), a]), None);
    }

    #[test]
    fn pure_re_exports_do_not_count() {
        let child = ("a/b", "use super::T;\npub struct B(T);\n");
        let root = ("", "mod a;\n");
        let re_export = "mod b;\npub use self::b::B;\npub struct T;\n";
        assert_eq!(circle(&[root, ("a", re_export), child]), None);
        let use_of_it = "mod b;\npub use self::b::B;\npub struct T;\nfn f(_: B) {}\n";
        assert!(circle(&[root, ("a", use_of_it), child]).is_some());
    }
}
