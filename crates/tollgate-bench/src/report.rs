//! The tables, on the terminal and in docs/benchmarks.md.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::machine;
use crate::rounds::Spread;

/// A table of one benchmark.
pub(crate) struct Table {
    title: &'static str,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &'static str, columns: &[&'static str]) -> Self {
        Self { title, columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<_> = cells.into_iter().collect();
        eprintln!("{}", cells.join(" | "));
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let heads: Vec<_> = self.columns.iter().map(ToString::to_string).collect();
        let mut text = format!("### {}\n\n{}", self.title, line(&heads));
        text += &format!("|{}\n", "---|".repeat(self.columns.len()));
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

/// The goal for a number.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    None,
}

impl Target {
    /// The target, and whether a median meets it.
    pub(crate) fn cells(self, spread: Spread) -> [String; 2] {
        let (sign, bound, met) = match self {
            Self::AtMost(bound) => ("≤", bound, spread.median <= bound),
            Self::AtLeast(bound) => ("≥", bound, spread.median >= bound),
            Self::None => return ["–".to_owned(), "–".to_owned()],
        };
        [format!("{sign} {bound:.2}"), if met { "yes" } else { "**no**" }.to_owned()]
    }
}

/// Prints tables that are not written down.
pub(crate) fn show(tables: &[Table]) -> Result<(), Failure> {
    for table in tables {
        println!("{}", table.markdown());
    }
    eprintln!("too few rounds to be written down");
    Ok(())
}

/// Prints a section and puts it into docs/benchmarks.md in place of its older self.
pub(crate) fn write(name: &str, method: &str, tables: &[Table]) -> Result<(), Failure> {
    let mut section = format!("## {name}\n\n{method}\n\n{}\n", machine::describe(name)?);
    for table in tables {
        write!(section, "\n{}", table.markdown())?;
    }
    println!("{section}");
    let path = document();
    let old = fs::read_to_string(&path).unwrap_or_else(|_| HEAD.to_owned());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, replaced(&old, name, &section))?;
    Ok(())
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks.md")
}

/// `document` with the section `name` replaced, or added at the end.
fn replaced(document: &str, name: &str, section: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let section = format!("{begin}{section}{end}");
    let old = document.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    match old {
        Some((before, after)) => format!("{before}{section}{after}"),
        None => format!("{document}\n{section}"),
    }
}

/// The text above all sections.
const HEAD: &str = "# Benchmarks

Written by `cargo xtask bench`; `cargo xtask bench memory` (`flood`, `layer`, `http`, `redis`,
`overload`, `fleet`, `replicas`, `gateway`, `replay`) measures one section again and leaves the
others. Every row is shown, also where Tollgate loses.

Peers take turns in many short rounds, each round beginning with another one. A cell is the
median of the rounds with the smallest and largest in parentheses, and a ratio is the median
of the ratios within each round, so that a machine that is busy for a while slows both sides
of it. Targets were set before anything was measured; a median decides whether one is met.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_its_older_self_alone() {
        let first = replaced("head\n", "a", "1\n");
        let both = replaced(&first, "b", "2\n");
        let again = replaced(&both, "a", "3\n");
        assert!(again.starts_with("head\n"));
        assert!(again.contains("<!-- begin a -->\n3\n<!-- end a -->\n"));
        assert!(again.contains("<!-- begin b -->\n2\n<!-- end b -->\n"));
        assert!(!again.contains('1'));
    }
}
