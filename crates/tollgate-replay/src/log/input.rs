//! Reads files, compressed or not, in blocks of complete lines.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::record::Reason;

/// A log to read: a file, or any other source of bytes.
pub struct Input {
    pub(super) name: Box<str>,
    bytes: Box<dyn Read + Send>,
    /// The file size, if known.
    pub(super) size: Option<u64>,
    /// The bytes read from the file, before decompression.
    pub(super) read: Arc<AtomicU64>,
}

/// The error when a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened, or it is a directory.
    #[doc(alias = "TG0701")]
    #[error("cannot open {name}: {error}; name a file of an access log, or - for stdin [TG0701]")]
    Open {
        /// The file.
        name: Box<str>,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The file's bytes cannot be read.
    #[doc(alias = "TG0701")]
    #[error("cannot read {name} after line {line}: {error} [TG0701]")]
    Read {
        /// The file.
        name: Box<str>,
        /// The last complete line.
        line: u64,
        /// The error from the system or the decompressor.
        #[source]
        error: io::Error,
    },
    /// A line is too long for a log file.
    #[doc(alias = "TG0702")]
    #[error("line {line} of {name} is longer than 1 MiB: it is not an access log [TG0702]")]
    TooLong {
        /// The file.
        name: Box<str>,
        /// The line.
        line: u64,
    },
    /// The files contain no lines.
    #[doc(alias = "TG0704")]
    #[error("{name} has no lines: there is nothing to replay [TG0704]")]
    Empty {
        /// The file.
        name: Box<str>,
    },
    /// None of the first lines can be read.
    #[doc(alias = "TG0702")]
    #[error(
        "{} be read as {format}: line {line}: {reason}; name its format (--log) [TG0702]",
        match lines {
            1 => format!("the only line of {name} cannot"),
            _ => format!("none of the first {lines} lines of {name} can"),
        }
    )]
    OtherFormat {
        /// The file.
        name: Box<str>,
        /// How many lines were tried.
        lines: u64,
        /// The expected format.
        format: Box<str>,
        /// The first of these lines.
        line: u64,
        /// The reason.
        reason: Reason,
    },
    /// The lines can be read, but their times are in the future.
    #[doc(alias = "TG0706")]
    #[error(
        "line {line} of {name}: its time is in the future, and no other line can be replayed; \
         correct the times in the log, or this machine's clock [TG0706]"
    )]
    Future {
        /// The file.
        name: Box<str>,
        /// The first of these lines.
        line: u64,
    },
    /// A user-defined field does not occur in any line.
    #[doc(alias = "TG0702")]
    #[error(
        "no line of {names} has the field `{path}` with a readable value; correct its name in --log, or \
         leave it out [TG0702]"
    )]
    NeverSeen {
        /// The files.
        names: Box<str>,
        /// The field's path.
        path: Box<str>,
    },
    /// A line cannot be read, and the options do not allow skipping it.
    #[doc(alias = "TG0702")]
    #[error("line {line} of {name} cannot be read: {reason} [TG0702]")]
    Unreadable {
        /// The file.
        name: Box<str>,
        /// The line.
        line: u64,
        /// The reason.
        reason: Reason,
    },
    /// The log's times jump back.
    #[doc(alias = "TG0706")]
    #[error(
        "line {line} of {name} is {} s earlier than a line before it; sort the log by time, or name \
         each of its files by itself [TG0706]", .back.as_secs()
    )]
    Backwards {
        /// The file.
        name: Box<str>,
        /// The line.
        line: u64,
        /// How far the line is behind.
        back: std::time::Duration,
    },
}

impl Input {
    /// Opens a file, or stdin if the path is `-`.
    ///
    /// # Errors
    /// The file cannot be opened, or is a directory.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        if path == Path::new("-") {
            return Self::named("stdin", io::stdin(), None);
        }
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let error = match opened {
            Ok((metadata, _)) if metadata.is_dir() => {
                io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")
            }
            Ok((metadata, file)) => {
                return Self::named(&name, file, metadata.is_file().then_some(metadata.len()));
            }
            Err(error) => error,
        };
        Err(ReadError::Open { name: name.into(), error })
    }

    /// Reads bytes from memory or another source.
    ///
    /// # Errors
    /// The first bytes cannot be read.
    pub fn from_reader(name: &str, bytes: impl Read + Send + 'static) -> Result<Self, ReadError> {
        Self::named(name, bytes, None)
    }

    fn named(
        name: &str,
        bytes: impl Read + Send + 'static,
        size: Option<u64>,
    ) -> Result<Self, ReadError> {
        let read = Arc::new(AtomicU64::new(0));
        let bytes = Counted { bytes, read: Arc::clone(&read) };
        let bytes = decompressed(bytes).map_err(|error| ReadError::Read {
            name: name.into(),
            line: 0,
            error,
        })?;
        Ok(Self { name: name.into(), bytes, size, read })
    }
}

/// Counts the bytes read from a file.
struct Counted<R> {
    bytes: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Detects gzip and zstd by the first bytes and decompresses them.
fn decompressed(bytes: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut bytes = BufReader::with_capacity(128 << 10, bytes);
    let mut magic = Vec::new();
    bytes.by_ref().take(4).read_to_end(&mut magic)?;
    let bytes = BufReader::with_capacity(128 << 10, io::Cursor::new(magic.clone()).chain(bytes));
    Ok(match &*magic {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::with_buffer(bytes)?),
        _ => Box::new(bytes),
    })
}

/// Splits bytes into blocks of complete lines.
pub(super) struct Blocks {
    input: Input,
    /// The start of an incomplete line.
    rest: Vec<u8>,
    is_over: bool,
}

/// Large enough to make the overhead per block negligible, but small enough for the CPU cache.
const BLOCK: usize = 256 << 10;
const LONGEST: usize = 1 << 20;

impl Blocks {
    pub(super) const fn new(input: Input) -> Self {
        Self { input, rest: Vec::new(), is_over: false }
    }

    /// Returns the next block. `line` is the number of its first line.
    pub(super) fn next(&mut self, line: u64) -> Result<Option<Vec<u8>>, ReadError> {
        let mut block = std::mem::take(&mut self.rest);
        while !self.is_over {
            let start = block.len();
            block.resize(start + BLOCK, 0);
            let mut filled = start;
            while filled < block.len() && !self.is_over {
                match self.input.bytes.read(&mut block[filled..]) {
                    Ok(0) => self.is_over = true,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        let line = line + lines(&block[..filled]) - 1;
                        return Err(ReadError::Read { name: self.input.name.clone(), line, error });
                    }
                }
            }
            block.truncate(filled);
            if let Some(end) = memchr::memrchr(b'\n', &block) {
                self.rest = block.split_off(end + 1);
                return Ok(Some(block));
            }
            if block.len() > LONGEST {
                return Err(ReadError::TooLong { name: self.input.name.clone(), line });
            }
        }
        Ok((!block.is_empty()).then_some(block))
    }
}

fn lines(block: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', block).count() as u64
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("name", &self.name).finish_non_exhaustive()
    }
}
