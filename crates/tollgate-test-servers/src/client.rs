//! A blocking Redis client for inspecting a server in tests.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A Redis reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Nil,
    /// An integer.
    Number(i64),
    /// A status or a byte string.
    Text(Vec<u8>),
    /// An error, for example `NOSCRIPT No matching script.`
    Error(String),
    /// An array.
    List(Vec<Self>),
}

impl Value {
    /// The number, parsed if the reply is text.
    ///
    /// # Panics
    ///
    /// If the value is not a number.
    #[must_use]
    #[track_caller]
    pub fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            Self::Text(text) => {
                let text = String::from_utf8_lossy(text);
                text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
            }
            other => panic!("not a number: {other:?}"),
        }
    }

    /// The text.
    ///
    /// # Panics
    ///
    /// If the value is not UTF-8 text.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => std::str::from_utf8(text).expect("UTF-8"),
            other => panic!("not a text: {other:?}"),
        }
    }

    /// The values of the list.
    ///
    /// # Panics
    ///
    /// If the value is not a list.
    #[must_use]
    #[track_caller]
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            other => panic!("not a list: {other:?}"),
        }
    }

    /// The error message, or `None` if the value is not an error.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(error) => Some(error),
            _ => None,
        }
    }
}

/// A single connection. To pipeline, call [`say`](Self::say) for each command, then call
/// [`hear`](Self::hear) for each reply.
pub struct RedisClient {
    out: Vec<u8>,
    stream: BufReader<Box<dyn Stream>>,
}

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl RedisClient {
    /// Connects to a Unix socket.
    ///
    /// # Errors
    ///
    /// If no server listens there.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }

    /// Connects over TCP.
    ///
    /// # Errors
    ///
    /// If no server listens there.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }

    pub(crate) fn over(stream: impl Read + Write + Send + 'static) -> Self {
        Self { out: Vec::new(), stream: BufReader::new(Box::new(stream)) }
    }

    /// Queues a command until [`send`](Self::send) or the next read.
    pub fn say(&mut self, command: &[impl AsRef<[u8]>]) {
        self.out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for word in command {
            let word = word.as_ref();
            self.out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Sends the queued commands without waiting for a reply.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn send(&mut self) -> io::Result<()> {
        let sent = self.stream.get_mut().write_all(&self.out);
        self.out.clear();
        sent
    }

    /// Waits for the next reply; replies arrive in command order.
    ///
    /// # Errors
    ///
    /// If the connection is closed, or no reply arrives within 10 s.
    pub fn try_hear(&mut self) -> io::Result<Value> {
        if !self.out.is_empty() {
            self.send()?;
        }
        let mut line = Vec::new();
        // A master sends bare newlines while a replica waits for its initial snapshot.
        while line.is_empty() || line == b"\n" {
            line.clear();
            if self.stream.read_until(b'\n', &mut line)? == 0 {
                break;
            }
        }
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let line = String::from_utf8_lossy(line);
        let strange = || io::Error::other(format!("not a RESP2 reply: {line:?}"));
        let rest = line.get(1..).ok_or_else(strange)?;
        let number = || rest.parse::<i64>().map_err(|_| strange());
        Ok(match line.as_bytes()[0] {
            b'+' => Value::Text(rest.as_bytes().to_vec()),
            b'-' => Value::Error(rest.to_owned()),
            b':' => Value::Number(number()?),
            b'$' | b'*' if number()? < 0 => Value::Nil,
            b'$' => {
                let length = usize::try_from(number()?).map_err(|_| strange())?;
                let mut text = vec![0; length + 2];
                self.stream.read_exact(&mut text)?;
                text.truncate(length);
                Value::Text(text)
            }
            b'*' => Value::List((0..number()?).map(|_| self.try_hear()).collect::<Result<_, _>>()?),
            _ => return Err(strange()),
        })
    }

    /// Waits for the next reply; replies arrive in command order.
    ///
    /// # Panics
    ///
    /// If the connection is closed, or no reply arrives within 10 s.
    #[track_caller]
    pub fn hear(&mut self) -> Value {
        self.try_hear().unwrap_or_else(|error| panic!("redis-server does not reply: {error}"))
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Panics
    ///
    /// If the connection is closed, or no reply arrives within 10 s.
    #[track_caller]
    pub fn cmd(&mut self, command: &[impl AsRef<[u8]>]) -> Value {
        self.say(command);
        self.hear()
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    ///
    /// If the connection is closed, or no reply arrives within 10 s.
    pub fn try_cmd(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<Value> {
        self.say(command);
        self.try_hear()
    }

    /// How often the server ran a command, and the total time in microseconds.
    ///
    /// # Panics
    ///
    /// If `INFO commandstats` fails.
    #[track_caller]
    pub fn stats(&mut self, command: &str) -> (u64, u64) {
        let info = self.cmd(&["INFO", "commandstats"]);
        let Some(line) = field(info.text(), &format!("cmdstat_{command}")) else { return (0, 0) };
        let count = |name: &str| {
            let found = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|count| count.parse().ok()).expect("a count")
        };
        (count("calls"), count("usec"))
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").finish_non_exhaustive()
    }
}

/// Looks up a field in `INFO` output or any other text with `name:value` lines.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// With this timeout, a test that waits for a stopped server fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(10);
