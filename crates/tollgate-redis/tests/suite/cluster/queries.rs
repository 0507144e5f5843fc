//! How often a store queries a Cluster's slot map, by a simulated network and clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};
use tollgate_core::{Cost, Key, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_redis::simulation::{
    Answer, Answers, Command, CommandError, Connection, Network, Pending, Value,
};

use super::policy;

/// A Cluster in which one node has all slots. All nodes report the slot map, and fail calls.
#[derive(Clone, Debug, Default)]
struct Nodes {
    /// The port of the node that has the slots.
    leader: Arc<AtomicI64>,
    queries: Arc<AtomicUsize>,
}

impl Nodes {
    fn answer(&self, command: &Command) -> Answer {
        let text = |text: &'static str| Value::Bytes(Bytes::from_static(text.as_bytes()));
        match (command.name, command.arguments.first().map(|it| &it[..])) {
            ("CLUSTER", Some(b"SLOTS")) => {
                self.queries.fetch_add(1, Ordering::SeqCst);
                let port = Value::Number(self.leader.load(Ordering::SeqCst));
                let node = Value::List(vec![text("node"), port]);
                let range = vec![Value::Number(0), Value::Number(16_383), node];
                Ok(Value::List(vec![Value::List(range)]))
            }
            ("CLUSTER", _) => Ok(text("cluster_current_epoch:1")),
            _ => Err(CommandError::Server("LOADING".to_owned())),
        }
    }
}

impl Network for Nodes {
    fn connect(&self, _: Option<(&str, u16)>) -> Box<dyn Connection> {
        Box::new(self.clone())
    }
}

impl Connection for Nodes {
    fn send(&self, commands: SmallVec<[Command; 1]>, _: Duration) -> Pending<Answers> {
        let answers: Answers = commands.iter().map(|it| self.answer(it)).collect();
        Box::pin(async move {
            sleep(Duration::from_millis(1)).await;
            answers
        })
    }

    fn connected(&self) -> Pending<()> {
        Box::pin(async {})
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn reconnect(&self) {}

    fn reconnects(&self) -> broadcast::Receiver<()> {
        broadcast::channel(1).1
    }
}

#[tokio::test(start_paused = true)]
async fn failing_calls_rarely_query_slots() {
    let nodes = Nodes::default();
    nodes.leader.store(1, Ordering::SeqCst);
    let builder = RedisStore::builder("redis-cluster://node:1").unwrap().seed(1);
    let store = builder.simulated(Arc::new(nodes.clone()), Arc::default()).connect().unwrap();
    let (policy, start) = (policy("p", 1), Instant::now());
    let fail = async |time: Duration| {
        let before = nodes.queries.load(Ordering::SeqCst);
        let end = Instant::now() + time;
        while Instant::now() < end {
            store.charge(&policy, &Key::GLOBAL, Cost::ONE).await.unwrap_err();
            sleep(Duration::from_millis(10)).await;
        }
        nodes.queries.load(Ordering::SeqCst) - before
    };
    let second = Duration::from_secs(1);
    // The first failures may mean that the map has changed already.
    assert!((2..=4).contains(&fail(second).await));
    let minute = fail(60 * second).await;
    assert!((40..=60).contains(&minute), "{minute} queries in a minute");
    // A new map may be followed by another.
    nodes.leader.store(2, Ordering::SeqCst);
    let found = fail(2 * second).await;
    assert!((3..=6).contains(&found), "{found} queries after a change");
    // After a quiet time, a failure is a new reason.
    sleep(10 * second).await;
    assert!((2..=4).contains(&fail(second).await));
    assert!(start.elapsed() < 80 * second);
}
