//! The pages: tables of measured sides, with ratios between them and with goals.

use std::cell::RefCell;
use std::fmt::{Display, Write as _};
use std::fs;
use std::path::Path;

use crate::rounds::{Numbers, Side, Spread, take_turns};
use crate::{Failure, machine};

/// What the command line selects.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Rounds per table, and writes no page
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Measures only the tables with this text in their title, and writes no page
    #[arg(long)]
    only: Option<String>,
    #[arg(skip)]
    titles: RefCell<Titles>,
}

/// The tables' titles so far.
#[derive(Clone, Debug, Default)]
struct Titles {
    are_selected: bool,
    others: Vec<&'static str>,
}

impl Options {
    fn selects(&self, title: &'static str) -> bool {
        let is_selected = self.only.as_ref().is_none_or(|only| title.contains(only));
        let mut titles = self.titles.borrow_mut();
        titles.are_selected |= is_selected;
        if !is_selected {
            titles.others.push(title);
        }
        is_selected
    }

    /// Fails if the benchmarks had no table with the text in `--only`.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let titles = self.titles.borrow();
        match &self.only {
            Some(only) if !titles.are_selected => {
                let others = titles.others.join("\n  ");
                Err(format!("no title contains `--only {only}`; the titles are:\n  {others}")
                    .into())
            }
            _ => Ok(()),
        }
    }
}

/// A benchmark's page.
pub(crate) struct Page<'a> {
    options: &'a Options,
    /// Enough rounds for a stable median, unless the command line selects others.
    rounds: usize,
    tables: String,
}

impl<'a> Page<'a> {
    pub(crate) fn new(options: &'a Options, rounds: usize) -> Self {
        let rounds = options.rounds.map_or(rounds, usize::from);
        Self { options, rounds, tables: String::new() }
    }

    /// Adds a table, unless the command line selects others. Its `heads` are the head of each part
    /// of a case and the head of the sides' names; its `columns` are the sides' numbers. Both are
    /// separated by ` | `.
    pub(crate) fn table(
        &mut self,
        title: &'static str,
        heads: &'static str,
        columns: &'static str,
        measure: impl FnOnce(&mut Table) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.options.selects(title) {
            return Ok(());
        }
        eprintln!("## {title}\n{heads} | {columns}");
        let rounds = self.rounds;
        let (ratios, rows, goals) = (Vec::new(), String::new(), String::new());
        let mut table = Table { title, columns, rounds, ratios, beyond: None, rows, goals };
        measure(&mut table)?;
        let ratios = table.ratios.iter().map(|ratio| format!(" {} |", ratio.head));
        let head = format!("| {heads} | {columns} |{}", ratios.collect::<String>());
        let line = "---|".repeat(head.matches('|').count() - 1);
        write!(self.tables, "\n## {title}\n\n{head}\n|{line}\n{}", table.rows)?;
        if !table.goals.is_empty() {
            write!(self.tables, "\n{GOALS}{}", table.goals)?;
        }
        Ok(())
    }

    /// Prints the page, and writes it to the folder of this machine's processor.
    pub(crate) fn write(self, name: &str, method: &str) -> Result<(), Failure> {
        let Self { options, tables, .. } = self;
        if tables.is_empty() {
            return Ok(());
        }
        let (method, machine) = (method.trim(), machine::describe(name)?);
        let page = format!("# {name}\n\n{method}\n\n{machine}\n{tables}");
        println!("{page}");
        if options.only.is_some() || options.rounds.is_some() {
            eprintln!("only a part, so the page is not written");
            return Ok(());
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
        let folder = folder.join(machine::maker());
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(name).with_extension("md"), page)?)
    }
}

const GOALS: &str = "\
| case | goal of | what | compared with | measured | target | met |
|---|---|---|---|---|---|---|
";

/// A table. Each row is a side in a case.
pub(crate) struct Table {
    title: &'static str,
    columns: &'static str,
    pub(crate) rounds: usize,
    ratios: Vec<Ratio>,
    beyond: Option<&'static str>,
    rows: String,
    goals: String,
}

/// A column with the ratio of a side's number to another side's number in the same round.
struct Ratio {
    head: &'static str,
    column: &'static str,
    against: &'static str,
}

impl Table {
    /// Adds a column with the ratio of each side's number in `column` to that of the side `against`.
    pub(crate) fn ratio(
        &mut self,
        head: &'static str,
        column: &'static str,
        against: &'static str,
    ) -> &mut Self {
        self.ratios.push(Ratio { head, column, against });
        self
    }

    /// The columns after a side's own numbers are the differences to this side in the same round.
    pub(crate) fn beyond(&mut self, side: &'static str) -> &mut Self {
        self.beyond = Some(side);
        self
    }

    /// Measures the sides of a case in turns. Goals for sides that are missing are skipped.
    pub(crate) fn measure(
        &mut self,
        case: &[&dyn Display],
        mut sides: Vec<Side<'_>>,
        goals: &[Goal],
    ) -> Result<(), Failure> {
        let mut seen = take_turns(&mut sides, self.rounds)?;
        let columns: Vec<_> = self.columns.split(" | ").collect();
        let place = |name| sides.iter().position(|side| side.name == name);
        if let Some(bare) = self.beyond.and_then(place) {
            let bare = seen[bare].clone();
            for (numbers, bare) in seen.iter_mut().flat_map(|side| side.iter_mut().zip(&bare)) {
                let missing = columns.len() - numbers.len();
                let added = numbers.iter().zip(bare).map(|(number, bare)| number - bare);
                numbers.extend(Vec::from_iter(added.take(missing)));
            }
        }
        let of =
            |side: usize, name: &str, against: Option<&[Numbers]>| -> Result<Spread, Failure> {
                let column = columns.iter().position(|column| *column == name);
                let column =
                    column.ok_or_else(|| format!("`{}` has no column {name}", self.title))?;
                let number = |numbers: &Numbers| numbers.get(column).copied().unwrap_or(f64::NAN);
                let numbers = seen[side].iter().map(number);
                Ok(match against {
                    Some(other) => {
                        Spread::of(numbers.zip(other).map(|(our, other)| our / number(other)))
                    }
                    None => Spread::of(numbers),
                })
            };
        let case = Vec::from_iter(case.iter().map(ToString::to_string));
        for (index, side) in sides.iter().enumerate() {
            let mut cells = [&case[..], &[side.name.to_owned()]].concat();
            for column in &columns {
                cells.push(of(index, column, None)?.to_string());
            }
            for ratio in &self.ratios {
                let other = place(ratio.against).map(|place| &seen[place][..]);
                cells.push(match other {
                    Some(_) => of(index, ratio.column, other)?.to_string(),
                    None => "–".to_owned(),
                });
            }
            let row = cells.join(" | ");
            eprintln!("{row}");
            writeln!(self.rows, "| {row} |")?;
        }
        for &Goal { column, of: side, against, target } in goals {
            let (Some(index), other) = (place(side), against.and_then(place)) else { continue };
            if against.is_some() && other.is_none() {
                continue;
            }
            let number = of(index, column, other.map(|place| &seen[place][..]))?;
            let (sign, bound, met) = match target {
                Target::AtMost(bound) => ("≤", bound, number.median <= bound),
                Target::AtLeast(bound) => ("≥", bound, number.median >= bound),
            };
            let (case, against) = (case.join(", "), against.unwrap_or("–"));
            let met = match met {
                _ if number.median.is_nan() => "–",
                true => "yes",
                false => "**no**",
            };
            writeln!(
                self.goals,
                "| {case} | {side} | {column} | {against} | {number} | {sign} {bound} | {met} |"
            )?;
        }
        Ok(())
    }
}

/// A goal for a side's number, or for its ratio to another side's number in the same round.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    column: &'static str,
    of: &'static str,
    against: Option<&'static str>,
    target: Target,
}

#[derive(Clone, Copy)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
}

/// The name of Tollgate's side, unless there are several.
pub(crate) const OURS: &str = "Tollgate";

impl Goal {
    pub(crate) const fn at_least(column: &'static str, bound: f64) -> Self {
        Self { column, of: OURS, against: None, target: Target::AtLeast(bound) }
    }

    pub(crate) const fn at_most(column: &'static str, bound: f64) -> Self {
        Self { column, of: OURS, against: None, target: Target::AtMost(bound) }
    }

    /// For another side than Tollgate.
    pub(crate) const fn of(self, of: &'static str) -> Self {
        Self { of, ..self }
    }

    /// For the ratio to this side's number.
    pub(crate) const fn against(self, against: &'static str) -> Self {
        Self { against: Some(against), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(options: &Options) -> Result<String, Failure> {
        let mut page = Page::new(options, 1);
        page.table("A title", "limiter", "ns | µs", |table| {
            let side = |name, numbers: [f64; 2]| Side::new(name, move || Ok(numbers.to_vec()));
            let sides = vec![side(OURS, [2.0, f64::NAN]), side("peer", [1.0, 4.0])];
            let goals = [
                Goal::at_most("ns", 2.0),
                Goal::at_most("ns", 1.5).against("peer"),
                Goal::at_least("µs", 1.0),
                Goal::at_most("µs", 1.0).against("peer"),
                Goal::at_most("ns", 1.0).against("absent"),
            ];
            table.ratio("× peer", "µs", "peer").measure(&[], sides, &goals)
        })?;
        Ok(page.tables)
    }

    #[test]
    fn goals_without_a_number_are_not_judged() {
        let tables = page(&Options::default()).unwrap();
        let rows = Vec::from_iter(tables.lines().filter(|line| line.starts_with('|')));
        for row in [
            "| limiter | ns | µs | × peer |",
            "| Tollgate | 2.00 | – | – |",
            "| peer | 1.00 | 4.00 | 1.00 |",
            "|  | Tollgate | ns | – | 2.00 | ≤ 2 | yes |",
            "|  | Tollgate | ns | peer | 2.00 | ≤ 1.5 | **no** |",
            "|  | Tollgate | µs | – | – | ≥ 1 | – |",
            "|  | Tollgate | µs | peer | – | ≤ 1 | – |",
        ] {
            assert!(rows.contains(&row), "{row} is not in\n{tables}");
        }
        assert!(!tables.contains("absent"), "{tables}");
    }

    #[test]
    fn only_selects_a_table_or_lists_all() {
        let only = |text: &str| Options { only: Some(text.to_owned()), ..Options::default() };
        let options = only("title");
        assert!(page(&options).unwrap().contains("## A title") && options.check().is_ok());
        let options = only("other");
        assert_eq!(page(&options).unwrap(), "");
        let error = options.check().unwrap_err().to_string();
        assert_eq!(error, "no title contains `--only other`; the titles are:\n  A title");
        assert!(Options::default().check().is_ok());
    }
}
