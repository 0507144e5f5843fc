//! Lines in chronological order.
//!
//! A thread per file reads the lines, so reading and deciding use different cores.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use tollgate_core::{Micros, Timestamp};

use super::input::{Blocks, Input, ReadError};
use super::lines::LineReader;
use super::pending::PendingRecords;
use super::record::{Batch, Line, Odd, Reason, Record};
use super::{FileFormat, Format, Options, Progress, Shape, Syntax, Unreadable, Zone};

/// The records from several logs in chronological order.
pub struct Records {
    files: Vec<Stream>,
    /// The time of the last record. Times never go backwards.
    reached: Timestamp,
    /// The last record, which remains in memory until the next call.
    last: Option<Line>,
    late: u64,
    unreadable: u64,
    lines: u64,
    shown: Vec<Unreadable>,
    options: Options,
}

/// A file that is being read.
struct Stream {
    name: Box<str>,
    size: Option<u64>,
    read: Arc<AtomicU64>,
    batches: Receiver<Result<(Batch, FileFormat), ReadError>>,
    /// The thread that reads. `None` after its end.
    thread: Option<JoinHandle<()>>,
    pending: PendingRecords,
    format: Option<FileFormat>,
    /// The number of lines, until a line can be read.
    in_vain: Option<u64>,
    first_reason: Option<Odd>,
    is_over: bool,
}

impl Records {
    /// Starts reading.
    #[must_use]
    pub fn new(inputs: Vec<Input>, options: &Options) -> Self {
        let files = inputs.into_iter().map(|input| Stream::start(input, options)).collect();
        Self {
            files,
            reached: Timestamp::EPOCH,
            last: None,
            late: 0,
            unreadable: 0,
            lines: 0,
            shown: Vec::new(),
            options: options.clone(),
        }
    }

    /// Returns the next record, or `None` after the last.
    ///
    /// # Errors
    /// A file cannot be read or does not have this format.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        self.last = None;
        let mut earliest: Option<(Timestamp, usize)> = None;
        for number in 0..self.files.len() {
            if let Some(at) = self.head(number)?
                && earliest.is_none_or(|(other, _)| at < other)
            {
                earliest = Some((at, number));
            }
        }
        let next = earliest.and_then(|(_, it)| Some((it, self.files[it].pending.pop()?)));
        let Some((number, line)) = next else {
            return match self.files.first() {
                Some(file) if self.lines == 0 => Err(ReadError::Empty { name: file.name.clone() }),
                _ => self.check_names().map(|()| None),
            };
        };
        self.late += u64::from(line.at < self.reached);
        self.reached = self.reached.max(line.at);
        self.lines += 1;
        let record = self.last.insert(line).record(&self.files[number].name);
        Ok(Some(Record { at: self.reached, ..record }))
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

    /// Returns how many lines were further out of order than [`Options::reorder`].
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Returns how the files that have been read so far are read.
    pub fn formats(&self) -> Vec<FileFormat> {
        self.files.iter().filter_map(|file| file.format.clone()).collect()
    }

    /// Returns the progress of reading.
    pub fn progress(&self) -> Progress {
        let read = self.files.iter().map(|file| file.read.load(Ordering::Relaxed)).sum();
        let size = self.files.iter().map(|file| file.size).sum();
        Progress { lines: self.lines, read, size }
    }

    /// The time of the file's next record that may be returned.
    fn head(&mut self, number: usize) -> Result<Option<Timestamp>, ReadError> {
        let reorder = Micros::from(self.options.reorder);
        loop {
            let file = &mut self.files[number];
            let next = file.pending.peek();
            let is_due = |at: &Timestamp| {
                file.is_over
                    || *at + reorder < file.pending.latest
                    || file.pending.len() > self.options.max_held
            };
            if let Some(at) = next.filter(is_due) {
                return Ok(Some(at));
            }
            if file.is_over {
                return Ok(None);
            }
            self.fill(number)?;
        }
    }

    fn fill(&mut self, number: usize) -> Result<(), ReadError> {
        let file = &mut self.files[number];
        let (mut unreadable, mut lines, mut records) = (Vec::new(), 0, 0);
        let odd = if let Ok(read) = file.batches.recv() {
            let (mut batch, format) = read?;
            file.format = Some(format);
            (lines, records) = (batch.lines, batch.records.len());
            unreadable = std::mem::take(&mut batch.unreadable);
            file.pending.add(batch, self.options.not_after)
        } else {
            // A thread that panicked has not read the entire file.
            join(&mut file.thread);
            file.is_over = true;
            file.pending.end()
        };
        let odd = odd.map_err(|(line, back)| ReadError::Backwards {
            name: file.name.clone(),
            line,
            back: back.into(),
        })?;
        if odd.len() < records {
            file.in_vain = None;
        } else if let Some(in_vain) = &mut file.in_vain {
            *in_vain += lines;
        }
        for (line, reason) in unreadable.into_iter().chain(odd) {
            self.leave_out(number, line, reason)?;
        }
        self.files[number].check()
    }

    /// Counts an unreadable line, and stores the first few.
    fn leave_out(&mut self, number: usize, line: u64, reason: Reason) -> Result<(), ReadError> {
        let file = &mut self.files[number];
        self.unreadable += 1;
        self.lines += 1;
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
        Ok(())
    }

    /// Checks that each user-defined field occurs in some line.
    fn check_names(&self) -> Result<(), ReadError> {
        let Some(Shape { is_own: true, syntax: Syntax::Json(mapping), .. }) =
            self.options.format.0.as_deref()
        else {
            return Ok(());
        };
        let formats = self.formats();
        let is_seen = |field: &_| formats.iter().any(|format| format.fields.contains(field));
        match mapping.fields_in(u64::MAX).iter().find(|field| !is_seen(*field)) {
            None => Ok(()),
            Some(field) => {
                let names: Vec<_> = self.files.iter().map(|file| &*file.name).collect();
                let path = field.split_once('=').map_or("", |(_, path)| path).into();
                Err(ReadError::NeverSeen { names: names.join(", ").into(), path })
            }
        }
    }
}

/// A file that starts with this many unreadable lines must have another format.
const IN_VAIN: u64 = 1_000;

/// Windows programs often start files with these bytes.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Stream {
    fn start(input: Input, options: &Options) -> Self {
        let (sender, batches) = sync_channel(4);
        let (name, size, read) = (input.name.clone(), input.size, Arc::clone(&input.read));
        let (format, zone) = (options.format.clone(), options.zone.clone());
        let thread = thread::spawn(move || {
            if let Err(error) = read_all(input, &format, zone, &sender) {
                let _ = sender.send(Err(error));
            }
        });
        Self {
            name,
            size,
            read,
            batches,
            thread: Some(thread),
            pending: PendingRecords::default(),
            format: None,
            in_vain: Some(0),
            first_reason: None,
            is_over: false,
        }
    }

    /// Returns an error if the file must have another format.
    fn check(&self) -> Result<(), ReadError> {
        let (Some(lines), Some((line, reason))) = (self.in_vain, self.first_reason.clone()) else {
            return Ok(());
        };
        if lines < IN_VAIN && !self.is_over || lines == 0 {
            return Ok(());
        }
        let name = self.name.clone();
        if reason == Reason::Future {
            return Err(ReadError::Future { name, line });
        }
        let format = self.format.as_ref().map_or("a log", |format| format.format).into();
        Err(ReadError::OtherFormat { name, lines, format, line, reason })
    }
}

/// Sends the file's batches until the receiver is dropped.
fn read_all(
    input: Input,
    format: &Format,
    zone: Zone,
    sender: &SyncSender<Result<(Batch, FileFormat), ReadError>>,
) -> Result<(), ReadError> {
    let name = input.name.clone();
    let mut blocks = Blocks::new(input);
    let Some(mut text) = blocks.next(1)? else { return Ok(()) };
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    let mut reader = LineReader::new(format.for_lines(&text), zone);
    let (mut line, mut next) = (1, Some(text));
    while let Some(text) = next {
        let batch = reader.read(text, line);
        line += batch.lines;
        if sender.send(Ok((batch, reader.format(&name)))).is_err() {
            break;
        }
        next = blocks.next(line)?;
    }
    Ok(())
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
