//! The arrows between crates in ARCHITECTURE.md are the workspace's dependencies.
//!
//! A solid arrow is a dependency, a dotted arrow an optional dependency. An arrow may be missing if
//! a path of solid arrows has the same ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::process::{self, Failure};
use crate::workspace::{Dependency, Metadata, Package};

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(crate) fn run() -> Result<(), Failure> {
    let packages = Metadata::read()?.packages;
    let drawing = Drawing::parse(&process::read_file(DOCUMENT)?);
    if drawing.crates.len() < 2 {
        return Err(Failure::Broken(format!("{DOCUMENT} has no drawing of the crates")));
    }
    if let Some(problem) = drawing.problem(&packages) {
        return Err(Failure::Broken(format!(
            "the drawing of the crates in {DOCUMENT} is wrong: {problem}"
        )));
    }
    println!("{DOCUMENT}: the arrows between {} crates are true", drawing.crates.len());
    Ok(())
}

/// A flowchart of crates.
#[derive(Debug, Default)]
struct Drawing {
    /// The drawn crates' full names by their short names.
    crates: BTreeMap<String, String>,
    /// Arrows between short names.
    solid: BTreeSet<(String, String)>,
    dotted: BTreeSet<(String, String)>,
}

impl Drawing {
    /// Reads the last flowchart of a document.
    fn parse(document: &str) -> Self {
        let mut drawing = Self::default();
        let chart = document.rsplit("flowchart ").next().unwrap_or_default();
        let chart = chart.split("```").next().unwrap_or_default();
        for line in chart.lines().skip(1) {
            let mut from = Vec::new();
            let mut is_dotted = false;
            for part in line.split("->") {
                let (nodes, next_is_dotted) = match part.split_once(" -. ") {
                    Some((nodes, _)) => (nodes, true),
                    None => (part.trim_end_matches('-'), false),
                };
                let to: Vec<_> = nodes.split('&').map(|node| drawing.node(node.trim())).collect();
                let arrows = if is_dotted { &mut drawing.dotted } else { &mut drawing.solid };
                for from in &from {
                    arrows.extend(to.iter().map(|to: &String| (String::clone(from), to.clone())));
                }
                (from, is_dotted) = (to, next_is_dotted);
            }
        }
        drawing
    }

    /// Reads a node such as `core[tollgate-core: the specification]`, and returns its short name.
    fn node(&mut self, node: &str) -> String {
        let (short, label) = node.split_once('[').unwrap_or((node, ""));
        if let Some((name, _)) = label.split_once(':').or_else(|| label.split_once(']')) {
            self.crates.insert(short.to_owned(), name.to_owned());
        }
        short.to_owned()
    }

    fn problem(&self, packages: &[Package]) -> Option<String> {
        let package =
            |short: &String| packages.iter().find(|it| Some(&it.name) == self.crates.get(short));
        for (arrows, is_optional) in [(&self.solid, false), (&self.dotted, true)] {
            for (from, to) in arrows {
                let is_arrow = |it: &Dependency| {
                    it.kind.is_none()
                        && it.optional == is_optional
                        && Some(&it.name) == self.crates.get(to)
                };
                if !package(from).is_some_and(|from| from.dependencies.iter().any(is_arrow)) {
                    let kind = if is_optional { "an optional" } else { "a required" };
                    return Some(format!("{from} → {to} is not {kind} dependency"));
                }
            }
        }
        for from in self.crates.keys() {
            let reached = reached_from(from, &self.solid.iter());
            for dependency in package(from).into_iter().flat_map(|from| &from.dependencies) {
                let to = self.crates.iter().find(|(_, name)| **name == dependency.name);
                let Some((to, _)) = to.filter(|_| dependency.kind.is_none()) else { continue };
                if !dependency.optional && !reached.contains(to) {
                    return Some(format!("the dependency {from} → {to} is missing"));
                }
            }
        }
        None
    }
}

/// Returns the ends of all paths along these arrows.
pub(crate) fn reached_from<'a>(
    start: &'a str,
    arrows: &(impl Iterator<Item = &'a (String, String)> + Clone),
) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(next) = open.pop() {
        let ends = arrows.clone().filter(|(from, _)| from == next).map(|(_, to)| to);
        open.extend(ends.filter(|to| reached.insert(String::clone(to))).map(|it| &**it));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: &str = "```mermaid\nflowchart LR\n    a --> b\n```\n```mermaid\nflowchart TD\n    \
                         cli[top: the program] --> mid[middle]\n    mid -. re-exports .-> x[x: one] & y[y: other] \
                         --> core[core]\n```\n";

    fn problem(dependencies: &[(&str, &str, bool)]) -> Option<String> {
        let packages = ["top", "middle", "x", "y", "core"].map(|name| {
            let own = dependencies.iter().filter(|(from, ..)| *from == name);
            let own = own.map(|(_, to, optional)| Dependency {
                name: (*to).to_owned(),
                kind: None,
                optional: *optional,
            });
            Package { name: name.to_owned(), dependencies: own.collect(), targets: Vec::new() }
        });
        Drawing::parse(CHART).problem(&packages)
    }

    #[test]
    fn arrows_are_the_dependencies() {
        let all = [
            ("top", "middle", false),
            ("middle", "x", true),
            ("middle", "y", true),
            ("x", "core", false),
            ("y", "core", false),
        ];
        assert_eq!(problem(&all), None);
        assert_eq!(problem(&all[1..]).unwrap(), "cli → mid is not a required dependency");
        let required = all.map(|(from, to, _)| (from, to, false));
        assert_eq!(problem(&required).unwrap(), "mid → x is not an optional dependency");
        let more = |from, to| [&all[..], &[(from, to, false)]].concat();
        assert_eq!(problem(&more("x", "y")).unwrap(), "the dependency x → y is missing");
        assert_eq!(problem(&more("top", "core")).unwrap(), "the dependency cli → core is missing");
    }

    #[test]
    fn paths_replace_arrows() {
        let chart = "flowchart TD\n a[a] --> b[b] --> c[c]\n";
        let package = |name: &str, own: &[&str]| Package {
            name: name.to_owned(),
            dependencies: own
                .iter()
                .map(|to| Dependency { name: (*to).to_owned(), kind: None, optional: false })
                .collect(),
            targets: Vec::new(),
        };
        let packages = [package("a", &["b", "c"]), package("b", &["c"]), package("c", &[])];
        assert_eq!(Drawing::parse(chart).problem(&packages), None);
    }
}
