//! Why a call failed, and whether it may have been executed nevertheless.

use tollgate_core::StoreError;

use crate::client::connection::command::CommandError;
use crate::client::host_port::HostPort;

/// The name of this store in errors.
pub(crate) const STORE: &str = "redis";

/// A call without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Redis did not execute it.
    Refused(Refusal),
    /// Redis may have executed it, but the answer is lost.
    Lost(String),
}

/// Why a call was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Redis does not know the script. It does after an `EVAL` with the full text.
    #[error("the server forgot the script twice within one call")]
    NoScript,
    /// Another node has the slot.
    #[error("slot {slot} is at {to}{NOT_FOLLOWED}")]
    Moved { slot: u16, to: String },
    /// Another node has these keys while their slot moves.
    #[error("the keys are on their way to {to}{NOT_FOLLOWED}")]
    Ask { to: String },
    /// Some of the call's keys are on this node and some have already moved.
    #[error("the keys of the call are on their way to another node")]
    TryAgain,
    /// This server is a replica, so the caller's view of the topology is out of date.
    #[error("the server is a replica and accepts no writes")]
    ReadOnly,
    /// Any other reason.
    #[error("{0}")]
    Other(String),
}

const NOT_FOLLOWED: &str =
    ": its nodes disagree, or the URL of this Cluster should start with redis-cluster://";

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Server(text) => answered(&text),
            CommandError::Unsent(reason) => Self::Refused(Refusal::Other(reason)),
            CommandError::Lost(reason) => Self::Lost(reason),
        }
    }
}

/// Returns the failure that a server error means.
fn answered(text: &str) -> Failure {
    let said = unwrapped(text);
    let code = said.split_whitespace().next().unwrap_or_default();
    let refusal = match code {
        "NOSCRIPT" => Refusal::NoScript,
        "MOVED" | "ASK" => match redirected(said) {
            Some(refusal) => refusal,
            None => return Failure::Lost(text.to_owned()),
        },
        "TRYAGAIN" => Refusal::TryAgain,
        "READONLY" => Refusal::ReadOnly,
        // Redis sends these before a script starts, or for a script's first write. Ours has read
        // and decided everything before it writes.
        "OOM" | "LOADING" | "BUSY" | "MASTERDOWN" | "CROSSSLOT" | "MISCONF" | "NOREPLICAS"
        | "NOPERM" | "UNKILLABLE" => Refusal::Other(said.to_owned()),
        _ if text.starts_with("ERR unknown command") => Refusal::Other(text.to_owned()),
        // Redis also sends CLUSTERDOWN before a script starts, but the client closes the connection
        // on it and fails all pending commands with it, including calls that Redis has executed.
        //
        // A missing permission inside a script has no error code. The script only notices at the
        // write that lacks it, when earlier writes may have succeeded.
        _ => return Failure::Lost(text.to_owned()),
    };
    Failure::Refused(refusal)
}

impl CommandError {
    /// Whether the server did not answer.
    pub(crate) const fn is_silence(&self) -> bool {
        !matches!(self, Self::Server(_))
    }

    /// Whether the server answered that it has not executed the command.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Server(text) if matches!(answered(text), Failure::Refused(_)))
    }

    /// Whether the server does not know the script.
    pub(crate) fn is_no_script(&self) -> bool {
        Failure::from(self.clone()) == Failure::Refused(Refusal::NoScript)
    }
}

/// Strips the text that Redis before version 7 puts around errors in a script:
/// `ERR Error running script (call to f_…): @user_script:9: @user_script: 9: -OOM command not …`
///
/// Only a command that was rejected before it started has the dash. Errors of commands that
/// started, and Lua errors, do not.
fn unwrapped(text: &str) -> &str {
    let inner = text.strip_prefix("ERR Error running script ").and_then(|it| it.split_once(": -"));
    inner.map_or(text, |(_, inner)| inner)
}

/// Parses `MOVED 3999 127.0.0.1:6381`.
fn redirected(text: &str) -> Option<Refusal> {
    let mut words = text.split_whitespace();
    let kind = words.next()?;
    let slot = words.next()?.parse().ok()?;
    let to = words.next()?.to_owned();
    Some(if kind == "MOVED" { Refusal::Moved { slot, to } } else { Refusal::Ask { to } })
}

impl Refusal {
    /// Returns the node that executes the call, and whether it does so only for this call. `asked`
    /// is the host of the node that refused.
    pub(crate) fn redirection(&self, asked: &str) -> Option<(HostPort, bool)> {
        let (to, is_asking) = match self {
            Self::Moved { to, .. } => (to, false),
            Self::Ask { to } => (to, true),
            _ => return None,
        };
        Some((HostPort::of_redirection(to, asked)?, is_asking))
    }
}

impl Failure {
    /// Whether the Cluster's nodes may know a different server by now. A server that is out of
    /// memory or slow still owns its slots, and a silent server opens its breaker.
    pub(crate) fn may_have_moved(&self) -> bool {
        match self {
            Self::Refused(Refusal::Other(text)) => !text.starts_with("OOM"),
            Self::Lost(text) => !text.starts_with("Timeout"),
            Self::Refused(_) => true,
        }
    }

    /// Returns the error for the caller.
    pub(crate) fn to_store_error(&self) -> StoreError {
        match self {
            Self::Refused(refusal) => StoreError::not_charged(STORE, refusal),
            Self::Lost(reason) => StoreError::maybe_charged(STORE, reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> Failure {
        CommandError::Server(text.to_owned()).into()
    }

    /// Error texts from Redis 6.0 and 6.2.
    #[test]
    fn wrapped_redis_6_errors_are_unwrapped() {
        const CALL: &str = "ERR Error running script (call to \
                            f_a36971068c52e658f47e17e100d6d368493df826): @user_script:1737: ";
        let wrapped = |text: &str| failure(&format!("{CALL}{text}"));
        let read_only =
            "@user_script: 1737: -READONLY You can't write against a read only replica.";
        assert_eq!(wrapped(read_only), Failure::Refused(Refusal::ReadOnly));
        for said in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to \
             persist on disk.",
            "MISCONF Errors writing to the AOF file: No space left on device",
        ] {
            let found = wrapped(&format!("@user_script: 1737: -{said}"));
            assert_eq!(found, Failure::Refused(Refusal::Other(said.to_owned())));
        }
        for may_have_run in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "user_script:1737: attempt to index local 'x' (a nil value)",
            "@user_script: 1737: The user executing the script can't run this command or subcommand",
            "@user_script: 1737: Unknown Redis command called from Lua script",
            "ERR syntax error",
        ] {
            assert!(matches!(wrapped(may_have_run), Failure::Lost(_)), "{may_have_run}");
        }
    }

    #[test]
    fn redirections_name_the_node() {
        assert_eq!(
            failure("MOVED 3999 127.0.0.1:6381"),
            Failure::Refused(Refusal::Moved { slot: 3999, to: "127.0.0.1:6381".into() })
        );
        assert_eq!(
            failure("ASK 3999 127.0.0.1:6381"),
            Failure::Refused(Refusal::Ask { to: "127.0.0.1:6381".into() })
        );
        for (text, expected) in [
            ("MOVED 3999 127.0.0.1:6381", Some(("127.0.0.1:6381", false))),
            ("ASK 3999 redis-1.example:6379", Some(("redis-1.example:6379", true))),
            ("MOVED 3999 :6381", Some(("asked:6381", false))),
            ("MOVED nowhere", None),
            ("WRONGTYPE Operation against a key", None),
        ] {
            let to = match failure(text) {
                Failure::Refused(refusal) => refusal.redirection("asked"),
                Failure::Lost(_) => None,
            };
            let to = to.map(|(to, is_asking)| (to.to_string(), is_asking));
            assert_eq!(to, expected.map(|(to, is_asking)| (to.to_owned(), is_asking)), "{text}");
        }
        assert_eq!(
            failure("TRYAGAIN Multiple keys request during rehashing of slot"),
            Failure::Refused(Refusal::TryAgain)
        );
        assert_eq!(
            failure("NOSCRIPT No matching script. Please use EVAL."),
            Failure::Refused(Refusal::NoScript)
        );
    }
}
