//! What is wrong with a configuration, where, and the cure.

use std::fmt;
use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::Source;
use super::files::NamedFile;

/// Characters of the source, from one to before another.
pub type Span = Range<usize>;

/// Whether a problem stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// It can, but something does not do what it seems to do.
    Warning,
}

/// A value in the source: its characters, and the keys that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its characters.
    pub span: Span,
    /// `rateLimiter.apis[2].limit`; empty for the whole file.
    pub path: String,
}

/// What is wrong, where, and the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stands in the way.
    pub severity: Severity,
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub cure: String,
}

/// Collects problems, so that all are told at once.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
    secrets: Vec<Span>,
    files: Vec<NamedFile>,
    expressions: Vec<(Place, String)>,
    left_out: usize,
}

impl Problems {
    /// More than anybody mends in one go; a file can be wrong in each of its characters.
    const MOST: usize = 100;

    /// Something stands in the way.
    pub(super) fn error(&mut self, place: Place, what: impl Into<String>, cure: impl Into<String>) {
        self.push(Severity::Error, place, what.into(), cure.into());
    }

    /// Something does not do what it seems to do.
    pub(super) fn warn(&mut self, place: Place, what: impl Into<String>, cure: impl Into<String>) {
        self.push(Severity::Warning, place, what.into(), cure.into());
    }

    fn push(&mut self, severity: Severity, place: Place, what: String, cure: String) {
        let problem = Problem { severity, place, what, cure };
        // A value that is used twice through an alias is wrong once.
        if self.found.contains(&problem) {
            return;
        }
        if self.found.len() < Self::MOST {
            self.found.push(problem);
        } else {
            self.left_out += 1;
            // Whatever is left out, that there is an error is not.
            if severity == Severity::Error && !self.has_errors() {
                self.found.pop();
                self.found.push(problem);
            }
        }
    }

    /// Characters that are never shown.
    pub(super) fn hide(&mut self, span: Span) {
        self.secrets.push(span);
    }

    /// A file that has to be there.
    pub(super) fn names(&mut self, file: NamedFile) {
        self.files.push(file);
    }

    pub(super) fn named_files(&mut self) -> Vec<NamedFile> {
        std::mem::take(&mut self.files)
    }

    /// An expression that paths should match.
    pub(super) fn expression(&mut self, place: Place, text: &str) {
        self.expressions.push((place, text.to_owned()));
    }

    pub(super) fn take_expressions(&mut self) -> Vec<(Place, String)> {
        std::mem::take(&mut self.expressions)
    }

    /// Whether something stands in the way.
    pub(super) fn has_errors(&self) -> bool {
        self.found.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// In the order of the file.
    pub(super) fn into_report(mut self, source: &Source) -> Report {
        self.found.sort_by_key(order);
        let name = source.name.clone();
        let text = hidden(&source.text, &self.secrets);
        Report { name, text, found: self.found, left_out: self.left_out }
    }
}

/// That of the file.
const fn order(problem: &Problem) -> (usize, Severity) {
    (problem.place.span.start, problem.severity)
}

/// Everything that is wrong with a file, ready to be shown.
#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    text: String,
    found: Vec<Problem>,
    left_out: usize,
}

impl Report {
    /// The problems, in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.found
    }

    /// What was found elsewhere than in the text.
    pub(super) fn add(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            if !self.found.contains(&problem) {
                self.found.push(problem);
            }
        }
        self.found.sort_by_key(order);
    }

    /// How many stand in the way.
    pub fn errors(&self) -> usize {
        self.found.iter().filter(|problem| problem.severity == Severity::Error).count()
    }

    /// How many do not.
    pub fn warnings(&self) -> usize {
        self.found.len() - self.errors()
    }

    /// With the lines they are about; in colour for a terminal.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let bytes = ByteOffsets::new(&self.text);
        let mut out = String::new();
        for problem in &self.found {
            let lines = bytes.lines(&problem.place.span);
            let line = 1 + self.text[..lines.start].matches('\n').count();
            let span = bytes.of(problem.place.span.start)..bytes.of(problem.place.span.end);
            // Of a section only the first line: the rest says nothing about the problem.
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
            let group = Group::with_title(level.primary_title(problem.what.as_str()))
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

/// One line per problem, for logs and the admin address.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = ByteOffsets::new(&self.text);
        for problem in &self.found {
            let start = bytes.of(problem.place.span.start);
            let line_start = self.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
            let line = 1 + self.text[..start].matches('\n').count();
            let column = 1 + self.text[line_start..start].chars().count();
            let severity = match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let Problem { place, what, cure, .. } = problem;
            write!(f, "{}:{line}:{column}: {severity}: ", self.name)?;
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

/// Where the characters of a text begin: the parser counts characters, the renderer bytes.
struct ByteOffsets<'a> {
    text: &'a str,
    /// None where every character is a byte.
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

    /// The first line of a span and the one before it, so that a reader sees where he is.
    fn lines(&self, span: &Span) -> Range<usize> {
        let start = self.of(span.start);
        let before = |at: usize| self.text[..at].rfind('\n');
        let line = before(start).map_or(0, |newline| newline + 1);
        let first = if line == 0 { 0 } else { before(line - 1).map_or(0, |newline| newline + 1) };
        let end = self.text[start..].find('\n').map_or(self.text.len(), |newline| start + newline);
        first..end
    }
}

/// The text with stars for secrets, so that nothing that is made of it can show them. A
/// star for each character keeps places where they are.
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
