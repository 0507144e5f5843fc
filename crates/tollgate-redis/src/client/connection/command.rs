//! Commands and their answers.

use bytes::Bytes;
use smallvec::SmallVec;

/// A command and its arguments.
#[derive(Clone, Debug)]
pub struct Command {
    /// The command name.
    pub name: &'static str,
    /// The arguments, in order.
    pub arguments: Vec<Bytes>,
}

/// A command's result.
pub type Answer = Result<Value, CommandError>;

/// The answers to commands that were sent together, in the same order.
pub type Answers = SmallVec<[Answer; 1]>;

/// A value that a server returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Null,
    /// An integer.
    Number(i64),
    /// A string.
    Bytes(Bytes),
    /// Several values.
    List(Vec<Self>),
}

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The server answered with this error.
    #[error("{0}")]
    Server(String),
    /// The client did not send the command.
    #[error("{0}")]
    Unsent(String),
    /// The answer is lost, so the server may have executed the command.
    #[error("{0}")]
    Lost(String),
}

impl Value {
    /// Reads a number, also from a string.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            _ => self.as_str()?.parse().ok(),
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}
