//! A proxy that breaks what lies between a client and a server.

mod pump;
mod tally;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use tollgate_replicas::Port;

use tally::Reader;

pub use tally::Tally;

/// What becomes of bytes that go one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They go on.
    Pass,
    /// They go on so much later, in their order.
    Late(Duration),
    /// They wait until something else is said, and then go on: as when a network fails
    /// for a moment and what was lost is sent again.
    Hold,
    /// They are gone.
    Swallow,
}

/// A proxy for TCP on a port of 127.0.0.1. It ends with this value.
///
/// At first everything passes. Each method takes effect before it returns, for
/// connections that are open as for those to come. It has a thread of its own, so it goes
/// on while a test blocks.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    requests: Way,
    replies: Way,
    orders: Option<UnboundedSender<(Order, mpsc::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy in front of a server, which need not be there yet.
    ///
    /// # Panics
    ///
    /// If the system has no port or thread left.
    #[must_use]
    #[track_caller]
    pub fn start(target: SocketAddr) -> Self {
        let port = Port::claim().expect("a free port");
        let listener = std::net::TcpListener::bind(port.address()).expect("claimed");
        listener.set_nonblocking(true).expect("a socket");
        let (requests, replies) = (Way::new(), Way::new());
        let (orders, ordered) = unbounded_channel();
        let plan = Plan {
            address: port.address(),
            target,
            requests: requests.clone(),
            replies: replies.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let thread = std::thread::spawn(move || runtime.block_on(plan.run(listener, ordered)));
        Self { port, requests, replies, orders: Some(orders), thread: Some(thread) }
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Where clients of a plain Redis connect, `redis://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Both ways are free again, and new connections welcome.
    pub fn pass(&self) {
        self.flows(Flow::Pass, Flow::Pass);
        self.accept();
    }

    /// Accepts connections, takes what clients say, and tells nobody.
    pub fn black_hole(&self) {
        self.flows(Flow::Swallow, Flow::Swallow);
    }

    /// The server hears everything, and clients hear nothing. With [`cut`](Self::cut)
    /// afterwards it looks to them as if the server had died before it answered.
    pub fn swallow_replies(&self) {
        self.flows(Flow::Pass, Flow::Swallow);
    }

    /// Replies come so much later.
    pub fn delay(&self, by: Duration) {
        self.flows(Flow::Pass, Flow::Late(by));
    }

    /// What becomes of requests and of replies.
    pub fn flows(&self, requests: Flow, replies: Flow) {
        self.requests.flow.send_replace(requests);
        self.replies.flow.send_replace(replies);
    }

    /// Closes all connections now; new ones are welcome unless they are refused.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Refuses new connections, as if nobody listened. Open ones stay.
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Welcomes new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        // Each has one pump a way, and that has one end of the flow.
        self.requests.flow.receiver_count()
    }

    /// What came from clients, whatever became of it.
    #[must_use]
    pub fn requests(&self) -> Tally {
        self.requests.tally().clone()
    }

    /// What came from the server, whatever became of it.
    #[must_use]
    pub fn replies(&self) -> Tally {
        self.replies.tally().clone()
    }

    fn order(&self, order: Order) {
        let (done, wait) = mpsc::channel();
        let sent = self.orders.as_ref().map(|orders| orders.send((order, done)));
        assert!(matches!(sent, Some(Ok(()))) && wait.recv().is_ok(), "the proxy has panicked");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked, that has been printed.
            let _ = thread.join();
        }
    }
}

/// What the connections share of one direction.
#[derive(Clone, Debug)]
struct Way {
    flow: watch::Sender<Flow>,
    tally: Arc<Mutex<Tally>>,
}

impl Way {
    fn new() -> Self {
        Self { flow: watch::Sender::new(Flow::Pass), tally: Arc::default() }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Order {
    Cut,
    Refuse,
    Accept,
}

/// What the thread needs.
struct Plan {
    address: SocketAddr,
    target: SocketAddr,
    requests: Way,
    replies: Way,
}

impl Plan {
    /// Serves until nobody can give orders any more.
    async fn run(
        self,
        listener: std::net::TcpListener,
        mut orders: UnboundedReceiver<(Order, mpsc::Sender<()>)>,
    ) {
        let mut listener = Some(TcpListener::from_std(listener).expect("a runtime"));
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                order = orders.recv() => {
                    let Some((order, done)) = order else { return };
                    match order {
                        // Waits until the sockets are closed.
                        Order::Cut => open.shutdown().await,
                        Order::Refuse => listener = None,
                        Order::Accept if listener.is_some() => {}
                        Order::Accept => {
                            listener = Some(TcpListener::bind(self.address).await.expect("claimed"));
                        }
                    }
                    // Who gave the order may have been killed meanwhile.
                    let _ = done.send(());
                }
                client = accept(listener.as_ref()) => {
                    open.spawn(join(client, self.target, self.requests.clone(), self.replies.clone()));
                }
                Some(_) = open.join_next() => {}
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        // A client that has gone before it was accepted is no reason to stop.
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

/// One connection, until either end closes it.
async fn join(client: TcpStream, target: SocketAddr, requests: Way, replies: Way) {
    // A server that is down refuses, and so the client sees its connection closed.
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump::run(from_client, to_server, requests, Reader::of_requests()) => {}
        () = pump::run(from_server, to_client, replies, Reader::of_replies()) => {}
    }
}
