//! The tables, on the terminal and in docs/benchmarks, where each processor's maker has a folder.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Failure;
use crate::machine;
use crate::rounds::Spread;

/// A benchmark's table.
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
        let mut text = format!("## {}\n\n{}", self.title, line(&heads));
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

/// Prints tables without writing a page.
pub(crate) fn show(tables: &[Table]) -> Result<(), Failure> {
    for table in tables {
        println!("{}", table.markdown());
    }
    eprintln!("too few rounds to write the page");
    Ok(())
}

/// Prints a benchmark's page and writes it to the folder of this machine's processor.
pub(crate) fn write(name: &str, method: &str, tables: &[Table]) -> Result<(), Failure> {
    let mut page = format!("# {name}\n\n{method}\n\n{}\n", machine::describe(name)?);
    for table in tables {
        write!(page, "\n{}", table.markdown())?;
    }
    println!("{page}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    let folder = folder.join(machine::maker());
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name).with_extension("md"), page)?;
    Ok(())
}
