//! The use of one connection for one request.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::time::{Instant, Sleep};

use super::body::Sent;
use super::group::Busy;
use super::pool::Pool;
use super::socket::Begun;
use super::upload::Upload;

/// A connection that no request uses; over HTTP/2, any number of requests.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) sender: Sender,
    pub(super) begun: Begun,
    /// Set again only when it ends: most requests are answered long before.
    pub(super) timer: Pin<Box<Sleep>>,
    pub(super) home: usize,
    pub(super) used_at: Instant,
}

#[derive(Debug)]
pub(super) enum Sender {
    Http1(http1::SendRequest<Sent>),
    Http2(http2::SendRequest<Sent>),
}

#[derive(Debug)]
pub(crate) struct Lease {
    /// In a box, because it moves with the body of the response.
    pub(super) kept: Box<Kept>,
    pub(super) pool: Arc<Pool>,
    /// Whether it has carried other requests, so that the upstream may be closing it now.
    pub(super) is_reused: bool,
    /// Where servers share requests by what they have to do.
    pub(super) busy: Option<Busy>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The upstream has as many connections as it may have, and none became free in time.
    #[error("all connections to the upstream are in use")]
    Full,
    #[error("no connection within {0:?}")]
    ConnectTimeout(std::time::Duration),
    #[error("no connection: {0}")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("no response within {0:?}")]
    Silence(std::time::Duration),
}

pub(super) struct Unanswered {
    pub(super) error: SendError,
    /// The request, if not a byte of it was sent.
    pub(super) unsent: Option<Request<Sent>>,
}

impl Kept {
    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }

    /// The same connection for one more request, if several may use it at once.
    pub(super) fn shared(&self, pool: &Pool) -> Option<Box<Self>> {
        let Sender::Http2(sender) = &self.sender else { return None };
        Some(Box::new(Self {
            sender: Sender::Http2(sender.clone()),
            begun: self.begun.clone(),
            timer: pool.timer(),
            home: self.home,
            used_at: Instant::now(),
        }))
    }
}

impl Lease {
    pub(super) const fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Counts as a request under way until the response ends.
    pub(super) fn counting(&mut self, busy: Option<Busy>) {
        self.busy = busy;
    }

    pub(super) const fn take_busy(&mut self) -> Option<Busy> {
        self.busy.take()
    }

    /// Whether the upstream had begun to answer the request that failed.
    pub(super) fn has_begun(&self) -> bool {
        self.kept.begun.get()
    }

    /// Sends a request. The time limit of the response begins now, and again with each piece of
    /// `upload`.
    pub(super) async fn send(
        &mut self,
        request: Request<Sent>,
        upload: Option<&Upload>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let (timer, limit) = (&mut self.kept.timer, self.pool.timeouts.response);
        match &mut self.kept.sender {
            Sender::Http1(sender) => {
                answered(pin!(sender.try_send_request(request)), timer, limit, upload).await
            }
            Sender::Http2(sender) => {
                answered(pin!(sender.try_send_request(request)), timer, limit, upload).await
            }
        }
    }

    /// Keeps the connection for other requests. Without this, it ends with the lease.
    pub(super) fn release(mut self) {
        let Sender::Http1(sender) = &mut self.kept.sender else { return };
        if sender.is_ready() {
            self.keep();
        } else if !sender.is_closed() {
            // The end of the response has not reached the connection.
            tokio::spawn(async move {
                if let Sender::Http1(sender) = &mut self.kept.sender
                    && sender.ready().await.is_ok()
                {
                    self.keep();
                }
            });
        }
    }

    fn keep(self) {
        let Self { mut kept, pool, .. } = self;
        kept.used_at = Instant::now();
        pool.put(kept);
    }
}

type Outcome = Result<Response<Incoming>, TrySendError<Request<Sent>>>;

async fn answered(
    mut sending: Pin<&mut impl Future<Output = Outcome>>,
    timer: &mut Pin<Box<Sleep>>,
    limit: std::time::Duration,
    upload: Option<&Upload>,
) -> Result<Response<Incoming>, Unanswered> {
    let sent = Instant::now();
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(answer) = sending.as_mut().poll(cx) {
                return Poll::Ready(answer.map_err(|mut error| Unanswered {
                    unsent: error.take_message(),
                    error: error.into_error().into(),
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
