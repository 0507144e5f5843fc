//! A Redis server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tollgate_core::Timestamp;

use crate::calls::failure::{Failure, Refusal};
use crate::calls::lanes::Lanes;
use crate::calls::pace::Bounds;
use crate::client::connection::command::{Answer, Answers, Command, CommandError, Value};
use crate::client::connection::{Connection, Reconnects};
use crate::client::host_port::HostPort;
use crate::client::node_breaker::NodeBreaker;
use crate::client::report::RedisReport;
use crate::client::server_clock::ServerClock;
use crate::random::Random;
use crate::script;
use crate::script::encode::Batch;

/// A server: the only one, or a Cluster node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: HostPort,
    /// The requests for its keys.
    pub(crate) lanes: Mutex<Lanes>,
    /// Permits for calls that other nodes redirected here.
    pub(crate) room: Arc<Semaphore>,
    /// When a redirection last named this node. If slots are moving to it, it may not have any slot
    /// yet.
    pub(crate) named_at: Mutex<Instant>,
    pub(crate) connection: Connection,
    pub(crate) runtime: Handle,
    pub(crate) clock: ServerClock,
    /// When the last answered query of the time was sent. Held while querying, so concurrent calls
    /// share one query, and no query gets another's reply.
    asked_at: tokio::sync::Mutex<Option<Instant>>,
    /// Only counts the connections.
    connections: Reconnects,
    health: Mutex<Health>,
    pub(crate) breaker: NodeBreaker,
    /// The longest time for a call.
    pub(crate) timeout: Duration,
    random: Arc<Random>,
    /// The server's properties as of the last connection.
    pub(crate) report: Mutex<RedisReport>,
    /// Whether a call may have keys in several slots.
    allows_cross_slot: AtomicBool,
}

#[derive(Debug, Default)]
struct Health {
    /// Since when every call has failed.
    failing_since: Option<Instant>,
    reconnected_at: Option<Instant>,
}

/// After this silence, the connection may be dead without an error, for example because the server
/// was taken off the network. Only a new connection can tell.
const SILENCE: Duration = Duration::from_millis(500);
/// The minimum time between forced reconnections, because each drops the calls in flight.
const BETWEEN_CONNECTIONS: Duration = Duration::from_secs(1);
/// The maximum number of concurrent calls that other nodes redirected here.
const MOST_REDIRECTED: usize = 64;
/// The longest wait for another process that loads the script.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// The script's time, which only tests set.
    pub(crate) time: Option<Timestamp>,
    /// When the call gives up.
    pub(crate) deadline: Instant,
    /// Whether `ASKING` goes first. While a slot moves, its new node needs that.
    pub(crate) is_asking: bool,
}

impl Sending {
    /// For a call about this process's own key.
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { time: None, deadline, is_asking: false }
    }
}

impl Node {
    /// Creates a node. Must be called in a tokio runtime.
    pub(crate) fn new(
        connection: Connection,
        address: HostPort,
        bounds: Bounds,
        breaker: NodeBreaker,
        random: Arc<Random>,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            lanes: Mutex::new(Lanes::new(bounds)),
            room: Arc::new(Semaphore::new(MOST_REDIRECTED)),
            named_at: Mutex::new(Instant::now()),
            connections: connection.reconnects(),
            connection,
            runtime: Handle::current(),
            clock: ServerClock::new(),
            asked_at: tokio::sync::Mutex::default(),
            health: Mutex::default(),
            breaker,
            timeout: bounds.timeout,
            random,
            report: Mutex::default(),
            allows_cross_slot: AtomicBool::new(false),
        })
    }

    /// Makes several calls in one write, and gives up at the deadline. While a slot moves, its new
    /// node only accepts calls that are `asking`: those that an `ASK` redirection sent there.
    pub(crate) async fn call(
        self: &Arc<Self>,
        batches: &[Batch],
        at: Sending,
    ) -> SmallVec<[Result<Bytes, Failure>; 1]> {
        let each: SmallVec<[&Batch; 1]> = batches.iter().collect();
        let mut sent = self.send(&each, EVALSHA, at).await;
        if sent.iter().any(is_unknown) {
            // A new server does not know the script, and many processes notice this at the same
            // time. Each waits for a random time, so the first loads the script and the others find
            // it, unless there would be no time for a third attempt.
            if at.deadline.saturating_duration_since(Instant::now()) > self.timeout * 3 / 4 {
                sleep(self.random.up_to((self.timeout / 8).min(LONGEST_WAIT))).await;
                self.send_unknown(batches, &mut sent, EVALSHA, at).await;
            }
            // Use `EVAL` instead of `SCRIPT LOAD`, because it also decides the requests.
            self.send_unknown(batches, &mut sent, EVAL, at).await;
        }
        self.judge(first_error(&sent));
        let outcomes: SmallVec<[_; 1]> = sent.into_iter().map(outcome).collect();
        self.observe(first_error(&outcomes));
        outcomes
    }

    /// Sends calls again that failed because the server does not know the script.
    async fn send_unknown(
        self: &Arc<Self>,
        batches: &[Batch],
        sent: &mut Answers,
        name: &'static str,
        at: Sending,
    ) {
        let unknown = batches.iter().zip(&*sent).filter(|(_, sent)| is_unknown(sent));
        let unknown: SmallVec<[&Batch; 1]> = unknown.map(|(batch, _)| batch).collect();
        if unknown.is_empty() {
            return;
        }
        let again = self.send(&unknown, name, at).await;
        let places = sent.iter_mut().filter(|sent| is_unknown(sent));
        places.zip(again).for_each(|(place, again)| *place = again);
    }

    async fn send(
        self: &Arc<Self>,
        batches: &[&Batch],
        name: &'static str,
        Sending { time, deadline, is_asking }: Sending,
    ) -> Answers {
        let mut commands = SmallVec::new();
        for (index, batch) in batches.iter().enumerate() {
            if is_asking {
                commands.push(Command { name: ASKING, arguments: Vec::new() });
            }
            // `EVAL` loads the script, so the digest suffices for the remaining batches.
            let is_same = |other: &&Batch| other.is_cross_slot() == batch.is_cross_slot();
            let name = if batches[..index].iter().any(is_same) { EVALSHA } else { name };
            commands.push(Command { name, arguments: arguments(name, batch, time) });
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        // A call that waits for a connection is sent on the next connection.
        let connection = self.connection.is_connected().then(|| self.connections.count());
        let mut answers = self.connection.send(commands, timeout).await;
        let connection = connection.unwrap_or_else(|| self.connections.count());
        if is_asking {
            // `ASKING` only applies to the next command, and its answer does not matter.
            answers = answers.into_iter().skip(1).step_by(2).collect();
        }
        if answers.iter().any(is_refusal) && !self.is_in_step(connection, deadline).await {
            for answer in answers.iter_mut().filter(|answer| is_refusal(answer)) {
                *answer = Err(CommandError::Lost("an earlier reply is missing".to_owned()));
            }
        }
        answers
    }

    /// Sends a command other than a call.
    pub(crate) async fn command(&self, name: &'static str, arguments: Vec<Bytes>) -> Answer {
        self.command_within(self.timeout, name, arguments).await
    }

    async fn command_within(
        &self,
        timeout: Duration,
        name: &'static str,
        arguments: Vec<Bytes>,
    ) -> Answer {
        let command = SmallVec::from([Command { name, arguments }]);
        let answer = self.connection.send(command, timeout).await.pop();
        answer.unwrap_or_else(|| Err(CommandError::Lost("no answer".to_owned())))
    }

    /// Queries the epoch of the server's slot map.
    pub(crate) async fn cluster_epoch(&self) -> Option<u64> {
        let info = self.command("CLUSTER", vec![Bytes::from_static(b"INFO")]).await.ok()?;
        let mut lines = info.as_str()?.lines();
        lines.find_map(|line| line.strip_prefix("cluster_current_epoch:")?.trim().parse().ok())
    }

    /// Whether the server's time is known.
    pub(crate) fn knows_time(&self) -> bool {
        self.clock.at_server(Instant::now()).is_some()
    }

    /// Queries the server's time, unless a concurrent call has done so.
    pub(crate) async fn learn_time(self: &Arc<Self>, deadline: Instant) -> Result<(), Failure> {
        self.query_time(None, deadline).await
    }

    /// Whether the connection with this number has lost no reply. Otherwise an error may be the
    /// reply to another call, because errors have no nonce, and the server may have executed this
    /// call.
    async fn is_in_step(self: &Arc<Self>, connection: usize, deadline: Instant) -> bool {
        let is_in_step = self.query_time(Some(Instant::now()), deadline).await.is_ok();
        // A new connection's replies prove nothing about the old connection.
        is_in_step && self.connections.count() == connection
    }

    /// Queries the server's time, unless a query that was sent later than `after` was answered.
    /// Without `after`, any reply suffices that told the time.
    async fn query_time(
        self: &Arc<Self>,
        after: Option<Instant>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        // Runs in its own task: the caller may stop polling, and other requests wait on this
        // result.
        let node = Arc::clone(self);
        let asking = self.runtime.spawn(async move { node.ask_time(after, deadline).await });
        asking.await.unwrap_or_else(|error| Err(Failure::Lost(error.to_string())))
    }

    async fn ask_time(
        self: &Arc<Self>,
        after: Option<Instant>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let lock = timeout_at(deadline, self.asked_at.lock()).await;
        let mut asked_at = lock.map_err(|_| Failure::Lost("another query is slow".to_owned()))?;
        let is_known = match after {
            Some(after) => asked_at.is_some_and(|at| at > after),
            None => self.knows_time(),
        };
        if is_known {
            return Ok(());
        }
        let sent = Instant::now();
        let said = self.time(deadline.saturating_duration_since(sent)).await;
        self.judge(said.as_ref().err());
        let outcome = said.map_err(Failure::from);
        self.observe(outcome.as_ref().err());
        self.clock.learn(outcome?, sent);
        *asked_at = Some(sent);
        Ok(())
    }

    async fn time(&self, timeout: Duration) -> Result<Timestamp, CommandError> {
        let said = self.command_within(timeout, TIME, Vec::new()).await?;
        let parts = match &said {
            Value::List(parts) => parts.iter().map(Value::as_u64).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let Some([seconds, micros]) = parts.as_deref() else {
            return Err(CommandError::Server(format!("TIME answered {said:?}")));
        };
        Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(*micros)))
    }

    /// Sends a probe and returns how long the server took to answer, or `None` if it did not answer
    /// within `patience`.
    pub(crate) async fn probe(&self, patience: Duration) -> Option<Duration> {
        // Waiting for a connection must not count towards the answer time.
        timeout(patience, self.connection.connected()).await.ok()?;
        let _asked_at = self.asked_at.lock().await;
        let sent = Instant::now();
        // Do not update the clock estimate, because this answer may be too old.
        let said = self.time(patience).await;
        let took = sent.elapsed();
        let is_silence = said.as_ref().err().is_some_and(CommandError::is_silence);
        self.observe(said.map_err(Failure::from).err().as_ref());
        (!is_silence).then_some(took)
    }

    /// Reports a call's outcome to the breaker, and starts probing the server if the breaker opens.
    fn judge(self: &Arc<Self>, error: Option<&CommandError>) {
        if self.breaker.learn(!error.is_some_and(CommandError::is_silence)) {
            self.runtime.spawn(probe(Arc::downgrade(self)));
        }
    }

    /// Reconnects, because replies no longer match their calls.
    pub(crate) fn distrust(&self) {
        tracing::warn!(target: "tollgate", "a reply from redis does not match its call, reconnecting");
        self.connection.reconnect();
    }

    /// Whether every call has failed for a while.
    pub(crate) fn is_silent(&self) -> bool {
        self.health.lock().failing_since.is_some_and(|since| since.elapsed() >= SILENCE)
    }

    /// Whether a call may have keys in several slots.
    pub(crate) fn allows_cross_slot(&self) -> bool {
        self.allows_cross_slot.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cross_slot(&self, is_allowed: bool) {
        self.allows_cross_slot.store(is_allowed, Ordering::Relaxed);
    }

    fn observe(&self, failure: Option<&Failure>) {
        let mut health = self.health.lock();
        let Some(failure) = failure else {
            health.failing_since = None;
            return;
        };
        let now = Instant::now();
        let since = *health.failing_since.get_or_insert(now);
        let is_led_elsewhere = matches!(failure, Failure::Refused(Refusal::ReadOnly));
        let is_silent = matches!(failure, Failure::Lost(_)) && now - since >= SILENCE;
        let is_due = health.reconnected_at.is_none_or(|at| now - at >= BETWEEN_CONNECTIONS);
        if (is_led_elsewhere || is_silent) && is_due {
            health.reconnected_at = Some(now);
            drop(health);
            self.connection.reconnect();
        }
    }
}

/// Whether the server does not know the script.
fn is_unknown(answer: &Answer) -> bool {
    answer.as_ref().err().is_some_and(CommandError::is_no_script)
}

/// Whether the server answered that it has not executed the call.
fn is_refusal(answer: &Answer) -> bool {
    answer.as_ref().err().is_some_and(CommandError::is_refusal)
}

/// Returns the first error if all results are errors.
fn first_error<T, E>(results: &[Result<T, E>]) -> Option<&E> {
    let error = results.first()?.as_ref().err();
    error.filter(|_| results.iter().all(Result::is_err))
}

fn outcome(answer: Answer) -> Result<Bytes, Failure> {
    match answer? {
        Value::Bytes(bytes) => Ok(bytes),
        other => Err(Failure::Lost(format!("the script answered {other:?}"))),
    }
}

/// Builds the arguments of [`EVAL`] or [`EVALSHA`].
fn arguments(name: &'static str, batch: &Batch, time: Option<Timestamp>) -> Vec<Bytes> {
    let script = if batch.is_cross_slot() { script::CROSS_SLOT } else { script::MAIN };
    let script = if name == EVAL { script.text } else { script.sha1 };
    let keys = batch.declared_keys();
    let mut arguments = Vec::with_capacity(6 + batch.keys().len());
    arguments.push(Bytes::from_static(script.as_bytes()));
    arguments.push(Bytes::from(keys.len().to_string()));
    arguments.extend(keys.map(Bytes::copy_from_slice));
    arguments.extend(batch.args(time).into_iter().map(Bytes::from));
    arguments
}

const EVALSHA: &str = "EVALSHA";
const EVAL: &str = "EVAL";
const ASKING: &str = "ASKING";
const TIME: &str = "TIME";

/// Probes a server until it answers within the timeout, or the store is dropped.
async fn probe(node: Weak<Node>) {
    loop {
        let next = node.upgrade().and_then(|node| node.breaker.next_probe());
        let Some((wait, patience)) = next else { return };
        sleep(wait).await;
        let Some(node) = node.upgrade() else { return };
        let took = node.probe(patience).await;
        node.breaker.probed(took);
    }
}
