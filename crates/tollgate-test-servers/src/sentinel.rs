//! A master, its replicas, and the sentinels that monitor them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::client::Value;
use crate::redis::{Redis, RedisBuilder};
use crate::wait::{try_until, until};

/// Running sentinels with a master and its replicas. The group's name is [`Sentinels::NAME`].
///
/// Methods refer to data nodes by index. Node 0 is the initial master and the rest are its
/// replicas. A failover changes roles, not indices.
#[derive(Debug)]
pub struct Sentinels {
    // Dropped before the nodes, or a sentinel might start a failover during shutdown.
    sentinels: Vec<Redis>,
    nodes: Vec<Redis>,
}

impl Sentinels {
    /// The group name that clients send to a sentinel.
    pub const NAME: &str = "mymaster";

    /// Starts a master, one replica and three sentinels. A failover starts when two sentinels
    /// agree that the master has been down for 1 s.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Configures the number of servers and their settings.
    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder { replicas: 1, sentinels: 3, quorum: 2, node: RedisBuilder::new() }
    }

    /// The URL for clients: `redis-sentinel://…` with the other sentinels as `&node=`. The
    /// password, if any, is for the data nodes; the sentinels have no password.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self.nodes[0].password().map(|password| format!(":{password}@"));
        let others = self.sentinels[1..].iter().map(|node| format!("&node={}", node.address()));
        format!(
            "redis-sentinel://{}{}?sentinelServiceName={}{}",
            login.unwrap_or_default(),
            self.sentinels[0].address(),
            Self::NAME,
            others.collect::<String>(),
        )
    }

    /// The data nodes, by index.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The data node at an index.
    ///
    /// # Panics
    ///
    /// If no node has that index.
    #[must_use]
    pub fn node(&self, index: usize) -> &Redis {
        &self.nodes[index]
    }

    /// The master according to the first sentinel that is up.
    ///
    /// # Panics
    ///
    /// If no sentinel is up.
    #[must_use]
    pub fn master(&self) -> usize {
        let sentinel = self.sentinels.iter().find(|it| it.is_up()).expect("a sentinel that is up");
        self.master_by(sentinel)
    }

    /// Kills the master and returns its index.
    pub fn kill_master(&self) -> usize {
        let master = self.master();
        self.nodes[master].kill();
        master
    }

    /// Waits until all sentinels that are up agree on a master other than `old`, and until that
    /// node has assumed the master role. Returns its index.
    ///
    /// # Panics
    ///
    /// If this takes longer than 30 s.
    #[must_use]
    pub fn wait_for_failover(&self, old: usize) -> usize {
        let new = try_until(PATIENCE, || {
            let mut up = self.sentinels.iter().filter(|it| it.is_up());
            let new = self.master_by(up.next().expect("a sentinel that is up"));
            let agreed = new != old && up.all(|it| self.master_by(it) == new);
            (agreed && self.nodes[new].info("role") == "master").then_some(new)
        });
        new.unwrap_or_else(|| {
            let logs: Vec<_> = self.sentinels.iter().map(Redis::log).collect();
            panic!("node {old} was not replaced within {PATIENCE:?}:\n{}", logs.join("\n\n"))
        })
    }

    /// Makes the sentinels replace the running master. Waits until it follows the new master, and
    /// returns the new master's index.
    ///
    /// # Panics
    ///
    /// If the failover takes longer than 30 s, or then the old master's change longer than a minute.
    pub fn fail_over(&self) -> usize {
        let old = self.master();
        for sentinel in &self.sentinels {
            // On a busy machine the new master may seem down, and would be replaced again.
            let patient = ["SENTINEL", "SET", Self::NAME, "down-after-milliseconds", "60000"];
            assert_eq!(sentinel.cmd(&patient).error(), None);
        }
        let answer = self.sentinels[0].cmd(&["SENTINEL", "FAILOVER", Self::NAME]);
        assert_eq!(answer.error(), None);
        let new = self.wait_for_failover(old);
        let follows = || (self.nodes[old].info("role") == "slave").then_some(());
        until(&format!("node {old} follows node {new}"), 2 * PATIENCE, follows);
        new
    }

    fn master_by(&self, sentinel: &Redis) -> usize {
        let answer = sentinel.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME]);
        let [ip, port] = answer.list() else { panic!("no address: {answer:?}") };
        let ip = ip.text().parse().expect("an address");
        let port = u16::try_from(port.number()).expect("a port");
        let address = SocketAddr::new(ip, port);
        let known = self.nodes.iter().position(|node| node.address() == address);
        known.unwrap_or_else(|| panic!("the sentinel names an unknown master: {address}"))
    }

    /// Waits until each sentinel lists all replicas and enough other sentinels for a failover.
    fn wait_until_ok(&self) {
        for sentinel in &self.sentinels {
            let what = format!("sentinel {} lists all replicas and sentinels", sentinel.address());
            until(&what, PATIENCE, || {
                let state = sentinel.cmd(&["SENTINEL", "MASTER", Self::NAME]);
                let quorum = sentinel.cmd(&["SENTINEL", "CKQUORUM", Self::NAME]);
                let knows = |name: &str, count: usize| {
                    let fields = state.list().chunks_exact(2);
                    let mut values = fields.filter(|it| it[0].text() == name).map(|it| &it[1]);
                    values.next().is_some_and(|it| it.text() == count.to_string())
                };
                (knows("num-slaves", self.nodes.len() - 1)
                    && knows("num-other-sentinels", self.sentinels.len() - 1)
                    && matches!(quorum, Value::Text(_)))
                .then_some(())
            });
        }
    }
}

/// Builds [`Sentinels`].
#[derive(Clone, Debug)]
#[must_use = "call start() to start the sentinels"]
pub struct SentinelsBuilder {
    replicas: usize,
    sentinels: usize,
    quorum: usize,
    node: RedisBuilder,
}

impl SentinelsBuilder {
    /// Sets the number of replicas. Default: 1.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Sets the number of sentinels and the quorum. Default: 3 and 2.
    pub fn sentinels(mut self, count: usize, quorum: usize) -> Self {
        (self.sentinels, self.quorum) = (count, quorum);
        self
    }

    /// Changes each data node's settings. TLS is not supported here.
    pub fn each_node(mut self, tell: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        self.node = tell(self.node);
        self
    }

    /// Starts all servers and waits until the sentinels list each other and the replicas.
    ///
    /// # Panics
    ///
    /// If redis-server is not installed, or a server does not start.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Sentinels {
        let master = self.node.clone().start();
        let replica = self.node.clone().replica_of(&master);
        let mut nodes = vec![master];
        nodes.extend((0..self.replicas).map(|_| replica.clone().prepare()));
        nodes[1..].iter().for_each(Redis::launch);
        // Sentinels get the replica list from the master, so the replicas must connect to it first.
        nodes[1..].iter().for_each(Redis::wait_until_ready);

        let sentinels: Vec<_> =
            (0..self.sentinels).map(|_| self.sentinel(&nodes[0]).prepare()).collect();
        sentinels.iter().for_each(Redis::launch);
        for sentinel in &sentinels {
            sentinel.wait_until_ready();
            // By default sentinels announce themselves every 2 s, poll the master every 10 s, and
            // pause for 30 s after a clock jump. SENTINEL DEBUG needs Redis 7; tests take longer
            // with older versions.
            sentinel.cmd(
                &[
                    ["SENTINEL", "DEBUG"],
                    ["PUBLISH-PERIOD", "200"],
                    ["INFO-PERIOD", "500"],
                    ["TILT-PERIOD", "2000"],
                ]
                .concat(),
            );
        }
        let sentinels = Sentinels { sentinels, nodes };
        sentinels.wait_until_ok();
        sentinels
    }

    fn sentinel(&self, master: &Redis) -> RedisBuilder {
        let (name, address) = (Sentinels::NAME, master.address());
        let monitor = format!("monitor {name} {} {} {}", address.ip(), address.port(), self.quorum);
        let mut builder = RedisBuilder::sentinel()
            .set("sentinel", monitor)
            .set("sentinel", format_args!("down-after-milliseconds {name} 1000"))
            // How long before another sentinel may try.
            .set("sentinel", format_args!("failover-timeout {name} 3000"));
        if let Some(password) = master.password() {
            builder = builder.set("sentinel", format_args!("auth-pass {name} {password}"));
        }
        builder
    }
}

/// A failover takes about 4 s, and 8 s if the first vote is a tie.
const PATIENCE: Duration = Duration::from_secs(30);
