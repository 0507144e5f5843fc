//! Logs with a line template: `common`, `combined`, nginx `log_format`, and other servers' text.

use memchr::{memchr, memchr2, memmem};

use super::FormatError;
use super::field::Field;
use super::reading::{Range, Reading, wrong};
use super::record::Reason;

/// A compiled template: fields and the text between them.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// The start of every line.
    start: Box<[u8]>,
    variables: Box<[Variable]>,
    /// Whether a line may continue after the template. Servers append more fields to their standard
    /// formats, but a user's `log_format` describes the entire line.
    is_open: bool,
}

#[derive(Clone, Debug)]
struct Variable {
    name: Box<str>,
    field: Field,
    /// The text after the field, or empty at the end of the line.
    behind: Box<[u8]>,
}

impl Template {
    /// Compiles an nginx `log_format`, and adds its header names.
    pub(super) fn new(
        template: &str,
        is_open: bool,
        headers: &mut Vec<Box<str>>,
    ) -> Result<Self, FormatError> {
        let mut pieces = template.split('$');
        let start: Box<[u8]> = pieces.next().unwrap_or_default().as_bytes().into();
        let mut variables = Vec::<Variable>::new();
        for piece in pieces {
            let (name, behind) = match piece.strip_prefix('{').and_then(|it| it.split_once('}')) {
                Some(braced) => braced,
                None => {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    piece.split_at(piece.find(|c| !is_name(c)).unwrap_or(piece.len()))
                }
            };
            if name.is_empty() {
                return Err(FormatError::NoName(template.into()));
            }
            if variables.last().is_some_and(|last| last.behind.is_empty()) {
                return Err(FormatError::Adjacent(name.into()));
            }
            let field = Field::of_variable(name, headers)?;
            let name = name.trim_start_matches(':').into();
            variables.push(Variable { name, field, behind: behind.as_bytes().into() });
        }
        Field::check(&variables.iter().map(|variable| variable.field).collect::<Vec<_>>())?;
        Ok(Self { start, variables: variables.into(), is_open })
    }

    /// Reads a line.
    pub(super) fn read(
        &self,
        reading: &mut Reading<'_>,
        (start, end): Range,
    ) -> Result<(), Reason> {
        // Without the first condition, the call for an empty text takes a sixth of the time.
        if !self.start.is_empty() && !reading.text[start..end].starts_with(&self.start) {
            let expected = String::from_utf8_lossy(&self.start);
            return Err(Reason::Literal {
                after: "its start".into(),
                expected: format!("`{expected}`").into(),
            });
        }
        let mut at = start + self.start.len();
        for (index, variable) in self.variables.iter().enumerate() {
            let rest = &reading.text[at..end];
            let is_last = index + 1 == self.variables.len();
            let length = variable.length(rest, is_last && self.is_open)?;
            reading.set(variable.field, &variable.name, (at, at + length))?;
            at = (at + length + variable.behind.len()).min(end);
        }
        if at < end && !self.is_open {
            return Err(wrong("end", &reading.text[at..end], "where the format ends"));
        }
        Ok(())
    }
}

impl Variable {
    /// The length of the field, which extends to the text after it.
    fn length(&self, rest: &[u8], is_open: bool) -> Result<usize, Reason> {
        let found = match &*self.behind {
            [] if is_open => Some(memchr2(b' ', b'\t', rest).unwrap_or(rest.len())),
            [] => Some(rest.len()),
            // Requests may contain quotes, which servers escape.
            [b'"', more @ ..] => quote(rest, more),
            [one] => memchr(*one, rest),
            [one, more @ ..] => {
                // Usually the first match is right.
                let first = memchr(*one, rest);
                match first.filter(|at| rest[at + 1..].starts_with(more)) {
                    None if first.is_some() => memmem::find(rest, &self.behind),
                    found => found,
                }
            }
        };
        match found {
            Some(length) => Ok(length),
            None if rest.is_empty() => Err(Reason::Short(self.name.clone())),
            // Syslog cuts long lines.
            None if is_open => Ok(rest.len()),
            None => Err(Reason::Literal {
                after: self.name.clone(),
                expected: format!("`{}`", String::from_utf8_lossy(&self.behind)).into(),
            }),
        }
    }
}

/// Finds the first unescaped quote that is followed by `more`.
fn quote(rest: &[u8], more: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', &rest[from..])?;
        if rest[at] == b'\\' {
            from = (at + 2).min(rest.len());
        } else if rest[at + 1..].starts_with(more) {
            return Some(at);
        } else {
            from = at + 1;
        }
    }
}
