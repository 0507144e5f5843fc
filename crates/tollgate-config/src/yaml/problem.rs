//! Configuration problems, each with a position and a cure.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::named_files::{FileCheck, NamedFiles};
use super::place::{Place, Span};
use super::source::Source;
use crate::code::{self, Code};

/// A problem that is already reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported;

/// A value, unless a part of it is invalid.
pub(crate) type Checked<T> = Result<T, Reported>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but a setting does not have its apparent effect.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub code: Code,
    pub place: Place,
    pub what: String,
    pub cure: String,
}

/// Collects problems, to report them together.
#[derive(Debug, Default)]
pub(crate) struct Problems(RefCell<Found>);

#[derive(Debug, Default)]
struct Found {
    problems: Vec<Problem>,
    secrets: Vec<Span>,
    /// Named files by their path in the configuration.
    files: BTreeMap<String, (PathBuf, Place)>,
    named: Vec<NamedFiles>,
    left_out: usize,
}

impl Problems {
    /// A file can have a problem in every character.
    const MOST: usize = 100;

    pub(crate) fn error(
        &self,
        code: Code,
        place: Place,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Reported {
        let (what, cure) = (what.into(), cure.into());
        self.add(Problem { severity: Severity::Error, code, place, what, cure });
        Reported
    }

    pub(crate) fn warn(
        &self,
        code: Code,
        place: Place,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) {
        let (what, cure) = (what.into(), cure.into());
        self.add(Problem { severity: Severity::Warning, code, place, what, cure });
    }

    pub(crate) fn add(&self, mut problem: Problem) {
        // A library's error has its own code, which is more precise.
        if let (what, Some(own)) = code::split(&problem.what) {
            (problem.what, problem.code) = (what.to_owned(), own);
        }
        let is_first_error = problem.severity == Severity::Error && !self.has_errors();
        let Found { problems, left_out, .. } = &mut *self.0.borrow_mut();
        // An invalid value that an alias repeats is reported only once.
        if problems.contains(&problem) {
            return;
        }
        if problems.len() >= Self::MOST {
            *left_out += 1;
            // Warnings must not displace the only error.
            if !is_first_error {
                return;
            }
            problems.pop();
        }
        problems.push(problem);
    }

    /// Hides these characters in all output.
    pub(crate) fn hide(&self, span: Span) {
        self.0.borrow_mut().secrets.push(span);
    }

    pub(crate) fn add_file(&self, file: PathBuf, place: Place) {
        self.0.borrow_mut().files.insert(place.path.clone(), (file, place));
    }

    /// Sets how the files that are named at or below a place are checked.
    pub(crate) fn check_with(&self, place: &Place, reload: bool, check: Box<FileCheck>) {
        let Found { files, named, .. } = &mut *self.0.borrow_mut();
        let below = files.range(place.path.clone()..);
        let below = below.take_while(|(path, _)| path.starts_with(&place.path));
        let files = below.map(|(_, file)| file.clone()).collect();
        named.push(NamedFiles { files, reload, check });
    }

    pub(crate) fn named_files(&self) -> Vec<NamedFiles> {
        std::mem::take(&mut self.0.borrow_mut().named)
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.0.borrow().problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Removes all problems, to report them elsewhere.
    pub(crate) fn take(&self) -> Vec<Problem> {
        self.0.take().problems
    }

    pub(crate) fn report(&self, source: &Source) -> Report {
        let Found { problems: mut found, secrets, left_out, .. } = self.0.take();
        found.sort_by_key(order);
        let text = hidden(&source.text, &secrets);
        Report { name: source.name.clone(), text, found, left_out }
    }
}

const fn order(problem: &Problem) -> (usize, Severity) {
    (problem.place.span.start, problem.severity)
}

#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    text: String,
    found: Vec<Problem>,
    left_out: usize,
}

impl Report {
    /// The problems, in file order.
    pub fn problems(&self) -> &[Problem] {
        &self.found
    }

    pub(crate) fn add(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            if !self.found.contains(&problem) {
                self.found.push(problem);
            }
        }
        self.found.sort_by_key(order);
    }

    pub fn errors(&self) -> usize {
        self.found.iter().filter(|problem| problem.severity == Severity::Error).count()
    }

    pub fn warnings(&self) -> usize {
        self.found.len() - self.errors()
    }

    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let bytes = ByteOffsets::new(&self.text);
        let mut out = String::new();
        for problem in &self.found {
            let lines = bytes.lines(&problem.place.span);
            let line = 1 + self.text[..lines.start].matches('\n').count();
            let span = bytes.of(problem.place.span.start)..bytes.of(problem.place.span.end);
            // Only show a section's first line, because the rest does not explain the problem.
            let end = self.text[span.start..].find('\n').map_or(span.end, |n| span.start + n);
            let span = span.start - lines.start..span.end.min(end).max(span.start) - lines.start;
            let level = match problem.severity {
                Severity::Error => Level::ERROR,
                Severity::Warning => Level::WARNING,
            };
            let mut marked = AnnotationKind::Primary.span(span);
            if !problem.place.path.is_empty() {
                marked = marked.label(problem.place.path.as_str());
            }
            let snippet = Snippet::source(&self.text[lines]).line_start(line).path(&self.name);
            let group = Group::with_title(
                level.primary_title(problem.what.as_str()).id(problem.code.to_string()),
            )
            .element(snippet.annotation(marked))
            .element(Level::HELP.message(problem.cure.as_str()));
            out.push_str(&renderer.render(&[group]));
            out.push_str("\n\n");
        }
        if self.left_out > 0 {
            out.push_str(&format!("and {} more\n\n", self.left_out));
        }
        out
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Problem { severity, code, place, what, cure } in &self.found {
            let (line, column) = place.position(&self.text);
            let severity = match severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            write!(f, "{}:{line}:{column}: {severity}[{code}]: ", self.name)?;
            if !place.path.is_empty() {
                write!(f, "{}: ", place.path)?;
            }
            writeln!(f, "{what}; {cure}")?;
        }
        if self.left_out > 0 {
            writeln!(f, "and {} more", self.left_out)?;
        }
        Ok(())
    }
}

/// The byte offset of each character, because the parser counts characters and the renderer bytes.
struct ByteOffsets<'a> {
    text: &'a str,
    /// `None` if every character is a byte.
    offsets: Option<Vec<usize>>,
}

impl<'a> ByteOffsets<'a> {
    fn new(text: &'a str) -> Self {
        let offsets =
            (!text.is_ascii()).then(|| text.char_indices().map(|(offset, _)| offset).collect());
        Self { text, offsets }
    }

    fn of(&self, character: usize) -> usize {
        let offset = match &self.offsets {
            Some(offsets) => offsets.get(character).copied(),
            None => Some(character),
        };
        offset.unwrap_or(self.text.len()).min(self.text.len())
    }

    /// The span's first line, and the line before it for orientation.
    fn lines(&self, span: &Span) -> Range<usize> {
        let start = self.of(span.start);
        let before = |at: usize| self.text[..at].rfind('\n');
        let line = before(start).map_or(0, |newline| newline + 1);
        let first = if line == 0 { 0 } else { before(line - 1).map_or(0, |newline| newline + 1) };
        let end = self.text[start..].find('\n').map_or(self.text.len(), |newline| start + newline);
        first..end
    }
}

/// The text with secrets replaced by stars, so no output can show them. One star per character, so
/// all positions remain valid.
fn hidden(text: &str, secrets: &[Span]) -> String {
    if secrets.is_empty() {
        return text.to_owned();
    }
    let mut stars: Vec<char> = text.chars().collect();
    for secret in secrets {
        let end = secret.end.min(stars.len());
        let start = secret.start.min(end);
        for character in stars[start..end].iter_mut().filter(|character| **character != '\n') {
            *character = '*';
        }
    }
    stars.into_iter().collect()
}
