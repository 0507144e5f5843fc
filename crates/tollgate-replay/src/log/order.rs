//! Lines in the order of their times.
//!
//! Each file has a thread that reads it, so that reading and deciding use two cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use tollgate_core::{Micros, Timestamp};

use super::held::{Entry, Held};
use super::input::{Blocks, Input, ReadError};
use super::record::{Batch, Reason, Record};
use super::{Format, LineReader};

/// The settings for reading logs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format of the lines.
    pub format: Format,
    /// How far lines may be out of order. A line that is further behind is replayed late, at the
    /// time of the line before it. A line that is more than an hour behind stops the run.
    pub reorder: Duration,
    /// The most lines of each file that are held to put them in order.
    pub max_held: usize,
    /// Whether a line that cannot be read stops the run.
    pub strict: bool,
    /// The number of unreadable lines that are kept, to be shown.
    pub shown: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: Format::AUTO,
            reorder: Duration::from_secs(60),
            max_held: 250_000,
            strict: false,
            shown: 10,
        }
    }
}

/// A line of a log that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The name of the file with the line.
    pub file: Box<str>,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// The reason why the line cannot be read.
    pub reason: Reason,
}

/// The lines that were out of order further than the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// The number of lines.
    pub lines: u64,
    /// The largest delay of such a line.
    pub most: Micros,
}

/// The progress of reading logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Lines that were handed out or cannot be read.
    pub lines: u64,
    /// Bytes that were read, compressed where the files are.
    pub read: u64,
    /// The bytes of all files, if they are known.
    pub size: Option<u64>,
}

/// The records of several logs, in the order of their times.
pub struct Records {
    files: Vec<Stream>,
    /// The time of the last record. No later record is earlier.
    reached: Timestamp,
    /// The file whose record was handed out last, which is kept until the next is asked for.
    last: Option<usize>,
    unreadable: u64,
    lines: u64,
    shown: Vec<Unreadable>,
    options: Options,
    size: Option<u64>,
    read: Vec<Arc<AtomicU64>>,
}

/// One file.
struct Stream {
    name: Box<str>,
    batches: Receiver<Result<Read, ReadError>>,
    held: Held,
    late: Late,
    headers: Arc<[Box<str>]>,
    format: Box<str>,
    /// Lines of the file, while none of them could be read.
    in_vain: Option<u64>,
    first_reason: Option<(u64, Reason)>,
    is_over: bool,
}

struct Read {
    batch: Batch,
    headers: Arc<[Box<str>]>,
    format: Arc<str>,
}

impl Records {
    /// Begins to read.
    #[must_use]
    pub fn new(inputs: Vec<Input>, options: &Options) -> Self {
        let size = inputs.iter().map(Input::size).sum();
        let read = inputs.iter().map(Input::progress).collect();
        let files = inputs.into_iter().map(|input| Stream::start(input, options)).collect();
        Self {
            files,
            reached: Timestamp::EPOCH,
            last: None,
            unreadable: 0,
            lines: 0,
            shown: Vec::new(),
            options: options.clone(),
            size,
            read,
        }
    }

    /// The next record; `None` after the last.
    ///
    /// # Errors
    /// A file cannot be read on, or is not a log of this format.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if let Some(last) = self.last.take() {
            self.files[last].held.forget();
        }
        let mut earliest: Option<(Entry, usize)> = None;
        for number in 0..self.files.len() {
            if let Some(entry) = self.head(number)?
                && earliest.is_none_or(|(other, _)| entry.at < other.at)
            {
                earliest = Some((entry, number));
            }
        }
        let Some((entry, number)) = earliest else {
            return match self.files.first() {
                Some(file) if self.lines == 0 => Err(ReadError::Empty { name: file.name.clone() }),
                _ => Ok(None),
            };
        };
        let file = &mut self.files[number];
        if entry.at < self.reached {
            file.late.lines += 1;
            file.late.most = file.late.most.max(self.reached.since(entry.at));
        }
        self.reached = self.reached.max(entry.at);
        self.last = Some(number);
        self.lines += 1;
        let Some(mut record) = file.held.give(entry, &file.headers) else { return Ok(None) };
        record.at = self.reached;
        Ok(Some(record))
    }

    /// Returns how many lines could not be read.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Returns the first lines that could not be read.
    pub fn shown(&self) -> &[Unreadable] {
        &self.shown
    }

    /// Returns the lines that were out of order further than the bound.
    pub fn late(&self) -> Late {
        self.files.iter().fold(Late::default(), |late, file| Late {
            lines: late.lines + file.late.lines,
            most: late.most.max(file.late.most),
        })
    }

    /// Returns the progress of reading.
    pub fn progress(&self) -> Progress {
        let read = self.read.iter().map(|read| read.load(Ordering::Relaxed)).sum();
        Progress { lines: self.lines, read, size: self.size }
    }

    /// The next record of a file that may be handed out.
    fn head(&mut self, number: usize) -> Result<Option<Entry>, ReadError> {
        let reorder = Micros::from(self.options.reorder);
        loop {
            let file = &mut self.files[number];
            let next = file.held.peek();
            let is_due = |entry: &Entry| {
                file.is_over
                    || entry.at + reorder < file.held.latest
                    || file.held.len() > self.options.max_held
            };
            if let Some(entry) = next.filter(is_due) {
                return Ok(Some(entry));
            }
            if file.is_over {
                return Ok(None);
            }
            self.fill(number)?;
        }
    }

    fn fill(&mut self, number: usize) -> Result<(), ReadError> {
        let file = &mut self.files[number];
        let Ok(read) = file.batches.recv() else {
            file.is_over = true;
            return file.check(true);
        };
        let Read { batch, headers, format } = read?;
        file.headers = headers;
        file.format = (*format).into();
        self.unreadable += batch.unreadable.len() as u64;
        self.lines += batch.unreadable.len() as u64;
        for (line, reason) in &batch.unreadable {
            if self.options.strict {
                let (name, line, reason) = (file.name.clone(), *line, reason.clone());
                return Err(ReadError::Unreadable { name, line, reason });
            }
            if file.first_reason.is_none() {
                file.first_reason = Some((*line, reason.clone()));
            }
            if self.shown.len() < self.options.shown {
                let (file, reason) = (file.name.clone(), reason.clone());
                self.shown.push(Unreadable { file, line: *line, reason });
            }
        }
        if batch.records.is_empty() {
            if let Some(in_vain) = &mut file.in_vain {
                *in_vain += batch.lines;
            }
        } else {
            file.in_vain = None;
        }
        if let Some((line, back)) = file.held.add(batch) {
            let (name, back) = (file.name.clone(), back.into());
            return Err(ReadError::Backwards { name, line, back });
        }
        file.check(false)
    }
}

/// After this many unreadable lines, a file is a log of another format.
const IN_VAIN: u64 = 1_000;

impl Stream {
    fn start(input: Input, options: &Options) -> Self {
        let (sender, batches) = sync_channel(4);
        let name: Box<str> = input.name().into();
        let format = options.format.clone();
        thread::spawn(move || {
            let mut blocks = Blocks::new(input);
            let (mut line, mut reader) = (1, None);
            loop {
                let text = match blocks.next(line) {
                    Ok(Some(text)) => text,
                    Ok(None) => return,
                    Err(error) => {
                        let _ = sender.send(Err(error));
                        return;
                    }
                };
                let (reader, headers, shown) = reader.get_or_insert_with(|| {
                    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
                    let format = format.for_line(first);
                    let headers: Arc<[Box<str>]> = format.headers().into();
                    let shown: Arc<str> = format.to_string().into();
                    (LineReader::new(format), headers, shown)
                });
                let mut batch = Batch { text, ..Batch::default() };
                reader.read(&mut batch, line);
                line += batch.lines;
                let (headers, format) = (Arc::clone(headers), Arc::clone(shown));
                if sender.send(Ok(Read { batch, headers, format })).is_err() {
                    return;
                }
            }
        });
        Self {
            name,
            batches,
            held: Held::default(),
            late: Late::default(),
            headers: [].into(),
            format: "a log".into(),
            in_vain: Some(0),
            first_reason: None,
            is_over: false,
        }
    }

    /// Whether it is a log of another format.
    fn check(&self, at_end: bool) -> Result<(), ReadError> {
        let (Some(lines), Some((line, reason))) = (self.in_vain, &self.first_reason) else {
            return Ok(());
        };
        if lines < IN_VAIN && !at_end || lines == 0 {
            return Ok(());
        }
        let (name, format) = (self.name.clone(), self.format.clone());
        Err(ReadError::OtherFormat { name, lines, format, line: *line, reason: reason.clone() })
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records")
            .field("files", &self.files.len())
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("name", &self.name()).finish_non_exhaustive()
    }
}
