//! A connection that a request has checked out of the pool.

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::connection::{ConnectionPool, PooledConnection, RequestSender};
use crate::body::error::BodyError;
use crate::body::sent::Sent;
use crate::body::timed::SETTLED;
use crate::body::upload::{Received, Upload};
use crate::head::connection::Connection;
use crate::head::fault::Fault;

#[derive(Debug)]
pub struct Checkout {
    /// Boxed, because it moves with the response body.
    connection: Box<PooledConnection>,
    pool: Arc<dyn ConnectionPool>,
    /// Whether it has served other requests, so the upstream may be closing it now.
    is_reused: bool,
    /// Set if the servers are chosen by their number of requests in flight.
    busy: Option<Busy>,
    /// Whether the client has sent the entire request body, if there is a body.
    received: Option<Received>,
}

/// Counts a request in flight at a server.
#[derive(Debug)]
pub(super) struct Busy(Arc<AtomicUsize>);

impl Busy {
    pub(super) fn count(requests: &Arc<AtomicUsize>) -> Self {
        requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(requests))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The upstream has its maximum number of connections, and none was released before the
    /// timeout.
    #[error("all connections to the upstream are in use")]
    Full,
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no connection: {0}")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    Http(hyper::Error),
    /// The upstream refused the request before processing it.
    #[error("refused without processing: {0}")]
    Refused(#[source] hyper::Error),
    #[error("no response within {0:?}")]
    Silence(Duration),
}

impl From<&SendError> for Fault {
    fn from(error: &SendError) -> Self {
        let error = match error {
            SendError::Full => return Self::Full,
            SendError::ConnectTimeout(_) => return Self::ConnectTimeout,
            SendError::Connect(_) => return Self::Unreachable,
            SendError::Silence(_) => return Self::AnswerTimeout,
            SendError::Refused(_) => return Self::Refused,
            // The server did not answer a PING.
            SendError::Http(error) if error.is_timeout() => return Self::AnswerTimeout,
            SendError::Http(error) => error,
        };
        match error.source().and_then(|cause| cause.downcast_ref::<BodyError>()) {
            Some(error) => error.into(),
            None => Self::BadAnswer,
        }
    }
}

pub(super) struct Unanswered {
    pub(super) error: SendError,
    /// The request, if no byte was sent.
    pub(super) unsent: Option<Request<Sent>>,
}

impl Checkout {
    pub(super) fn new(
        connection: Box<PooledConnection>,
        pool: Arc<dyn ConnectionPool>,
        is_reused: bool,
    ) -> Self {
        Self { connection, pool, is_reused, busy: None, received: None }
    }

    pub(super) const fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Counts as a request in flight until the response is complete.
    pub(super) fn counting(&mut self, busy: Option<Busy>) {
        self.busy = busy;
    }

    pub(super) const fn take_busy(&mut self) -> Option<Busy> {
        self.busy.take()
    }

    /// Uses the connection only for this client from now on. HTTP/2 has no authentication of
    /// connections.
    pub(super) fn keep_for(&mut self, client: &Arc<Connection>) {
        if let RequestSender::Http1(_) = self.connection.sender {
            self.connection.owner = Some(Arc::downgrade(client));
        }
    }

    /// Whether the upstream had started to answer the failed request.
    pub(super) fn has_begun(&self) -> bool {
        // Over HTTP/2, the last bytes may belong to another request.
        matches!(self.connection.sender, RequestSender::Http1(_)) && self.connection.begun.get()
    }

    /// Sends a request. The response timeout `limit` starts now, and again with each piece of
    /// `upload`.
    pub(super) async fn send(
        &mut self,
        request: Request<Sent>,
        upload: Option<&Upload>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.received = upload.map(Upload::received);
        let timer = &mut self.connection.timer;
        match &mut self.connection.sender {
            RequestSender::Http1(sender) => {
                answered(pin!(sender.try_send_request(request)), timer, limit, upload).await
            }
            RequestSender::Http2(sender, streams) => {
                let answer =
                    answered(pin!(sender.try_send_request(request)), timer, limit, upload).await;
                match &answer {
                    Ok(_) => streams.answered(),
                    Err(unanswered) if unanswered.error.ends_connection() => streams.retire(),
                    Err(_) => {}
                }
                answer
            }
        }
    }

    /// Stops new requests from using a connection that may be dead.
    pub(super) fn retire(&self) {
        if let RequestSender::Http2(_, streams) = &self.connection.sender {
            streams.retire();
        }
    }

    /// Waits until the connection is ready for another request. If the client could read the end of
    /// the response earlier, its next request might find an empty pool.
    pub(super) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The upstream responded early, and the client may still send for a long time.
        let is_sending = self.received.as_ref().is_some_and(|received| !received.is_whole());
        match &mut self.connection.sender {
            RequestSender::Http1(sender) if !is_sending => sender.poll_ready(cx).map(|_| ()),
            _ => Poll::Ready(()),
        }
    }

    /// Like [`poll_settled`](Self::poll_settled), for a response without a body.
    pub(super) async fn settled(&mut self) {
        if let RequestSender::Http1(sender) = &self.connection.sender
            && !sender.is_ready()
        {
            let settled = std::future::poll_fn(|cx| self.poll_settled(cx));
            // After a timeout, `release` waits in another task.
            let _ = timeout(SETTLED, settled).await;
        }
    }

    /// Returns the connection to the pool, if it is usable. Otherwise it closes when the checkout
    /// is dropped.
    pub(super) fn release(mut self) {
        let RequestSender::Http1(sender) = &mut self.connection.sender else { return };
        if sender.is_ready() {
            self.keep();
        } else if !sender.is_closed() {
            // The upstream responded before it read the entire request.
            tokio::spawn(async move {
                if let RequestSender::Http1(sender) = &mut self.connection.sender
                    && sender.ready().await.is_ok()
                {
                    self.keep();
                }
            });
        }
    }

    fn keep(self) {
        let Self { mut connection, pool, .. } = self;
        connection.used_at = Instant::now();
        if connection.used_at < connection.expires_at {
            pool.put(connection);
        }
    }
}

impl SendError {
    fn of(error: hyper::Error) -> Self {
        if h2_error(&error).is_some_and(is_refusal) {
            Self::Refused(error)
        } else {
            Self::Http(error)
        }
    }

    /// Whether new requests must not use an HTTP/2 connection, because it may be dead or the server
    /// is closing it.
    fn ends_connection(&self) -> bool {
        match self {
            Self::Silence(_) => true,
            Self::Refused(error) => h2_error(error).is_some_and(h2::Error::is_go_away),
            _ => false,
        }
    }
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    error.source()?.downcast_ref()
}

/// Whether the server guarantees that it did not process a request (RFC 9113 §8.7). h2 reports
/// GOAWAY only for streams above the last id in the GOAWAY frame.
fn is_refusal(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}

type Outcome = Result<Response<Incoming>, TrySendError<Request<Sent>>>;

async fn answered(
    mut sending: Pin<&mut impl Future<Output = Outcome>>,
    timer: &mut Option<Pin<Box<Sleep>>>,
    limit: Duration,
    upload: Option<&Upload>,
) -> Result<Response<Incoming>, Unanswered> {
    let sent = Instant::now();
    let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(sent + limit)));
    // The last request may have had a longer timeout.
    if timer.deadline() > sent + limit {
        timer.as_mut().reset(sent + limit);
    }
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(answer) = sending.as_mut().poll(cx) {
                return Poll::Ready(answer.map_err(|mut error| Unanswered {
                    unsent: error.take_message(),
                    error: SendError::of(error.into_error()),
                }));
            }
            std::task::ready!(timer.as_mut().poll(cx));
            let begun = upload.map_or(sent, |upload| upload.complete_since().max(sent));
            if begun + limit <= Instant::now() {
                let error = SendError::Silence(limit);
                return Poll::Ready(Err(Unanswered { error, unsent: None }));
            }
            timer.as_mut().reset(begun + limit);
        }
    })
    .await
}
