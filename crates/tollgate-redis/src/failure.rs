//! Why a call failed, and whether it may have been carried out all the same.

use std::fmt;

use fred::error::{Error, ErrorKind};
use tollgate_core::StoreError;

/// The name of this store in errors.
pub(crate) const STORE: &str = "redis";

/// A call without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It was not carried out.
    Refused(Refusal),
    /// It may have been carried out: the answer is lost.
    Lost(String),
}

/// Why a call was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Redis does not know the script. It does once it was sent whole.
    NoScript,
    /// Another node has the slot.
    Moved { slot: u16, to: String },
    /// Another node has these keys of a slot that is on its way.
    Ask { to: String },
    /// Some keys of the call are here and some already there.
    TryAgain,
    /// This server is a replica: the caller has an old view of the topology.
    ReadOnly,
    /// Anything else.
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            // The client checks its bound before it accepts a command.
            ErrorKind::Backpressure => Self::Refused(said_by(&error)),
            ErrorKind::Cluster | ErrorKind::Unknown => answered(error.details()),
            // An error of a connection, such as a failed login, also reaches the calls that were
            // written to it.
            _ => Self::Lost(error.to_string()),
        }
    }
}

fn said_by(error: &Error) -> Refusal {
    Refusal::Other(error.to_string())
}

/// The meaning of an error text: texts of the server, and some of fred.
fn answered(text: &str) -> Failure {
    let said = unwrapped(text);
    let code = said.split_whitespace().next().unwrap_or_default();
    let refusal = match code {
        "NOSCRIPT" => Refusal::NoScript,
        "MOVED" | "ASK" => match redirection(said) {
            Some(refusal) => refusal,
            None => return Failure::Lost(text.to_owned()),
        },
        "TRYAGAIN" => Refusal::TryAgain,
        "READONLY" => Refusal::ReadOnly,
        // Said before a script starts, or by the first write of one, and ours has read
        // and decided everything before it writes.
        "OOM" | "LOADING" | "BUSY" | "MASTERDOWN" | "CROSSSLOT" | "MISCONF" | "NOREPLICAS"
        | "NOPERM" | "UNKILLABLE" => Refusal::Other(said.to_owned()),
        // The client had no connection. A command with its only attempt left was never written.
        //
        // "Too many failed write attempts" looks alike and is not: the client also says it of
        // commands that it wrote to a connection and lost with it.
        _ if text.starts_with("Failed to route command")
            || text.starts_with("ERR unknown command") =>
        {
            Refusal::Other(text.to_owned())
        }
        // CLUSTERDOWN is not among them, though said before a script starts too: the client
        // ends the connection on it, and says it to all who wait there for an answer.
        //
        // Missing rights within a script have no code. They are found out by whichever write
        // lacks them, when others have been done.
        _ => return Failure::Lost(text.to_owned()),
    };
    Failure::Refused(refusal)
}

/// Whether the server did not answer: the client gave up on the answer, or sent nothing.
pub(crate) fn is_silence(error: &Error) -> bool {
    match error.kind() {
        // An error of the server begins with a code in capitals, for example `OOM`. An error of the
        // client is a sentence.
        ErrorKind::Cluster | ErrorKind::Unknown => {
            let code = error.details().split_whitespace().next().unwrap_or_default();
            !code.bytes().all(|byte| byte.is_ascii_uppercase())
        }
        ErrorKind::Auth
        | ErrorKind::InvalidArgument
        | ErrorKind::InvalidCommand
        | ErrorKind::NotFound
        | ErrorKind::Parse
        | ErrorKind::Protocol => false,
        _ => true,
    }
}

/// Whether the server does not know the script.
pub(crate) fn is_no_script(error: &Error) -> bool {
    Failure::from(error.clone()) == Failure::Refused(Refusal::NoScript)
}

/// The error of a command of a script, without the text that Redis before version 7 puts around it:
/// `ERR Error running script (call to f_…): @user_script:9: @user_script: 9: -OOM command not …`
///
/// Only a command that was rejected before it began has the dash. Errors of commands that began,
/// and errors of Lua, have no dash.
fn unwrapped(text: &str) -> &str {
    let inner = text.strip_prefix("ERR Error running script ").and_then(|it| it.split_once(": -"));
    inner.map_or(text, |(_, inner)| inner)
}

/// `MOVED 3999 127.0.0.1:6381`.
fn redirection(text: &str) -> Option<Refusal> {
    let mut words = text.split_whitespace();
    let kind = words.next()?;
    let slot = words.next()?.parse().ok()?;
    let to = words.next()?.to_owned();
    Some(if kind == "MOVED" { Refusal::Moved { slot, to } } else { Refusal::Ask { to } })
}

impl Failure {
    /// Whether the nodes of a Cluster may know another server by now. A server that has no memory,
    /// or is slow, still has its slots; one that stays silent opens its breaker.
    pub(crate) fn may_have_moved(&self) -> bool {
        match self {
            Self::Refused(Refusal::Other(text)) => !text.starts_with("OOM"),
            Self::Lost(text) => !text.starts_with("Timeout"),
            Self::Refused(_) => true,
        }
    }

    /// The error for the caller.
    pub(crate) fn to_store_error(&self) -> StoreError {
        match self {
            Self::Refused(refusal) => StoreError::not_charged(STORE, refusal),
            Self::Lost(reason) => StoreError::maybe_charged(STORE, reason),
        }
    }
}

const NOT_FOLLOWED: &str =
    ": its nodes disagree, or the URL of this Cluster should begin with redis-cluster://";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScript => f.write_str("the server forgot the script twice within one call"),
            Self::Moved { slot, to } => write!(f, "slot {slot} is at {to}{NOT_FOLLOWED}"),
            Self::Ask { to } => write!(f, "the keys are on their way to {to}{NOT_FOLLOWED}"),
            Self::TryAgain => f.write_str("the keys of the call are on their way to another node"),
            Self::ReadOnly => f.write_str("the server is a replica and takes no writes"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: ErrorKind, details: &str) -> Failure {
        Error::new(kind, details.to_owned()).into()
    }

    #[test]
    fn what_never_ran_is_told_from_what_may_have() {
        let refused = [
            (ErrorKind::Backpressure, "Max in-flight commands reached."),
            (ErrorKind::Unknown, "Failed to route command."),
            (ErrorKind::Unknown, "ERR unknown command 'EVALSHA', with args beginning with: 'a'"),
            (ErrorKind::Unknown, "OOM command not allowed when used memory > 'maxmemory'."),
            (ErrorKind::Unknown, "LOADING Redis is loading the dataset in memory"),
            (
                ErrorKind::Unknown,
                "NOPERM this user has no permissions to run the 'evalsha' command",
            ),
            (
                ErrorKind::Unknown,
                "NOREPLICAS Not enough good replicas to write. script: a, on @user_script:1.",
            ),
        ];
        for (kind, details) in refused {
            let failure = failure(kind, details);
            assert!(
                matches!(failure, Failure::Refused(Refusal::Other(_))),
                "{details}: {failure:?}"
            );
            assert!(!failure.to_store_error().may_have_charged());
        }
        let lost = [
            (ErrorKind::Timeout, "Request timed out."),
            (ErrorKind::IO, "Connection reset by peer"),
            (ErrorKind::Canceled, "Canceled."),
            (ErrorKind::Canceled, "Connection closed unexpectedly."),
            (ErrorKind::Unknown, "Too many failed write attempts."),
            (ErrorKind::Auth, "NOAUTH Authentication required."),
            (ErrorKind::InvalidArgument, "WRONGTYPE Operation against a key script: a"),
            (ErrorKind::Unknown, "channel closed"),
            (ErrorKind::Parse, "Could not convert to tuple."),
            (ErrorKind::Unknown, "ERR user_script:12: attempt to index a nil value script: a"),
            (
                ErrorKind::Unknown,
                "ERR The user executing the script can't run this command or subcommand script: a",
            ),
            (ErrorKind::Cluster, "MOVED nowhere"),
            (ErrorKind::Cluster, "CLUSTERDOWN The cluster is down"),
        ];
        for (kind, details) in lost {
            let failure = failure(kind, details);
            assert!(matches!(failure, Failure::Lost(_)), "{details}: {failure:?}");
            assert!(failure.to_store_error().may_have_charged());
        }
    }

    /// Texts of Redis 6.0 and 6.2.
    #[test]
    fn errors_that_redis_6_wraps_mean_the_same_as_later_ones() {
        const CALL: &str = "ERR Error running script (call to \
                            f_a36971068c52e658f47e17e100d6d368493df826): @user_script:1737: ";
        let wrapped = |text: &str| failure(ErrorKind::Unknown, &format!("{CALL}{text}"));
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
    fn an_error_of_the_server_is_an_answer() {
        for (kind, details, is_silence) in [
            (ErrorKind::Timeout, "Request timed out.", true),
            (ErrorKind::IO, "Connection reset by peer", true),
            (ErrorKind::Canceled, "Connection closed unexpectedly.", true),
            (ErrorKind::Backpressure, "Max in-flight commands reached.", true),
            (ErrorKind::Unknown, "Too many failed write attempts.", true),
            (ErrorKind::Unknown, "channel closed", true),
            (ErrorKind::Unknown, "OOM command not allowed when used memory > 'maxmemory'.", false),
            (ErrorKind::Unknown, "LOADING Redis is loading the dataset in memory", false),
            (ErrorKind::Unknown, "ERR user_script:12: attempt to index a nil value", false),
            (ErrorKind::Cluster, "MOVED 3999 127.0.0.1:6381", false),
            (ErrorKind::Auth, "NOAUTH Authentication required.", false),
        ] {
            let error = Error::new(kind, details.to_owned());
            assert_eq!(super::is_silence(&error), is_silence, "{details}");
        }
    }

    #[test]
    fn redirections_name_the_node() {
        assert_eq!(
            failure(ErrorKind::Cluster, "MOVED 3999 127.0.0.1:6381"),
            Failure::Refused(Refusal::Moved { slot: 3999, to: "127.0.0.1:6381".into() })
        );
        assert_eq!(
            failure(ErrorKind::Cluster, "ASK 3999 127.0.0.1:6381"),
            Failure::Refused(Refusal::Ask { to: "127.0.0.1:6381".into() })
        );
        assert_eq!(
            failure(ErrorKind::Unknown, "TRYAGAIN Multiple keys request during rehashing of slot"),
            Failure::Refused(Refusal::TryAgain)
        );
        assert_eq!(
            failure(ErrorKind::Unknown, "NOSCRIPT No matching script. Please use EVAL."),
            Failure::Refused(Refusal::NoScript)
        );
    }
}
