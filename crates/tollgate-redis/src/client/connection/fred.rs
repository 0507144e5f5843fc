//! A connection through the fred client.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fred::clients::{Client, Pipeline};
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::{Config, Options, ReconnectPolicy, Server};
use fred::types::{Builder, ConnectHandle, CustomCommand, Value as FredValue};
use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::command::{Answer, Answers, Command, CommandError, Value};
use crate::random::Random;

#[derive(Debug)]
pub(crate) struct FredConnection {
    client: Client,
    runtime: Handle,
    supervisor: AbortHandle,
}

impl FredConnection {
    pub(super) fn new(config: Config, timeout: Duration) -> Result<Self, Error> {
        let client = client(config, timeout)?;
        let runtime = Handle::current();
        let supervisor = runtime.spawn(supervise(client.clone())).abort_handle();
        Ok(Self { client, runtime, supervisor })
    }

    pub(super) async fn send(
        &self,
        mut commands: SmallVec<[Command; 1]>,
        timeout: Duration,
    ) -> Answers {
        // With fred's timeout, commands that expire before they are written are never sent. fred
        // only applies it to custom commands.
        let options = Options { timeout: Some(timeout.max(LEAST)), ..Options::default() };
        let client = self.client.with_options(&options);
        let count = commands.len();
        if count == 1
            && let Some(Command { name, arguments }) = commands.pop()
        {
            return smallvec![answer(client.custom(custom(name), arguments).await)];
        }
        let pipeline = Pipeline::from(client);
        for Command { name, arguments } in commands {
            let _ = pipeline.custom::<FredValue, Bytes>(custom(name), arguments).await;
        }
        let answers = pipeline.try_all::<FredValue>().await;
        if answers.len() == count {
            return answers.into_iter().map(answer).collect();
        }
        // The error is about all commands, but the server may have executed some.
        let error = answers.into_iter().find_map(Result::err);
        let error = error.unwrap_or_else(|| Error::new(ErrorKind::IO, "too few answers"));
        let is_timeout = *error.kind() == ErrorKind::Timeout;
        let kind = if is_timeout { ErrorKind::Timeout } else { ErrorKind::IO };
        let error = Error::new(kind, error.details().to_owned());
        smallvec![answer(Err(error)); count]
    }

    pub(super) async fn connected(&self) {
        // This fails if a first attempt fails, although fred tries again.
        while self.client.wait_for_connect().await.is_err() {}
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    pub(super) fn reconnect(&self) {
        // While disconnected, fred would reconnect again right after it has connected.
        if !self.is_connected() {
            return;
        }
        let client = self.client.clone();
        self.runtime.spawn(async move {
            if let Err(error) = client.force_reconnection().await {
                tracing::debug!(target: "tollgate", %error, "reconnecting to redis failed");
            }
        });
    }

    pub(super) fn reconnects(&self) -> broadcast::Receiver<Server> {
        self.client.reconnect_rx()
    }
}

impl Drop for FredConnection {
    fn drop(&mut self) {
        let (client, supervisor) = (self.client.clone(), self.supervisor.clone());
        self.runtime.spawn(async move {
            // The result does not matter, but a silent server must not keep the connection open.
            let _ = timeout(SETUP_TIMEOUT, client.quit()).await;
            supervisor.abort();
        });
    }
}

/// Creates a client that never retries a command, because the server may have executed it before
/// the answer was lost.
fn client(config: Config, timeout: Duration) -> Result<Client, Error> {
    Builder::from_config(config)
        .with_performance_config(|performance| performance.default_command_timeout = timeout)
        .with_connection_config(|connection| {
            connection.connection_timeout = SETUP_TIMEOUT;
            connection.internal_command_timeout = SETUP_TIMEOUT;
            connection.max_command_attempts = 1;
            // While disconnected, further calls fail when this many calls wait.
            connection.max_command_buffer_len = 256;
            connection.tcp.nodelay = Some(true);
            // The password may change while we run.
            connection.reconnect_on_auth_error = true;
            // Otherwise fred would close the connection on LOADING or READONLY, and report this
            // error to all calls in flight. `Failure` would treat them as not charged.
            connection.reconnect_errors.clear();
            // fred detects dead connections only while it sends little, so `Node` also watches
            // them. A slow server is not dead.
            connection.unresponsive.max_timeout = Some(timeout.max(Duration::from_secs(1)));
            connection.unresponsive.interval = Duration::from_millis(250);
        })
        .set_policy(reconnect_policy(&Random::default()))
        .build()
}

/// Returns how long to pause before each attempt to reconnect. All processes lose the server at the
/// same time, so each has its own pauses. Jitter would not suffice, because fred does not add it to
/// the longest pause.
fn reconnect_policy(random: &Random) -> ReconnectPolicy {
    let between = |least: u32, most: u32| least + (random.next() % u64::from(most - least)) as u32;
    let mut policy = ReconnectPolicy::new_exponential(0, between(15, 30), between(500, 1_000), 2);
    policy.set_jitter(20);
    policy
}

fn answer(answer: Result<FredValue, Error>) -> Answer {
    match answer {
        Ok(value) => Ok(value.into()),
        Err(error) => Err(error.into()),
    }
}

impl From<FredValue> for Value {
    fn from(value: FredValue) -> Self {
        match value {
            FredValue::Bytes(bytes) => Self::Bytes(bytes),
            FredValue::String(text) => Self::Bytes(text.into_inner()),
            FredValue::Integer(number) => Self::Number(number),
            FredValue::Array(values) => Self::List(values.into_iter().map(Self::from).collect()),
            // RESP2 has no other values.
            _ => Self::Null,
        }
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        match error.kind() {
            // The client checks its limit before it accepts a command.
            ErrorKind::Backpressure => Self::Unsent(error.to_string()),
            ErrorKind::Cluster | ErrorKind::Unknown => {
                let text = error.details();
                // A server error starts with a code in capitals, for example `OOM`. A client error
                // is a sentence.
                let code = text.split_whitespace().next().unwrap_or_default();
                if code.bytes().all(|byte| byte.is_ascii_uppercase()) {
                    Self::Server(text.to_owned())
                } else if text.starts_with("Failed to route command") {
                    // The client had no connection. A command on its only attempt was never
                    // written.
                    Self::Unsent(text.to_owned())
                } else {
                    // "Too many failed write attempts" looks like the error above, but the client
                    // also reports it for commands that it wrote to a connection and lost with it.
                    Self::Lost(text.to_owned())
                }
            }
            ErrorKind::Auth
            | ErrorKind::InvalidArgument
            | ErrorKind::InvalidCommand
            | ErrorKind::NotFound
            | ErrorKind::Parse
            | ErrorKind::Protocol => Self::Server(error.to_string()),
            // A connection error, such as a failed login, also reaches calls that were already
            // written.
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// fred treats a timeout of zero as no timeout.
const LEAST: Duration = Duration::from_millis(1);

/// The timeout for each setup step: connecting, the TLS handshake, and logging in.
const SETUP_TIMEOUT: Duration = Duration::from_millis(500);

/// Restarts the client's task, which stops on fatal errors. Until the first connection, logs the
/// first failure of each kind.
async fn supervise(client: Client) {
    let (mut errors, mut connected) = (client.error_rx(), client.reconnect_rx());
    let logged = LoggedErrors::default();
    let before_connection = async {
        loop {
            tokio::select! {
                biased;
                _ = connected.recv() => return,
                error = errors.recv() => match error {
                    Ok((error, _)) => logged.warn(&error),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
    };
    let restart = async {
        loop {
            match Connecting(client.connect()).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => logged.warn(&error),
                // A task that panicked is restarted too.
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::join!(before_connection, restart);
}

/// The kinds of errors that were logged. A server that was down may refuse the login afterwards.
#[derive(Default)]
struct LoggedErrors {
    login: AtomicBool,
    connection: AtomicBool,
}

impl LoggedErrors {
    fn warn(&self, error: &Error) {
        let (logged, what) = match error.kind() {
            ErrorKind::Auth => (&self.login, "redis refuses the login, retrying [TG0310]"),
            _ => (&self.connection, "no connection to redis, retrying [TG0309]"),
        };
        if !logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "tollgate", %error, "{what}");
        }
    }
}

/// The client's task, which is aborted when this future is dropped.
struct Connecting(ConnectHandle);

impl Future for Connecting {
    type Output = <ConnectHandle as Future>::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Creates a command without a slot, because each client has a single server.
fn custom(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, None::<u16>, false)
}

#[cfg(test)]
mod tests {
    use tollgate_test_servers::Redis;

    use super::*;
    use crate::calls::failure::{Failure, Refusal};

    #[tokio::test]
    async fn call_errors_do_not_close_connection() {
        let redis = Redis::start();
        let config = Config::from_url(&redis.url()).expect("a URL");
        let client = client(config, Duration::from_secs(10)).expect("builds");
        client.init().await.expect("connects");
        let call = async |name, arguments: &[&str]| {
            let arguments = arguments.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
            client.custom::<FredValue, _>(custom(name), arguments).await
        };
        let connection = call("CLIENT", &["ID"]).await.expect("a number");
        // fred always reconnects after CLUSTERDOWN, so `Failure` treats that error as a lost call.
        for error in ["READONLY", "LOADING", "MASTERDOWN", "OOM"] {
            let script = format!("return redis.error_reply('{error} it fails')");
            let failed = call("EVAL", &[&script, "0"]).await.expect_err("the script's error");
            assert!(failed.details().contains(error), "{failed}");
            assert_eq!(call("CLIENT", &["ID"]).await.expect("a number"), connection, "{error}");
        }
    }

    fn failure(kind: ErrorKind, details: &str) -> Failure {
        CommandError::from(Error::new(kind, details.to_owned())).into()
    }

    #[test]
    fn errors_tell_if_call_may_have_run() {
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

    /// Returns how long after a server's return a process reconnects, in milliseconds.
    fn reconnects_after(outage: u64, seed: u64) -> u64 {
        let mut policy = reconnect_policy(&Random::new(seed));
        let mut now = 0;
        while now < outage {
            now += policy.next_delay().expect("there is no last attempt");
        }
        now - outage
    }

    #[test]
    fn processes_reconnect_within_a_second_and_not_together() {
        const PROCESSES: u64 = 1_000;
        for outage in [500, 1_000, 3_000, 10_000, 60_000] {
            let mut tenths = [0; 10];
            (0..PROCESSES)
                .for_each(|seed| tenths[reconnects_after(outage, seed) as usize / 100] += 1);
            assert!(tenths.iter().all(|count| *count <= PROCESSES / 3), "{outage} ms: {tenths:?}");
        }
        // A connection may break without an outage.
        assert!((0..PROCESSES).all(|seed| reconnects_after(1, seed) < 50));
    }

    #[test]
    fn server_error_is_not_silence() {
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
            let error = CommandError::from(Error::new(kind, details.to_owned()));
            assert_eq!(error.is_silence(), is_silence, "{details}");
        }
    }
}
