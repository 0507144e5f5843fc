use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Frame, SizeHint};

use super::error::BodyError;
use super::source::RawBody;
use super::timed::Timed;
use super::upload::Upload;
use crate::flow::{Paced, Piece};

/// A request body, or `None`. Boxed, because each connection has a buffer for dozens of requests,
/// and most requests have no body.
#[derive(Default)]
pub(crate) struct Sent(Option<Pin<Box<Paced<TimedBody>>>>);

type TimedBody = Timed<RawBody, Arc<Upload>>;

impl Sent {
    pub(crate) fn of(body: RawBody, idle: Duration, upload: &Arc<Upload>) -> Self {
        let timed = Timed::new(body, idle, Arc::clone(upload));
        Self(Some(Box::pin(Paced::request(timed))))
    }
}

impl http_body::Body for Sent {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        match &mut self.0 {
            Some(body) => body.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").finish_non_exhaustive()
    }
}
