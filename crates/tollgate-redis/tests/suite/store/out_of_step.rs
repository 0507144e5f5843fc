//! A connection on which calls and replies are out of step: each call receives an earlier call's
//! reply. Errors have no nonce, so a store that believed them would repeat calls that Redis has
//! executed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::broadcast;
use tokio::time::sleep;
use tollgate_core::{Cost, Key, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_redis::simulation::{
    Answer, Answers, Command, CommandError, Connection, Network, Pending, Value,
};

use super::charge;

/// A Cluster in which the first node has all slots.
#[derive(Debug)]
struct Cluster {
    /// How often each key was charged.
    charges: Mutex<HashMap<Bytes, usize>>,
    /// An earlier call's reply, which the next call receives, or the next call with keys of several
    /// slots.
    error: Mutex<Option<(CommandError, Calls)>>,
    /// The replies that the first node's connection returns next.
    late: Mutex<VecDeque<Answer>>,
    /// Whether the first node's connection breaks before the time is queried.
    breaks: bool,
    reconnects: broadcast::Sender<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    All,
    /// Calls with keys of several slots.
    CrossSlot,
}

/// A connection to a node.
#[derive(Debug)]
struct Wire {
    cluster: Arc<Cluster>,
    is_first: bool,
}

#[derive(Debug)]
struct Wires(Arc<Cluster>);

impl Network for Wires {
    fn connect(&self, node: Option<(&str, u16)>) -> Box<dyn Connection> {
        let is_first = node.is_some_and(|(host, _)| host == "first");
        Box::new(Wire { cluster: Arc::clone(&self.0), is_first })
    }
}

impl Connection for Wire {
    fn send(&self, commands: SmallVec<[Command; 1]>, _timeout: Duration) -> Pending<Answers> {
        let answers = commands.iter().map(|command| {
            let answer = self.cluster.execute(command, self.is_first);
            if !self.is_first {
                return answer;
            }
            if self.cluster.breaks && command.name == "TIME" {
                self.reconnect();
            }
            let mut late = self.cluster.late.lock();
            late.extend(self.cluster.error_before(command).map(Err));
            late.push_back(answer);
            late.pop_front().expect("an answer")
        });
        let answers: Answers = answers.collect();
        // Other requests arrive during a call, and an error is seen later than another reply.
        let is_error = answers.iter().any(Result::is_err);
        let transit = Duration::from_millis(if is_error { 2 } else { 1 });
        Box::pin(async move {
            sleep(transit).await;
            answers
        })
    }

    fn connected(&self) -> Pending<()> {
        Box::pin(std::future::ready(()))
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn reconnect(&self) {
        self.cluster.late.lock().clear();
        // The store may not have subscribed yet.
        let _ = self.cluster.reconnects.send(());
    }

    fn reconnects(&self) -> broadcast::Receiver<()> {
        self.cluster.reconnects.subscribe()
    }
}

impl Cluster {
    fn execute(&self, command: &Command, is_first: bool) -> Answer {
        let text = |text: &'static str| Value::Bytes(Bytes::from_static(text.as_bytes()));
        let list = |parts: &[Value]| Value::List(parts.to_vec());
        Ok(match command.name {
            "EVAL" | "EVALSHA" if is_first => self.decide(&command.arguments),
            "EVAL" | "EVALSHA" => {
                return Err(CommandError::Server("MOVED 0 first:7000".to_owned()));
            }
            "TIME" => list(&[text("1"), text("0")]),
            "INFO" => text("redis_version:7.4.0\r\ncluster_enabled:1\r\n"),
            "CLUSTER" => {
                let node = list(&[text("first"), Value::Number(7_000), Value::Null]);
                list(&[list(&[Value::Number(0), Value::Number(16_383), node])])
            }
            _ => Value::Null,
        })
    }

    /// Returns the error that precedes a command's reply.
    fn error_before(&self, command: &Command) -> Option<CommandError> {
        let is_cross_slot = command.arguments.get(1).is_some_and(|count| count == "0");
        let precedes = |(_, calls): &mut (CommandError, Calls)| {
            command.name == "EVALSHA" && (*calls == Calls::All || is_cross_slot)
        };
        self.error.lock().take_if(precedes).map(|(error, _)| error)
    }

    /// Charges each key of a call once.
    fn decide(&self, arguments: &[Bytes]) -> Value {
        let declared: usize = std::str::from_utf8(&arguments[1]).unwrap().parse().unwrap();
        // Keys of several slots are not declared, and come last.
        let keys = if declared > 0 { &arguments[2..2 + declared] } else { &arguments[6..] };
        let head = &arguments[2 + declared];
        // The nonce, the time, and that rows follow.
        let mut reply = head[..8].to_vec();
        reply.extend([0, 0, 0, 0, 15, 66, 64, 2]);
        for key in keys {
            *self.charges.lock().entry(key.clone()).or_default() += 1;
            // Admitted: this charge is allowed, and 8 units remain.
            reply.extend([2, 1, 0, 0, 0, 0, 8]);
            reply.extend([0; 28]);
        }
        Value::Bytes(reply.into())
    }
}

/// Sends `count` concurrent requests, of which a call receives an earlier call's error. Returns what
/// the store did wrong.
async fn mistakes(count: usize, calls: Calls, error: &str, breaks: bool) -> Vec<String> {
    let cluster = Arc::new(Cluster {
        charges: Mutex::default(),
        error: Mutex::default(),
        late: Mutex::default(),
        breaks,
        reconnects: broadcast::channel(1).0,
    });
    let builder = RedisStore::builder("redis-cluster://first:7000").unwrap();
    let network = Arc::new(Wires(Arc::clone(&cluster)));
    let store = builder.simulated(network, Arc::default()).connect().unwrap();
    store.connected().await;
    // The store checks its server first.
    sleep(Duration::from_secs(1)).await;
    let policy = super::policy(9);
    charge(&store, &policy, "in step", 1).await;
    cluster.charges.lock().clear();
    *cluster.error.lock() = Some((CommandError::Server(error.to_owned()), calls));
    let requests = (0..count).map(|key| {
        let (store, policy) = (store.clone(), policy.clone());
        tokio::spawn(
            async move { store.charge(&policy, &Key::new(key.to_be_bytes()), Cost::ONE).await },
        )
    });
    let mut mistakes = Vec::new();
    for request in requests.collect::<Vec<_>>() {
        if let Err(error) = request.await.unwrap()
            && !error.may_have_charged()
        {
            mistakes.push(format!("{count} requests, {calls:?}: not charged? {error}"));
        }
    }
    assert!(cluster.error.lock().is_none(), "no such call: {calls:?}");
    let charges = cluster.charges.lock();
    // The store checks each connection with other keys.
    let names = (0..count).map(|key| store.name_of(&policy, &Key::new(key.to_be_bytes())));
    let charged = names.filter_map(|name| charges.get(&name[..]));
    let repeated = charged.filter(|charges| **charges > 1).count();
    if repeated > 0 {
        let place = format!("{count} requests, {calls:?}, breaks: {breaks}, {error}");
        mistakes.push(format!("{place}: {repeated} charged again"));
    }
    mistakes
}

#[tokio::test(start_paused = true)]
async fn other_calls_errors_repeat_no_call() {
    let mut all = Vec::new();
    for error in [
        "NOSCRIPT No matching script. Please use EVAL.",
        "MOVED 0 second:7000",
        "ASK 0 second:7000",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "OOM command not allowed when used memory > 'maxmemory'.",
    ] {
        for (count, calls) in [(1, Calls::All), (9, Calls::All), (9, Calls::CrossSlot)] {
            for breaks in [false, true] {
                all.extend(mistakes(count, calls, error, breaks).await);
            }
        }
    }
    assert_eq!(all, Vec::<String>::new());
}
