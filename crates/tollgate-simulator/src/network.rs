//! The simulated network: connections that deliver commands and answers in order, with latency, and
//! can break.
//!
//! A connection consists of two pipes, each with its own task. Commands pass through the first pipe
//! and wait for the server, and their answers pass through the second. A road connects a replica
//! with the servers, and outlives its connections. Messages on different connections can overtake
//! each other.
//!
//! TCP delivers a connection's answers in order, so an answer is only lost with its connection. The
//! store's test `out_of_step.rs` has a client library or proxy that mixes up answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tollgate_redis::simulation::{Answers, Command, CommandError, Connection, Network, Pending};

use crate::server::cluster::server_of;
use crate::server::{Condition, is_call};
use crate::world::World;

/// The network between a replica and the servers.
#[derive(Debug)]
pub(crate) struct Road {
    /// The minimum and maximum latency in milliseconds.
    pub(crate) latency: (u64, u64),
    /// An additional delay in milliseconds.
    pub(crate) delay: u64,
    /// Whether messages to servers and messages to the replica are stuck. They arrive later.
    pub(crate) is_blocked: [bool; 2],
    /// Whether only messages of this server are stuck.
    pub(crate) blocked_server: Option<usize>,
    links: Vec<Link>,
}

/// A store's connection, which reconnects whenever it breaks.
#[derive(Debug)]
struct Link {
    /// The Cluster node that it connects to. `None` for the current master.
    node: Option<usize>,
    /// The current connection, if there is one.
    open: Option<Open>,
    /// The number of commands that wait for a connection.
    waiting: usize,
    is_closed: bool,
    changed: Arc<Notify>,
    reconnects: broadcast::Sender<()>,
}

#[derive(Debug)]
struct Open {
    pipe: mpsc::UnboundedSender<Request>,
    answers: mpsc::UnboundedSender<Reply>,
    unanswered: BTreeMap<u64, oneshot::Sender<Answers>>,
    /// The connection's number, and the server and its start to which it belongs.
    number: u64,
    server: usize,
    start: u64,
}

/// Commands in transit to the server.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) from: From,
    number: u64,
    /// The server and its start that the connection belongs to.
    pub(crate) server: usize,
    pub(crate) start: u64,
    pub(crate) commands: SmallVec<[Command; 1]>,
    sent: Instant,
    arrives: Instant,
    answers: mpsc::UnboundedSender<Reply>,
}

/// The origin of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct From {
    pub(crate) replica: usize,
    link: usize,
    connection: u64,
    server: usize,
}

#[derive(Debug)]
struct Reply {
    number: u64,
    answers: Answers,
    arrives: Instant,
    /// The commands' time from replica to server, if the answer tells the server's time.
    transit: Option<Duration>,
}

const TO_SERVER: usize = 0;
const TO_REPLICA: usize = 1;

/// The maximum number of commands that wait for a connection, like in the real client.
const MOST_WAITING: usize = 256;

/// The network as a replica sees it.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) world: World,
    pub(crate) replica: usize,
}

struct Wire {
    access: Access,
    link: usize,
}

impl Road {
    pub(crate) const fn new(latency: (u64, u64)) -> Self {
        let (is_blocked, blocked_server) = ([false; 2], None);
        Self { latency, delay: 0, is_blocked, blocked_server, links: Vec::new() }
    }

    fn blocks(&self, server: usize, direction: usize) -> bool {
        self.is_blocked[direction] && self.blocked_server.is_none_or(|only| only == server)
    }
}

impl Network for Access {
    fn connect(&self, node: Option<(&str, u16)>) -> Box<dyn Connection> {
        let mut state = self.world.lock();
        let links = &mut state.roads[self.replica].links;
        links.push(Link {
            node: node.map(|(host, _)| server_of(host)),
            open: None,
            waiting: 0,
            is_closed: false,
            changed: Arc::default(),
            reconnects: broadcast::channel(16).0,
        });
        let link = links.len() - 1;
        tokio::spawn(connect(self.clone(), link));
        Box::new(Wire { access: self.clone(), link })
    }
}

impl Connection for Wire {
    fn send(&self, commands: SmallVec<[Command; 1]>, timeout: Duration) -> Pending<Answers> {
        let (access, link) = (self.access.clone(), self.link);
        Box::pin(async move {
            let count = commands.len();
            let answers = access.send(link, commands, timeout).await;
            answers.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone())).collect())
        })
    }

    fn connected(&self) -> Pending<()> {
        let (access, link) = (self.access.clone(), self.link);
        Box::pin(async move { access.connected(link).await })
    }

    fn is_connected(&self) -> bool {
        self.access.world.lock().roads[self.access.replica].links[self.link].open.is_some()
    }

    fn reconnect(&self) {
        if self.is_connected() {
            self.access.cut(self.link);
        }
    }

    fn reconnects(&self) -> broadcast::Receiver<()> {
        let state = self.access.world.lock();
        state.roads[self.access.replica].links[self.link].reconnects.subscribe()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let mut state = self.access.world.lock();
        let link = &mut state.roads[self.access.replica].links[self.link];
        link.is_closed = true;
        link.open = None;
    }
}

impl Access {
    async fn connected(&self, link: usize) {
        loop {
            let changed = {
                let state = self.world.lock();
                let link = &state.roads[self.replica].links[link];
                if link.open.is_some() {
                    return;
                }
                Arc::clone(&link.changed).notified_owned()
            };
            changed.await;
        }
    }

    async fn send(
        &self,
        link: usize,
        commands: SmallVec<[Command; 1]>,
        timeout: Duration,
    ) -> Result<Answers, CommandError> {
        let deadline = Instant::now() + timeout.max(Duration::from_millis(1));
        let late = || CommandError::Lost("Timeout: no answer in time".to_owned());
        if !self.add_waiting(link, 1) {
            return Err(CommandError::Unsent("too many commands wait".to_owned()));
        }
        let connected = timeout_at(deadline, self.connected(link)).await;
        self.add_waiting(link, -1);
        connected.map_err(|_| late())?;
        let answers = self.write(link, commands);
        match timeout_at(deadline, answers).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) => Err(CommandError::Lost("the connection was closed".to_owned())),
            Err(_) => Err(late()),
        }
    }

    /// Counts commands that wait for a connection. Returns whether there is room for them.
    fn add_waiting(&self, link: usize, count: isize) -> bool {
        let mut state = self.world.lock();
        let waiting = &mut state.roads[self.replica].links[link].waiting;
        let has_room = *waiting < MOST_WAITING || count < 0;
        if has_room {
            *waiting = waiting.saturating_add_signed(count);
        }
        has_room
    }

    fn write(&self, link: usize, commands: SmallVec<[Command; 1]>) -> oneshot::Receiver<Answers> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.world.lock();
        let arrives = state.arrival(self.replica);
        let number = state.next_number();
        let Some(open) = &mut state.roads[self.replica].links[link].open else { return receiver };
        open.unanswered.insert(number, sender);
        let (server, start, connection) = (open.server, open.start, open.number);
        let from = From { replica: self.replica, link, connection, server };
        let (sent, answers) = (Instant::now(), open.answers.clone());
        let request = Request { from, number, server, start, commands, sent, arrives, answers };
        let _ = open.pipe.send(request);
        receiver
    }

    /// Breaks a connection. Commands without an answer are lost, and a new connection is made.
    fn cut(&self, link: usize) {
        let mut state = self.world.lock();
        if state.roads[self.replica].links[link].open.take().is_some() {
            tokio::spawn(connect(self.clone(), link));
        }
    }

    /// Breaks all of the replica's connections, or those to a server.
    pub(crate) fn cut_all(&self, server: Option<usize>) {
        let is_concerned = |link: &Link| {
            link.open.as_ref().is_some_and(|open| server.is_none_or(|only| only == open.server))
        };
        let concerned: Vec<bool> =
            self.world.lock().roads[self.replica].links.iter().map(is_concerned).collect();
        let concerned = concerned.into_iter().enumerate().filter(|(_, is_concerned)| *is_concerned);
        concerned.for_each(|(link, _)| self.cut(link));
    }

    async fn unblocked(&self, server: usize, direction: usize) {
        loop {
            let changed = {
                let state = self.world.lock();
                if !state.roads[self.replica].blocks(server, direction) {
                    return;
                }
                Arc::clone(&state.changed).notified_owned()
            };
            changed.await;
        }
    }
}

/// Makes a connection, and tries until it succeeds, with pauses like the real client's.
async fn connect(access: Access, link: usize) {
    let mut pause = Duration::ZERO;
    let [least, most] = {
        let rng = &mut access.world.lock().rng;
        [rng.u64(15..30), rng.u64(500..1_000)].map(Duration::from_millis)
    };
    loop {
        sleep(pause).await;
        pause = (2 * pause).clamp(least, most);
        let answered = access.world.lock().arrival(access.replica);
        sleep_until(answered).await;
        let mut guard = access.world.lock();
        let state = &mut *guard;
        let road = &state.roads[access.replica];
        if road.links[link].is_closed {
            return;
        }
        // Sentinel knows the current master.
        let server = road.links[link].node.unwrap_or(state.view.masters[0]);
        let is_blocked = [TO_SERVER, TO_REPLICA].iter().any(|way| road.blocks(server, *way));
        if is_blocked || state.servers[server].condition != Condition::Works {
            continue;
        }
        let (number, start) = (state.next_number(), state.servers[server].starts);
        let (pipe, requests) = mpsc::unbounded_channel();
        let (answers, replies) = mpsc::unbounded_channel();
        let from = From { replica: access.replica, link, connection: number, server };
        tokio::spawn(carry_requests(access.clone(), requests));
        tokio::spawn(carry_replies(access.clone(), from, replies));
        let link = &mut state.roads[access.replica].links[link];
        let unanswered = BTreeMap::new();
        link.open = Some(Open { pipe, answers, unanswered, number, server, start });
        link.changed.notify_waiters();
        let _ = link.reconnects.send(());
        return;
    }
}

/// Carries commands to the server. Commands that were written before the connection broke may
/// arrive afterwards.
async fn carry_requests(access: Access, mut requests: mpsc::UnboundedReceiver<Request>) {
    while let Some(request) = requests.recv().await {
        sleep_until(request.arrives).await;
        access.unblocked(request.server, TO_SERVER).await;
        access.world.deliver(request);
    }
}

/// Carries answers to the replica until the connection breaks.
async fn carry_replies(access: Access, from: From, mut replies: mpsc::UnboundedReceiver<Reply>) {
    while let Some(reply) = replies.recv().await {
        sleep_until(reply.arrives).await;
        access.unblocked(from.server, TO_REPLICA).await;
        let mut state = access.world.lock();
        let open = state.roads[from.replica].links[from.link].open.as_mut();
        let Some(open) = open.filter(|open| open.number == from.connection) else { return };
        let waiting = open.unanswered.remove(&reply.number);
        if let Some(transit) = reply.transit {
            state.history.arrived((from.replica, from.server), transit);
        }
        if let Some(waiting) = waiting {
            let _ = waiting.send(reply.answers);
        }
    }
}

impl Request {
    /// Sends the answers back.
    pub(crate) fn answer(self, answers: Answers, arrives: Instant) {
        // `EVAL` repeats a call, so its answer only bounds the time since the first attempt.
        let tells_time = self.commands.first().zip(answers.first()).is_some_and(|(it, answer)| {
            answer.is_ok() && (it.name == "TIME" || it.name == "EVALSHA" && is_call(it))
        });
        let transit = tells_time.then(|| self.sent.elapsed());
        // The connection may have ended.
        let _ = self.answers.send(Reply { number: self.number, answers, arrives, transit });
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("replica", &self.replica).finish_non_exhaustive()
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("link", &self.link).finish_non_exhaustive()
    }
}
