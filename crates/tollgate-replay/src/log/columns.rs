//! W3C extended logs, in which `#Fields` lines name the columns of the lines after them.

use memchr::{memchr, memchr2};

use super::field::Field;
use super::reading::{Escapes, Range, Reading, wrong};
use super::record::Reason;
use super::visible::Visible;

/// The columns of the following lines. A file may contain several logs with different columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    columns: Vec<(Field, Box<str>)>,
    /// A required column that is missing.
    missing: Option<&'static str>,
    /// The date of lines without a date.
    pub(super) date: Vec<u8>,
}

pub(super) const FIELDS: &str = "#Fields:";
/// More than any server writes.
const MOST_COLUMNS: usize = 256;

impl Columns {
    /// Reads a line that starts with `#`. Returns whether it names the columns.
    pub(super) fn directive(&mut self, line: &[u8], headers: &mut Vec<Box<str>>) -> bool {
        if let Some(date) = line.strip_prefix(b"#Date:") {
            let date = date.trim_ascii();
            self.date = date[..memchr(b' ', date).unwrap_or(date.len())].into();
        }
        let Some(names) = line.strip_prefix(FIELDS.as_bytes()) else { return false };
        let names = String::from_utf8_lossy(names);
        let names: Vec<&str> = names.split_ascii_whitespace().take(MOST_COLUMNS).collect();
        let column = |name: &&str| (Field::of_column(name, &names, headers), (*name).into());
        self.columns = names.iter().map(column).collect();
        let has = |field| self.columns.iter().any(|(other, _)| *other == field);
        let required = [
            ("date", has(Field::Date) || !self.date.is_empty()),
            ("time", has(Field::TimeOfDay)),
            ("cs-method", has(Field::Method)),
            ("cs-uri-stem", has(Field::Target)),
        ];
        self.missing = required.iter().find(|(_, is_there)| !is_there).map(|(name, _)| *name);
        true
    }

    /// The names of the columns that are read.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        let read = self.columns.iter().filter(|(field, _)| *field != Field::Skip);
        read.map(|(_, name)| Visible(name).to_string().into()).collect()
    }

    /// How this line's server escapes. CloudFront separates columns with tabs, and encodes values
    /// like URLs. IIS writes `+` for a space.
    pub(super) fn escapes(line: &[u8]) -> Escapes {
        if memchr(b'\t', line).is_some() { Escapes::Percent } else { Escapes::Plus }
    }

    /// Reads a line.
    pub(super) fn read(
        &self,
        reading: &mut Reading<'_>,
        (start, end): Range,
    ) -> Result<(), Reason> {
        if self.columns.is_empty() {
            let expected = format!("line that starts with `{FIELDS}`").into();
            return Err(Reason::Literal { after: "the start of the file".into(), expected });
        }
        if let Some(name) = self.missing {
            return Err(Reason::Missing(name.into()));
        }
        let mut at = start;
        for (field, name) in &self.columns {
            if at >= end {
                return Err(Reason::Short(name.clone()));
            }
            let (value, length) = value(&reading.text[at..end]);
            reading.set(*field, name, (at + value.0, at + value.1))?;
            at += length + 1;
        }
        if at < end {
            return Err(wrong("end", &reading.text[at..end], "where the columns end"));
        }
        Ok(())
    }
}

/// The range of the line's first value, and the length up to the separator. The specification
/// quotes values with spaces.
fn value(rest: &[u8]) -> (Range, usize) {
    if rest.first() == Some(&b'"')
        && let Some(quote) = memchr(b'"', &rest[1..])
        && matches!(rest.get(quote + 2), None | Some(b' ' | b'\t'))
    {
        return ((1, quote + 1), quote + 2);
    }
    let length = memchr2(b' ', b'\t', rest).unwrap_or(rest.len());
    ((0, length), length)
}
