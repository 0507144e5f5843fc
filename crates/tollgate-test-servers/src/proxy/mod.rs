//! A proxy that simulates network failures between a client and a server.

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

use crate::Port;
use tally::Reader;

pub use tally::Tally;

/// What the proxy does with the bytes in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Forwards bytes immediately.
    Pass,
    /// Forwards bytes after this delay, in order.
    Late(Duration),
    /// Holds bytes back until the flow changes, then forwards them. This resembles a short network
    /// failure after which TCP retransmits the lost packets.
    Hold,
    /// Drops bytes.
    Swallow,
}

/// A TCP proxy on a port of 127.0.0.1. Dropping this value shuts it down.
///
/// The proxy initially forwards everything. Each method takes effect before it returns, for both
/// open and new connections. The proxy runs in its own thread, so a test may block.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    requests: Way,
    replies: Way,
    orders: Option<UnboundedSender<(Order, mpsc::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy for a server, which may start later.
    ///
    /// # Panics
    ///
    /// If the system is out of ports or threads.
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

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The client URL for a Redis without TLS: `redis://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Forwards both directions and accepts new connections, as after [`start`](Self::start).
    pub fn pass(&self) {
        self.flows(Flow::Pass, Flow::Pass);
        self.accept();
    }

    /// Accepts connections and drops all bytes.
    pub fn black_hole(&self) {
        self.flows(Flow::Swallow, Flow::Swallow);
    }

    /// Forwards requests and drops replies. After a [`cut`](Self::cut), clients cannot
    /// distinguish this from a server that crashed before it replied.
    pub fn swallow_replies(&self) {
        self.flows(Flow::Pass, Flow::Swallow);
    }

    /// Delays replies.
    pub fn delay(&self, by: Duration) {
        self.flows(Flow::Pass, Flow::Late(by));
    }

    /// Sets the flow of requests and of replies.
    pub fn flows(&self, requests: Flow, replies: Flow) {
        self.requests.flow.send_replace(requests);
        self.replies.flow.send_replace(replies);
    }

    /// Closes all connections. The proxy still accepts new connections, except after
    /// [`refuse`](Self::refuse).
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Closes the listening socket to refuse new connections. Open connections remain.
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        // A connection holds one receiver per direction.
        self.requests.flow.receiver_count()
    }

    /// Counts the traffic from clients, including bytes that were not forwarded.
    #[must_use]
    pub fn requests(&self) -> Tally {
        self.requests.tally().clone()
    }

    /// Counts the traffic from the server, including bytes that were not forwarded.
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
            // If the thread panicked, the panic has been printed already.
            let _ = thread.join();
        }
    }
}

/// A direction's state, shared by all connections.
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

/// The addresses and shared state that the proxy's thread needs.
struct Plan {
    address: SocketAddr,
    target: SocketAddr,
    requests: Way,
    replies: Way,
}

impl Plan {
    /// Runs until the [`Proxy`] is dropped.
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
                    // The thread that sent the order may have exited already.
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
        // A client may disconnect before it is accepted, which must not stop the proxy.
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

/// Serves a connection until either end closes it.
async fn join(client: TcpStream, target: SocketAddr, requests: Way, replies: Way) {
    // If the server is down, returning closes the client's connection.
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
