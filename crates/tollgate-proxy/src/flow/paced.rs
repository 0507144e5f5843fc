//! A body that pauses while too many bytes have not been sent.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::size_with;
use super::waiting::{Piece, SMALL, Stream, WaitingBytes};

pin_project! {
    /// A body, split into pieces. While too many pieces wait to be sent it pauses, except that it
    /// reads and joins a few small chunks.
    pub(crate) struct Paced<B: Body, G = ()> {
        #[pin]
        body: B,
        // Joined small chunks, which precede `rest`.
        joined: BytesMut,
        // The remaining part of a chunk.
        rest: Bytes,
        // Whether the last chunk was small, because the next one probably is as well.
        is_small: bool,
        // The end of the body, held back until everything before it is sent.
        end: Option<End<B>>,
        // Created when needed, unless the current task already has a stream.
        stream: Option<Arc<Stream>>,
        hides_end: bool,
        guard: G,
    }
}

/// Finishes a message when it is dropped, which is after the last piece.
pub trait Guard {
    fn sent(&mut self, _bytes: usize) {}
}

impl Guard for () {}

/// Trailers, an error or neither. Boxed, because most bodies have neither.
type End<B> = Option<Box<Result<Frame<Piece>, <B as Body>::Error>>>;

impl<B: Body<Data = Bytes>, G> Paced<B, G> {
    pub(crate) fn response(body: B, guard: G) -> Self {
        Self::new(body, Stream::current(), guard)
    }

    /// Hides that there is no body, so hyper does not remove `Content-Length`. In a 304, this header
    /// describes the body that a 200 would have.
    pub(crate) const fn hiding_end(mut self, hides_end: bool) -> Self {
        self.hides_end = hides_end;
        self
    }

    fn new(body: B, stream: Option<Arc<Stream>>, guard: G) -> Self {
        let (joined, rest) = (BytesMut::new(), Bytes::new());
        let (is_small, hides_end) = (false, false);
        Self { body, joined, rest, is_small, end: None, stream, hides_end, guard }
    }
}

impl<B: Body<Data = Bytes>> Paced<B> {
    /// A request body that the current task sends to a target. It shares the limit of the client's
    /// connection.
    pub(crate) fn request(body: B) -> Self {
        Self::new(body, Stream::current().map(|stream| stream.beside()), ())
    }
}

impl<B: Body<Data = Bytes>, G: Guard> Body for Paced<B, G> {
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, B::Error>>> {
        let mut this = self.project();
        loop {
            let is_empty = this.joined.is_empty() && this.rest.is_empty();
            if is_empty && let Some(end) = this.end {
                return Poll::Ready(mem::take(end).map(|end| *end));
            }
            let has_room = this.stream.as_ref().is_none_or(|stream| stream.has_room());
            if has_room && is_empty {
                match ready!(next(this.body.as_mut(), cx)) {
                    Next::Chunk(chunk) => {
                        *this.is_small = chunk.len() < SMALL;
                        *this.rest = chunk;
                    }
                    Next::End(end) => {
                        *this.end = Some(end);
                        continue;
                    }
                }
                if this.stream.is_none() && this.rest.len() <= PIECE && this.body.is_end_stream() {
                    // The body is complete, so no piece waits behind this one.
                    let data = mem::take(this.rest);
                    this.guard.sent(data.len());
                    return frame(Piece::free(data));
                }
            }
            let stream = this.stream.get_or_insert_with(|| Stream::new(WaitingBytes::default()));
            if has_room {
                let data = if this.joined.is_empty() {
                    this.rest.split_to(this.rest.len().min(PIECE))
                } else {
                    this.joined.split().freeze()
                };
                this.guard.sent(data.len());
                return frame(stream.give(data));
            }
            let most = match (*this.is_small, stream.connection_is_full()) {
                (true, false) => JOINED,
                (true, true) => JOINED_WITHOUT_SHARE,
                // There are no small chunks to join, and the target can wait too.
                (false, _) => 0,
            };
            while this.end.is_none() && this.rest.is_empty() && this.joined.len() < most {
                match next(this.body.as_mut(), cx) {
                    Poll::Ready(Next::Chunk(chunk)) => {
                        *this.is_small = chunk.len() < SMALL;
                        if chunk.len() < most.min(SMALL) {
                            this.joined.extend_from_slice(&chunk);
                        } else {
                            *this.rest = chunk;
                        }
                    }
                    Poll::Ready(Next::End(end)) => *this.end = Some(end),
                    Poll::Pending => break,
                }
            }
            if stream.must_wait(cx) {
                return Poll::Pending;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_empty = self.joined.is_empty() && self.rest.is_empty() && !self.hides_end;
        is_empty && self.end.as_ref().map_or_else(|| self.body.is_end_stream(), Option::is_none)
    }

    fn size_hint(&self) -> SizeHint {
        if self.hides_end {
            return SizeHint::default();
        }
        let held = (self.joined.len() + self.rest.len()) as u64;
        size_with(held, &self.body.size_hint())
    }
}

enum Next<B: Body> {
    /// Never empty.
    Chunk(Bytes),
    End(End<B>),
}

fn next<B: Body<Data = Bytes>>(mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Next<B>> {
    loop {
        let frame = match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Next::End(Some(Box::new(Err(error))))),
            None => return Poll::Ready(Next::End(None)),
        };
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => return Poll::Ready(Next::Chunk(data)),
            Err(frame) => {
                let trailers = frame.into_trailers().ok();
                let end = trailers.map(|trailers| Box::new(Ok(Frame::trailers(trailers))));
                return Poll::Ready(Next::End(end));
            }
        }
    }
}

fn frame<E>(piece: Piece) -> Poll<Option<Result<Frame<Piece>, E>>> {
    Poll::Ready(Some(Ok(Frame::data(piece))))
}

/// An HTTP/2 frame's default maximum size.
const PIECE: usize = 16 << 10;

/// How many bytes of small chunks are joined.
const JOINED: usize = 8 << 10;

/// The same if the connection has used up its memory.
const JOINED_WITHOUT_SHARE: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::Waker;

    use bytes::Buf;
    use http::HeaderMap;
    use http_body_util::{BodyExt, Full};

    use super::*;

    /// A body with all these chunks ready.
    struct Ready(VecDeque<Frame<Bytes>>);

    impl Ready {
        fn chunks(count: usize, size: usize) -> Self {
            Self((0..count).map(|n| Frame::data(vec![n as u8; size].into())).collect())
        }
    }

    impl Body for Ready {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    /// All pieces that the body returns before any piece is written.
    fn unsent<B: Body<Data = Bytes> + Unpin>(body: &mut Paced<B>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut *body).poll_frame(&mut cx) {
            pieces.push(frame.into_data().unwrap());
        }
        pieces
    }

    #[tokio::test]
    async fn large_chunks_are_split() {
        let bytes: Vec<u8> = (0..PIECE * 2 + 5).map(|n| n as u8).collect();
        let mut body = Paced::response(Full::new(Bytes::from(bytes.clone())), ());
        let mut left = bytes.len();
        let mut taken = Vec::new();
        for expected in [PIECE, PIECE, 5] {
            assert!(!body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(left as u64));
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.remaining(), expected);
            left -= expected;
            taken.extend_from_slice(piece.chunk());
        }
        assert!(body.is_end_stream() && taken == bytes);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn small_chunks_are_joined() {
        let mut body = Paced::response(Ready::chunks(100_000, 1), ());
        let first = unsent(&mut body);
        assert!(first.len() < 100, "{} pieces", first.len());
        assert!(first.iter().all(|piece| piece.remaining() == 1));
        assert!(100_000 - body.body.0.len() <= first.len() + JOINED, "{}", body.body.0.len());
        drop(first);
        let second = unsent(&mut body);
        assert_eq!(second[0].remaining(), JOINED);
    }

    #[tokio::test]
    async fn joined_chunks_precede_trailers() {
        let mut chunks = Ready::chunks(1_000, 1);
        chunks.0.push_back(Frame::trailers(HeaderMap::new()));
        let mut body = Paced::response(chunks, ());
        let first = unsent(&mut body);
        assert!(!body.is_end_stream());
        let count = first.len();
        drop(first);
        let rest = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(rest.remaining(), 1_000 - count);
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }

    #[tokio::test]
    async fn single_small_chunk_is_not_counted() {
        let mut body = Paced::response(Full::new(Bytes::from_static(b"ok")), ());
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(piece.chunk() == b"ok" && body.stream.is_none() && body.is_end_stream());
    }

    #[tokio::test]
    async fn writing_a_piece_resumes_the_body() {
        let mut body = Paced::response(Ready::chunks(64, 8 << 10), ());
        let mut pieces: VecDeque<_> = unsent(&mut body).into();
        let waits = tokio::spawn(async move {
            let next = body.frame().await.unwrap().unwrap().into_data().unwrap();
            (next, body)
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(pieces.pop_front());
        let (next, _body) = waits.await.unwrap();
        assert_eq!(next.chunk()[0] as usize, pieces.len() + 1);
    }
}
