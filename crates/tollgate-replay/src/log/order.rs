//! Lines in chronological order.
//!
//! A thread per file reads the lines, so reading and deciding use different cores.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use tollgate_core::{Micros, Timestamp};

use super::input::{Blocks, Input, ReadError};
use super::lines::LineReader;
use super::pending::{Entry, Odd, PendingRecords};
use super::record::{Batch, Reason, Record};
use super::{FileFormat, Late, Options, Progress, Shape, Syntax, Unreadable};

/// The records from several logs in chronological order.
pub struct Records {
    files: Vec<Stream>,
    /// The time of the last record. Times never go backwards.
    reached: Timestamp,
    /// The file of the last record. Its batch remains in memory until the next call.
    last: Option<usize>,
    unreadable: u64,
    lines: u64,
    shown: Vec<Unreadable>,
    options: Options,
    size: Option<u64>,
    read: Vec<Arc<AtomicU64>>,
}

/// A file that is being read.
struct Stream {
    name: Box<str>,
    batches: Receiver<Result<Read, ReadError>>,
    /// The thread that reads. `None` after its end.
    thread: Option<JoinHandle<()>>,
    pending: PendingRecords,
    late: Late,
    headers: Arc<[Box<str>]>,
    shape: Option<Arc<Shape>>,
    /// The JSON fields that have occurred; see `Mapping::names`.
    seen: u64,
    /// The columns that have occurred.
    columns: Vec<Box<str>>,
    used_zone: bool,
    /// The number of lines, until a line can be read.
    in_vain: Option<u64>,
    first_reason: Option<(u64, Reason)>,
    is_over: bool,
}

struct Read {
    batch: Batch,
    headers: Arc<[Box<str>]>,
    shape: Arc<Shape>,
}

impl Records {
    /// Starts reading.
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

    /// Returns the next record, or `None` after the last.
    ///
    /// # Errors
    /// A file cannot be read or does not have this format.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if let Some(last) = self.last.take() {
            self.files[last].pending.forget();
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
                _ => self.check_names().map(|()| None),
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
        let Some(mut record) = file.pending.give(entry, &file.name, &file.headers) else {
            return Ok(None);
        };
        record.at = self.reached;
        Ok(Some(record))
    }

    /// Stops reading, and waits for the end of the threads that read. A thread may wait for its
    /// input, for example for more lines from a pipe.
    pub fn close(self) {
        for mut file in self.files {
            drop(file.batches);
            join(&mut file.thread);
        }
    }

    /// Returns how many lines could not be read.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Returns the first lines that could not be read.
    pub fn shown(&self) -> &[Unreadable] {
        &self.shown
    }

    /// Returns the lines that were further out of order than [`Options::reorder`].
    pub fn late(&self) -> Late {
        self.files.iter().fold(Late::default(), |late, file| Late {
            lines: late.lines + file.late.lines,
            most: late.most.max(file.late.most),
        })
    }

    /// Returns how the files that have been read so far are read.
    pub fn formats(&self) -> Vec<FileFormat> {
        let zone = || self.options.zone.to_string().into();
        let format = |file: &Stream| {
            let shape = file.shape.as_ref()?;
            let fields = match &shape.syntax {
                Syntax::Json(mapping) => mapping.fields_in(file.seen),
                _ => file.columns.clone(),
            };
            let (format, zone) = (shape.title, file.used_zone.then(zone));
            Some(FileFormat { file: file.name.clone(), format, fields, zone })
        };
        self.files.iter().filter_map(format).collect()
    }

    /// Returns the progress of reading.
    pub fn progress(&self) -> Progress {
        let read = self.read.iter().map(|read| read.load(Ordering::Relaxed)).sum();
        Progress { lines: self.lines, read, size: self.size }
    }

    /// The file's next record that may be returned.
    fn head(&mut self, number: usize) -> Result<Option<Entry>, ReadError> {
        let reorder = Micros::from(self.options.reorder);
        loop {
            let file = &mut self.files[number];
            let next = file.pending.peek();
            let is_due = |entry: &Entry| {
                file.is_over
                    || entry.at + reorder < file.pending.latest
                    || file.pending.len() > self.options.max_held
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
        let name = file.name.clone();
        let backwards =
            |(line, back): (u64, Micros)| ReadError::Backwards { name, line, back: back.into() };
        let Ok(read) = file.batches.recv() else {
            // A thread that panicked has not read the entire file.
            join(&mut file.thread);
            file.is_over = true;
            let odd = file.pending.end().map_err(backwards)?;
            self.leave_out(number, odd)?;
            return self.files[number].check(true);
        };
        let Read { mut batch, headers, shape } = read?;
        (file.headers, file.shape) = (headers, Some(shape));
        file.seen |= batch.seen;
        file.used_zone = batch.used_zone;
        for column in std::mem::take(&mut batch.columns).into_iter().flatten() {
            if !file.columns.contains(&column) {
                file.columns.push(column);
            }
        }
        let (lines, records) = (batch.lines, batch.records.len());
        let unreadable = std::mem::take(&mut batch.unreadable);
        let odd = file.pending.add(batch, self.options.not_after).map_err(backwards)?;
        if odd.len() < records {
            file.in_vain = None;
        } else if let Some(in_vain) = &mut file.in_vain {
            *in_vain += lines;
        }
        self.leave_out(number, unreadable)?;
        self.leave_out(number, odd)?;
        self.files[number].check(false)
    }

    /// Counts unreadable lines, and stores the first few.
    fn leave_out(&mut self, number: usize, lines: Vec<Odd>) -> Result<(), ReadError> {
        let file = &mut self.files[number];
        self.unreadable += lines.len() as u64;
        self.lines += lines.len() as u64;
        for (line, reason) in lines {
            let reason = if self.options.excerpts { reason } else { reason.without_excerpt() };
            if self.options.strict {
                return Err(ReadError::Unreadable { name: file.name.clone(), line, reason });
            }
            if self.shown.len() < self.options.shown {
                let (file, reason) = (file.name.clone(), reason.clone());
                self.shown.push(Unreadable { file, line, reason });
            }
            // A line with a readable time shows that the format is right.
            let is_first = match &file.first_reason {
                Some((_, known)) => reason == Reason::Future && *known != Reason::Future,
                None => true,
            };
            if is_first {
                file.first_reason = Some((line, reason));
            }
        }
        Ok(())
    }

    /// Checks that each user-defined field occurs in some line.
    fn check_names(&self) -> Result<(), ReadError> {
        let Some(Shape { is_own: true, syntax: Syntax::Json(mapping), .. }) =
            self.options.format.0.as_deref()
        else {
            return Ok(());
        };
        let seen = self.files.iter().fold(0, |seen, file| seen | file.seen);
        let Some(path) = mapping.never_in(seen) else { return Ok(()) };
        let names: Vec<_> = self.files.iter().map(|file| &*file.name).collect();
        Err(ReadError::NeverSeen { names: names.join(", ").into(), path: path.into() })
    }
}

/// A file that starts with this many unreadable lines must have another format.
const IN_VAIN: u64 = 1_000;

/// Windows programs often start files with these bytes.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Stream {
    fn start(input: Input, options: &Options) -> Self {
        let (sender, batches) = sync_channel(4);
        let name: Box<str> = input.name().into();
        let (format, zone) = (options.format.clone(), options.zone.clone());
        let thread = thread::spawn(move || {
            let mut blocks = Blocks::new(input);
            let (mut line, mut reader) = (1, None);
            loop {
                let mut text = match blocks.next(line) {
                    Ok(Some(text)) => text,
                    Ok(None) => return,
                    Err(error) => {
                        let _ = sender.send(Err(error));
                        return;
                    }
                };
                let reader = reader.get_or_insert_with(|| {
                    if text.starts_with(BYTE_ORDER_MARK) {
                        text.drain(..BYTE_ORDER_MARK.len());
                    }
                    LineReader::new(format.for_lines(&text), zone.clone())
                });
                let mut batch = Batch { text, ..Batch::default() };
                reader.read(&mut batch, line);
                line += batch.lines;
                let (headers, shape) = (Arc::clone(&reader.headers), Arc::clone(&reader.shape));
                if sender.send(Ok(Read { batch, headers, shape })).is_err() {
                    return;
                }
            }
        });
        Self {
            name,
            batches,
            thread: Some(thread),
            pending: PendingRecords::default(),
            late: Late::default(),
            headers: [].into(),
            shape: None,
            seen: 0,
            columns: Vec::new(),
            used_zone: false,
            in_vain: Some(0),
            first_reason: None,
            is_over: false,
        }
    }

    /// Returns an error if the file must have another format.
    fn check(&self, at_end: bool) -> Result<(), ReadError> {
        let (Some(lines), Some((line, reason))) = (self.in_vain, &self.first_reason) else {
            return Ok(());
        };
        if lines < IN_VAIN && !at_end || lines == 0 {
            return Ok(());
        }
        let (name, line) = (self.name.clone(), *line);
        if *reason == Reason::Future {
            return Err(ReadError::Future { name, line });
        }
        let format = self.shape.as_ref().map_or("a log", |shape| shape.title).into();
        let reason = reason.clone();
        Err(ReadError::OtherFormat { name, lines, format, line, reason })
    }
}

/// Waits for a thread, and continues its panic.
fn join(thread: &mut Option<JoinHandle<()>>) {
    if let Some(Err(panic)) = thread.take().map(JoinHandle::join) {
        resume_unwind(panic);
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
