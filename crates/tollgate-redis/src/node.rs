//! One server.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fred::clients::{Client, Pipeline};
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Config, Options, ReconnectPolicy};
use fred::types::{Builder, ConnectHandle, CustomCommand, Value};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tollgate_core::Timestamp;

use crate::check::{self, About, RedisReport};
use crate::encode::Batch;
use crate::failure::{self, Failure, Refusal};
use crate::guard::{self, Guard};
use crate::script;
use crate::server_clock::ServerClock;

/// A connection to one server that is made anew whenever it breaks, and what is known of
/// the server's clock.
#[derive(Debug)]
pub(crate) struct Node {
    client: Client,
    runtime: Handle,
    supervisor: AbortHandle,
    clock: ServerClock,
    /// Held by who asks for the time, so that one does for all.
    asking: tokio::sync::Mutex<()>,
    health: Mutex<Health>,
    guard: Guard,
    timeout: Duration,
    report: Mutex<RedisReport>,
    /// Whether a call may have keys of several slots.
    allows_cross_slot: AtomicBool,
}

#[derive(Debug, Default)]
struct Health {
    /// Since when every call has failed.
    failing_since: Option<Instant>,
    reconnected_at: Option<Instant>,
}

/// After this silence, the connection to a server may be dead without notice, for example because
/// the server was taken off the network. Only a new connection finds out.
const SILENCE: Duration = Duration::from_millis(500);
/// New connections are made so seldom, since each drops what is under way.
const BETWEEN_CONNECTIONS: Duration = Duration::from_secs(1);

impl Node {
    /// Begins to connect, and never stops trying. Must be called in a tokio runtime.
    pub(crate) fn connect(
        config: Config,
        timeout: Duration,
        guard: Guard,
        about: About,
    ) -> Result<Arc<Self>, Error> {
        let client = client(config, timeout)?;
        let runtime = Handle::current();
        let supervisor = runtime.spawn(supervise(client.clone())).abort_handle();
        let (clock, health, report) = (ServerClock::new(), Mutex::default(), Mutex::default());
        let asking = tokio::sync::Mutex::default();
        let node = Arc::new(Self {
            client,
            runtime,
            supervisor,
            clock,
            asking,
            health,
            guard,
            timeout,
            report,
            allows_cross_slot: AtomicBool::new(false),
        });
        check::watch(&node, about);
        Ok(node)
    }

    /// Carries out calls that are written together, and gives up at the deadline. While a slot
    /// moves, the new node of a Cluster accepts only calls that are `asking`: calls that were
    /// redirected there for their keys.
    pub(crate) async fn call(
        self: &Arc<Self>,
        batches: &[Batch],
        time: Option<Timestamp>,
        deadline: Instant,
        is_asking: bool,
    ) -> SmallVec<[Result<Bytes, Failure>; 1]> {
        let each: SmallVec<[&Batch; 1]> = batches.iter().collect();
        let mut sent = self.send(&each, EVALSHA, time, deadline, is_asking).await;
        let is_unknown = |sent: &Sent| sent.as_ref().err().is_some_and(failure::is_no_script);
        if sent.iter().any(is_unknown) {
            let unknown = batches.iter().zip(&sent).filter(|(_, sent)| is_unknown(sent));
            let unknown: SmallVec<[&Batch; 1]> = unknown.map(|(batch, _)| batch).collect();
            // Not SCRIPT LOAD: this decides on the way, and asks no other node.
            let again = self.send(&unknown, EVAL, time, deadline, is_asking).await;
            let places = sent.iter_mut().filter(|sent| is_unknown(sent));
            places.zip(again).for_each(|(place, again)| *place = again);
        }
        self.judge(first_error(&sent));
        let outcomes: SmallVec<[_; 1]> = sent.into_iter().map(outcome).collect();
        self.observe(first_error(&outcomes));
        outcomes
    }

    async fn send(
        &self,
        batches: &[&Batch],
        name: &'static str,
        time: Option<Timestamp>,
        deadline: Instant,
        is_asking: bool,
    ) -> SmallVec<[Sent; 1]> {
        // Only fred's own timeout keeps it from sending commands whose callers have given up, and
        // only commands that it does not know have one.
        let timeout = deadline.saturating_duration_since(Instant::now()).max(LEAST);
        let options = Options { timeout: Some(timeout), ..Options::default() };
        let client = self.client.with_options(&options);
        if let ([batch], false) = (batches, is_asking) {
            return smallvec![client.custom(command(name), arguments(name, batch, time)).await];
        }
        // The commands of a pipeline are written one right after the other, with no
        // command of others between them, and ASKING holds for the next one alone.
        let pipeline = Pipeline::from(client);
        for (index, batch) in batches.iter().enumerate() {
            if is_asking {
                let _ = pipeline.custom::<Value, Value>(command(ASKING), Vec::new()).await;
            }
            // The server knows a script once it was sent whole.
            let is_same = |other: &&Batch| other.is_cross_slot() == batch.is_cross_slot();
            let name = if batches[..index].iter().any(is_same) { EVALSHA } else { name };
            let arguments = arguments(name, batch, time);
            let _ = pipeline.custom::<Value, Value>(command(name), arguments).await;
        }
        let commands = 1 + usize::from(is_asking);
        let answers = pipeline.try_all::<Value>().await;
        if answers.len() == batches.len() * commands {
            return answers.into_iter().skip(commands - 1).step_by(commands).collect();
        }
        // One error for all of them. Some may have been carried out, whatever it says.
        let error = answers.into_iter().find_map(Result::err);
        let error = error.unwrap_or_else(|| Error::new(ErrorKind::IO, "too few answers"));
        let is_timeout = *error.kind() == ErrorKind::Timeout;
        let kind = if is_timeout { ErrorKind::Timeout } else { ErrorKind::IO };
        let error = Error::new(kind, error.details().to_owned());
        batches.iter().map(|_| Err(error.clone())).collect()
    }

    /// Which nodes of its Cluster have which slots.
    pub(crate) async fn cluster_slots(&self) -> Result<Value, Error> {
        self.client.custom(command("CLUSTER"), vec![Value::from_static_str("SLOTS")]).await
    }

    /// The epoch of the map that the server has of its Cluster.
    pub(crate) async fn cluster_epoch(&self) -> Option<u64> {
        let info = vec![Value::from_static_str("INFO")];
        let info: String = self.client.custom(command("CLUSTER"), info).await.ok()?;
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix("cluster_current_epoch:")?.trim().parse().ok())
    }

    /// Whether the server has ever said what time it is.
    pub(crate) fn knows_time(&self) -> bool {
        self.clock.at_server(Instant::now()).is_some()
    }

    /// Asks the server for its time, unless another call has done so by then.
    pub(crate) async fn learn_time(self: &Arc<Self>, deadline: Instant) -> Result<(), Failure> {
        // By a task of its own: who asks keeps others waiting, and a caller may stop polling.
        let node = Arc::clone(self);
        let asking = self.runtime.spawn(async move { node.ask_time(deadline).await });
        asking.await.unwrap_or_else(|error| Err(Failure::Lost(error.to_string())))
    }

    async fn ask_time(self: &Arc<Self>, deadline: Instant) -> Result<(), Failure> {
        let _asking = self.asking.lock().await;
        if self.knows_time() {
            return Ok(());
        }
        let sent = Instant::now();
        let said = self.time(deadline.saturating_duration_since(sent)).await;
        self.judge(said.as_ref().err());
        let outcome = said.map_err(Failure::from);
        self.observe(outcome.as_ref().err());
        self.clock.learn(outcome?, sent);
        Ok(())
    }

    async fn time(&self, timeout: Duration) -> Result<Timestamp, Error> {
        let options = Options { timeout: Some(timeout.max(LEAST)), ..Options::default() };
        let client = self.client.with_options(&options);
        let said = client.custom::<(u64, u64), Value>(command(TIME), Vec::new()).await;
        let (seconds, micros) = said?;
        let now = seconds.saturating_mul(1_000_000).saturating_add(micros);
        Ok(Timestamp::from_micros(now))
    }

    /// Sends a probe and returns how long the server took to answer; `None` without an answer
    /// within `patience`.
    pub(crate) async fn probe(&self, patience: Duration) -> Option<Duration> {
        // The wait for a connection says nothing about how soon the server answers.
        timeout(patience, self.connected()).await.ok()?;
        let sent = Instant::now();
        // The answer does not set the clock estimate, because it may be too old.
        let said = self.time(patience).await;
        let took = sent.elapsed();
        let is_silence = said.as_ref().err().is_some_and(failure::is_silence);
        self.observe(said.map_err(Failure::from).err().as_ref());
        (!is_silence).then_some(took)
    }

    /// Tells the breaker what came of a call, and begins to probe the server if it opens.
    fn judge(self: &Arc<Self>, error: Option<&Error>) {
        if self.guard.learn(!error.is_some_and(failure::is_silence)) {
            self.runtime.spawn(guard::probe(Arc::downgrade(self)));
        }
    }

    /// The breaker.
    pub(crate) const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The server's time at `instant`, unless it never answered.
    pub(crate) fn at_server(&self, instant: Instant) -> Option<Timestamp> {
        self.clock.at_server(instant)
    }

    /// A reply said that it was `now`, to a call sent at `sent`.
    pub(crate) fn learn(&self, now: Timestamp, sent: Instant) {
        self.clock.learn(now, sent);
    }

    /// A reply has a later time than the server could have had.
    pub(crate) fn relearn(&self, now: Timestamp, sent: Instant) {
        self.clock.relearn(now, sent);
    }

    /// Replies no longer belong to the calls they follow: another connection is needed.
    pub(crate) fn distrust(&self) {
        tracing::warn!(target: "tollgate", "a reply from redis is not one to its call: reconnecting");
        self.reconnect();
    }

    /// Waits until there is a connection.
    pub(crate) async fn connected(&self) {
        // It fails when a first attempt does, and another follows.
        while self.client.wait_for_connect().await.is_err() {}
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// How long a call may take.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether every call has failed for a while.
    pub(crate) fn is_silent(&self) -> bool {
        self.health.lock().failing_since.is_some_and(|since| since.elapsed() >= SILENCE)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// The properties of the server at the last connection.
    pub(crate) fn report(&self) -> RedisReport {
        self.report.lock().clone()
    }

    /// Whether a call may have keys of several slots.
    pub(crate) fn allows_cross_slot(&self) -> bool {
        self.allows_cross_slot.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cross_slot(&self, is_allowed: bool) {
        self.allows_cross_slot.store(is_allowed, Ordering::Relaxed);
    }

    pub(crate) fn keep(&self, report: RedisReport) {
        *self.report.lock() = report;
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
            self.reconnect();
        }
    }

    /// Another connection in the place of the one there is. Without one it is being looked for,
    /// and fred would keep the wish and make up for it as soon as one is found.
    fn reconnect(&self) {
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
}

impl Drop for Node {
    fn drop(&mut self) {
        let (client, supervisor) = (self.client.clone(), self.supervisor.clone());
        self.runtime.spawn(async move {
            // The connection is being closed, so its result does not matter. But a silent server
            // must not keep it open.
            let _ = timeout(SETUP_TIMEOUT, client.quit()).await;
            supervisor.abort();
        });
    }
}

/// A client that never repeats a command by itself: a script that ran and whose answer was
/// lost would charge twice.
fn client(config: Config, timeout: Duration) -> Result<Client, Error> {
    let mut policy = ReconnectPolicy::new_exponential(0, 20, 500, 2);
    policy.set_jitter(20);
    Builder::from_config(config)
        .with_performance_config(|performance| performance.default_command_timeout = timeout)
        .with_connection_config(|connection| {
            connection.connection_timeout = SETUP_TIMEOUT;
            connection.internal_command_timeout = SETUP_TIMEOUT;
            connection.max_command_attempts = 1;
            // Without a connection, calls are rejected once this number of calls waits.
            connection.max_command_buffer_len = 256;
            connection.tcp.nodelay = Some(true);
            // A password may be changed while we run.
            connection.reconnect_on_auth_error = true;
            // Otherwise fred would close the connection on LOADING or READONLY, and report this
            // error to all calls in flight. `Failure` would read it as not charged.
            connection.reconnect_errors.clear();
            // This sees a dead connection only while little is sent; `observe` the others. A
            // server that may take longer to answer is not dead yet.
            connection.unresponsive.max_timeout = Some(timeout.max(Duration::from_secs(1)));
            connection.unresponsive.interval = Duration::from_millis(250);
        })
        .set_policy(policy)
        .build()
}

/// An answer of the client.
type Sent = Result<Value, Error>;

/// An error, if all have one.
fn first_error<T, E>(results: &[Result<T, E>]) -> Option<&E> {
    let error = results.first()?.as_ref().err();
    error.filter(|_| results.iter().all(Result::is_err))
}

fn outcome(sent: Sent) -> Result<Bytes, Failure> {
    match sent? {
        Value::Bytes(bytes) => Ok(bytes),
        Value::String(text) => Ok(text.into_inner()),
        other => Err(Failure::Lost(format!("the script answered {:?}", other.kind()))),
    }
}

/// The arguments of [`EVAL`] or [`EVALSHA`].
fn arguments(name: &'static str, batch: &Batch, time: Option<Timestamp>) -> Vec<Value> {
    let script = match (name, batch.is_cross_slot()) {
        (EVAL, false) => script::TEXT,
        (EVAL, true) => script::CROSS_SLOT_TEXT,
        (_, false) => script::SHA1,
        (_, true) => script::CROSS_SLOT_SHA1,
    };
    let keys = batch.declared_keys();
    let mut arguments = Vec::with_capacity(6 + batch.keys().len());
    arguments.push(Value::from_static_str(script));
    arguments.push(Value::Integer(i64::try_from(keys.len()).unwrap_or(i64::MAX)));
    arguments.extend(keys.map(|key| Value::Bytes(Bytes::copy_from_slice(key))));
    arguments.extend(batch.args(time).into_iter().map(|bytes| Value::Bytes(Bytes::from(bytes))));
    arguments
}

const EVALSHA: &str = "EVALSHA";
const EVAL: &str = "EVAL";
const ASKING: &str = "ASKING";
const TIME: &str = "TIME";

/// No timeout at all is how fred reads one of zero.
const LEAST: Duration = Duration::from_millis(1);

/// Connecting, TLS and logging in, each.
const SETUP_TIMEOUT: Duration = Duration::from_millis(500);

/// Keeps the client alive: its task ends on errors that it takes for fatal.
async fn supervise(client: Client) {
    let mut was_told = false;
    loop {
        match Connection(client.connect()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) if !was_told => {
                was_told = true;
                tracing::warn!(target: "tollgate", %error, "no connection to redis, trying on");
            }
            // Only the first failure is logged. A task that panicked is also started again.
            Ok(Err(_)) | Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The task of the client. It ends with the future that waits for it.
struct Connection(ConnectHandle);

impl Future for Connection {
    type Output = <ConnectHandle as Future>::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A command for the one server there is.
fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, None::<u16>, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_of_one_call_leave_the_connection_open() {
        let client = client(Config::default(), SETUP_TIMEOUT).expect("builds");
        assert_eq!(client.connection_config().reconnect_errors, []);
    }
}
