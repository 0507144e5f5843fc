//! Reads a batch's lines, and finds a file's format.

use std::sync::Arc;

use super::columns::Columns;
use super::known::SHAPES;
use super::reading::{Range, Reading};
use super::record::{Batch, Fields, Reason};
use super::time::Times;
use super::{FileFormat, Format, Shape, Syntax, Zone, syslog};

/// How many lines are tried to find a file's format.
const FIRST_LINES: usize = 64;

/// The bytes of a short line, to reserve memory for a batch's records.
const SHORT_LINE: usize = 128;

impl Format {
    /// Returns this format, or for `auto` the format that reads the most of the first lines.
    pub(super) fn for_lines(&self, text: &[u8]) -> Arc<Shape> {
        if let Some(shape) = &self.0 {
            return Arc::clone(shape);
        }
        let end = memchr::memchr_iter(b'\n', text).nth(FIRST_LINES).unwrap_or(text.len());
        let text = &text[..end];
        let is_object = text.trim_ascii_start().starts_with(b"{");
        let score = |shape: &&Arc<Shape>| {
            let mut reader = LineReader::new(Arc::clone(shape), Zone::default());
            let batch = reader.read(text.to_vec(), 1);
            // If no line can be read, the format with the most recognised values has the most
            // helpful error.
            let is_json = matches!(shape.syntax, Syntax::Json(_));
            (batch.records.len(), reader.recognised, is_json == is_object)
        };
        // Of several maxima, `max_by_key` returns the last.
        Arc::clone(SHAPES.iter().rev().max_by_key(score).unwrap_or(&SHAPES[0]))
    }
}

/// Reads a file's lines.
pub(super) struct LineReader {
    shape: Arc<Shape>,
    /// The columns of the next line, if the lines have columns.
    columns: Columns,
    /// The names of the headers. `#Fields` may add further names.
    headers: Arc<[Box<str>]>,
    times: Times,
    /// The JSON fields that have occurred; see `Mapping::names`.
    seen: u64,
    /// The columns that have occurred.
    named: Vec<Box<str>>,
    /// How many values show that the format is right.
    recognised: u32,
}

impl LineReader {
    pub(super) fn new(shape: Arc<Shape>, zone: Zone) -> Self {
        let columns = match &shape.syntax {
            Syntax::Columns(columns) => columns.clone(),
            _ => Columns::default(),
        };
        let headers = shape.headers.as_slice().into();
        let (times, named) = (Times::new(zone), Vec::new());
        Self { shape, columns, headers, times, seen: 0, named, recognised: 0 }
    }

    /// Describes how the lines so far were read.
    pub(super) fn format(&self, file: &str) -> FileFormat {
        let fields = match &self.shape.syntax {
            Syntax::Json(mapping) => mapping.fields_in(self.seen),
            _ => self.named.clone(),
        };
        let zone = self.times.used_zone.then(|| self.times.zone.to_string().into());
        FileFormat { file: file.into(), format: self.shape.title, fields, zone }
    }

    /// Reads all lines in a text. `first` is the number of the first line.
    pub(super) fn read(&mut self, text: Vec<u8>, first: u64) -> Batch {
        let end = text.len();
        let records = Vec::with_capacity(text.len() / SHORT_LINE);
        let mut batch = Batch { text, records, ..Batch::default() };
        let (mut start, mut number) = (0, first);
        while start < end {
            let length = memchr::memchr(b'\n', &batch.text[start..end]).unwrap_or(end - start);
            self.read_line(&mut batch, (start, start + length), number);
            (start, number) = (start + length + 1, number + 1);
        }
        batch.lines = number - first;
        batch.headers = Arc::clone(&self.headers);
        batch
    }

    fn read_line(&mut self, batch: &mut Batch, (mut start, mut end): Range, number: u64) {
        if batch.text[start..end].ends_with(b"\r") {
            end -= 1;
        }
        let line = &batch.text[start..end];
        match &self.shape.syntax {
            Syntax::Columns(_) if line.starts_with(b"#") => {
                let mut headers = self.headers.to_vec();
                if self.columns.directive(line, &mut headers) {
                    self.headers = headers.into();
                    for name in self.columns.names() {
                        if !self.named.contains(&name) {
                            self.named.push(name);
                        }
                    }
                }
                return;
            }
            // A user's `log_format` describes the entire line.
            Syntax::Text(_) if self.shape.is_own => {}
            _ => start += syslog::prefix(line),
        }
        let before = batch.text.len();
        match self.fields(batch, (start, end), number) {
            Ok(fields) => batch.records.push(fields),
            Err(reason) => {
                batch.text.truncate(before);
                batch.unreadable.push((number, reason));
            }
        }
    }

    fn fields(&mut self, batch: &mut Batch, line: Range, number: u64) -> Result<Fields, Reason> {
        let Self { shape, columns, times, seen, .. } = self;
        let escapes = match &shape.syntax {
            Syntax::Columns(_) => Columns::escapes(&batch.text[line.0..line.1]),
            _ => shape.escapes,
        };
        let mut reading = Reading::new(number, &mut batch.text, times, escapes);
        let read = match &shape.syntax {
            Syntax::Text(template) => template.read(&mut reading, line),
            Syntax::Columns(_) => columns.read(&mut reading, line),
            Syntax::Json(mapping) => mapping.read(&mut reading, line, seen),
        };
        self.recognised += reading.recognised;
        read?;
        reading.finish(&columns.date)
    }
}
