//! Streams of HTTP/2, each of which ends when its client does not take what it asked for.
//!
//! A client may read one response and leave another where it is, for as long as it likes: bytes
//! move on the connection all the time. So each stream has patience of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::task_local;
use tokio::time::{Instant, sleep_until};

task_local! {
    /// The stream that a task serves.
    static STREAM: Arc<Stream>;
}

/// Serves each stream of a connection by a task of its own, and ends those whose client takes
/// nothing of the response for too long: hyper asks for more when there is room at the other
/// side, and to be dropped resets a stream.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) stall: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, serving: F) {
        let stall = self.stall;
        let stream = Stream::begin();
        tokio::spawn(STREAM.scope(Arc::clone(&stream), async move {
            tokio::select! {
                biased;
                () = serving => {}
                () = stream.stalls(stall) => {
                    tracing::debug!(?stall, "a stream ended whose client did not read it");
                }
            }
        }));
    }
}

/// What a stream is doing.
#[derive(Debug)]
struct Stream {
    began: Instant,
    /// Since when the client has had to take something before more is asked for: milliseconds
    /// since it began, or [`NEVER`].
    waits_since: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Stream {
    fn begin() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), waits_since: AtomicU64::new(NEVER) })
    }

    fn waits(&self) {
        // Some hundred million years fit.
        self.waits_since.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn goes_on(&self) {
        self.waits_since.store(NEVER, Ordering::Relaxed);
    }

    /// Completes when the client has kept it waiting for so long.
    async fn stalls(&self, stall: Duration) {
        loop {
            let now = Instant::now();
            let due = match self.waits_since.load(Ordering::Relaxed) {
                NEVER => now + stall,
                since => self.began + Duration::from_millis(since) + stall,
            };
            if due <= now {
                return;
            }
            sleep_until(due).await;
        }
    }
}

pin_project! {
    /// The body of a response, which in HTTP/2 is given away in small pieces: hyper asks for
    /// more when there is room for a byte at the other side, and keeps the rest of what it gets.
    #[derive(Debug)]
    pub(super) struct Pieces<B> {
        #[pin]
        body: B,
        rest: Bytes,
        stream: Option<Arc<Stream>>,
    }
}

impl<B> Pieces<B> {
    /// The body of what the current task serves.
    pub(super) fn new(body: B) -> Self {
        let stream = STREAM.try_with(Arc::clone).ok();
        if let Some(stream) = &stream {
            stream.waits();
        }
        Self { body, rest: Bytes::new(), stream }
    }
}

impl<B: Body<Data = Bytes>> Body for Pieces<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(stream) = this.stream else {
            return this.body.poll_frame(cx);
        };
        // Whoever sends the body has a time limit of its own.
        stream.goes_on();
        if this.rest.is_empty() {
            match ready!(this.body.poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => *this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        stream.waits();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut whole = SizeHint::new();
        whole.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

/// A frame of HTTP/2, unless both sides agree on more.
const PIECE: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_ended_by_a_client_that_takes_nothing_and_by_nothing_else() {
        let stall = Duration::from_secs(120);
        let stream = Stream::begin();
        let began = Instant::now();
        let watched = tokio::spawn({
            let stream = Arc::clone(&stream);
            async move { stream.stalls(stall).await }
        });
        // The service thinks for ten minutes; then a client takes a piece a minute.
        tokio::time::sleep(Duration::from_secs(600)).await;
        for _ in 0..10 {
            stream.waits();
            tokio::time::sleep(Duration::from_secs(60)).await;
            stream.goes_on();
        }
        assert!(!watched.is_finished());
        stream.waits();
        watched.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 1_320);
    }

    #[tokio::test]
    async fn a_large_piece_is_given_away_in_small_ones() {
        let bytes: Vec<u8> = (0..PIECE * 2 + 5).map(|n| n as u8).collect();
        STREAM
            .scope(Stream::begin(), async {
                let mut body = Pieces::new(Full::new(Bytes::from(bytes.clone())));
                let mut left = bytes.len();
                let mut taken = Vec::new();
                for expected in [PIECE, PIECE, 5] {
                    assert!(!body.is_end_stream());
                    assert_eq!(body.size_hint().exact(), Some(left as u64));
                    let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
                    assert_eq!(piece.len(), expected);
                    left -= expected;
                    taken.extend_from_slice(&piece);
                }
                assert!(body.is_end_stream() && taken == bytes);
                assert!(body.frame().await.is_none());
            })
            .await;
    }
}
