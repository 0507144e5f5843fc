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
    columns: &'static str,
    rows: Vec<String>,
}

impl Table {
    /// `columns` are separated by ` | `.
    pub(crate) const fn new(title: &'static str, columns: &'static str) -> Self {
        Self { title, columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: &[&dyn Cells]) {
        let row = cells.iter().flat_map(|cells| cells.texts()).collect::<Vec<_>>().join(" | ");
        eprintln!("{row}");
        self.rows.push(row);
    }

    fn markdown(&self) -> String {
        let Self { title, columns, rows } = self;
        let line = "---|".repeat(columns.split(" | ").count());
        let rows = rows.iter().map(|row| format!("| {row} |\n")).collect::<String>();
        format!("## {title}\n\n| {columns} |\n|{line}\n{rows}")
    }
}

/// One or more cells of a row.
pub(crate) trait Cells {
    fn texts(&self) -> Vec<String>;
}

macro_rules! displayed {
    ($($type:ty)*) => { $(
        impl Cells for $type {
            fn texts(&self) -> Vec<String> {
                vec![self.to_string()]
            }
        }
    )* };
}
displayed!(&str String u64 u32 usize Spread);

/// With this number of digits.
impl Cells for (Spread, usize) {
    fn texts(&self) -> Vec<String> {
        vec![format!("{:.*}", self.1, self.0)]
    }
}

/// With this number of digits, or a dash.
impl Cells for (Option<f64>, usize) {
    fn texts(&self) -> Vec<String> {
        vec![self.0.map_or_else(|| "–".to_owned(), |number| format!("{number:.*}", self.1))]
    }
}

/// A ratio, its target, and whether the median meets it.
impl Cells for (Spread, Target) {
    fn texts(&self) -> Vec<String> {
        [(self.0, 2).texts(), self.1.met(self.0).texts()].concat()
    }
}

impl<T: Cells> Cells for Vec<T> {
    fn texts(&self) -> Vec<String> {
        self.iter().flat_map(Cells::texts).collect()
    }
}

impl<T: Cells, const N: usize> Cells for [T; N] {
    fn texts(&self) -> Vec<String> {
        self.iter().flat_map(Cells::texts).collect()
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
    pub(crate) fn met(self, spread: Spread) -> [String; 2] {
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
