//! The body of a client's request, which the gateway may read before it decides.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::discard::discard;
use super::error::BodyError;
use super::whole::Whole;
use crate::flow::size_with;

/// The body of a client's request. The gateway may have read its start, or all of it.
#[derive(Debug, Default)]
pub struct RequestBody {
    read: Bytes,
    rest: Option<Whole>,
    is_http2: bool,
    _room: Option<OwnedSemaphorePermit>,
}

/// The memory for request bodies that are read before they are forwarded.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    /// A permit for each byte.
    pub room: Arc<Semaphore>,
    /// The longest pause of a client.
    pub idle: Duration,
}

/// A body that can be read before it is forwarded.
pub trait ReadBody: Sized + Send {
    /// Reads up to `max` bytes, and returns them if they are the whole body.
    ///
    /// # Errors
    /// The client is too slow or left, or the memory is in use.
    fn read(
        &mut self,
        max: usize,
        ahead: &ReadAhead,
    ) -> impl Future<Output = Result<Option<Bytes>, BodyError>> + Send;

    /// Replaces a body that was read.
    fn replace(&mut self, body: Bytes);
}

impl RequestBody {
    pub fn of(version: Version, body: Incoming) -> Self {
        let rest = Some(Whole::of(version, body));
        Self { read: Bytes::new(), rest, is_http2: version == Version::HTTP_2, _room: None }
    }
}

/// Discards the rest of an HTTP/2 body, because h2 would otherwise reset the stream. An HTTP/1
/// connection discards the rest before it closes.
impl Drop for RequestBody {
    fn drop(&mut self) {
        let rest = self.rest.take().filter(|rest| self.is_http2 && !rest.is_end_stream());
        if let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(discard(rest));
        }
    }
}

impl ReadBody for RequestBody {
    async fn read(&mut self, max: usize, ahead: &ReadAhead) -> Result<Option<Bytes>, BodyError> {
        let Some(rest) = &mut self.rest else { return Ok(Some(self.read.clone())) };
        let mut read = BytesMut::new();
        let is_whole = loop {
            let frame = timeout(ahead.idle, rest.frame()).await;
            let frame = frame.map_err(|_| BodyError::Idle(ahead.idle))?;
            let Some(frame) = frame else { break true };
            // The gateway drops trailers of such requests. No client of a model API sends them.
            let Ok(data) = frame?.into_data() else { continue };
            let bytes = u32::try_from(data.len()).map_err(|_| BodyError::TooLarge)?;
            let room = Arc::clone(&ahead.room).try_acquire_many_owned(bytes);
            let room = room.map_err(|_| BodyError::NoMemory)?;
            match &mut self._room {
                Some(all) => all.merge(room),
                None => self._room = Some(room),
            }
            read.extend_from_slice(&data);
            if read.len() > max {
                break false;
            }
        };
        self.read = read.freeze();
        if !is_whole {
            return Ok(None);
        }
        self.rest = None;
        Ok(Some(self.read.clone()))
    }

    fn replace(&mut self, body: Bytes) {
        self.read = body;
    }
}

/// A request that is only described, by another proxy for example.
impl ReadBody for () {
    async fn read(&mut self, _: usize, _: &ReadAhead) -> Result<Option<Bytes>, BodyError> {
        Ok(None)
    }

    fn replace(&mut self, _: Bytes) {}
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        Poll::Ready(ready!(Pin::new(rest).poll_frame(cx)))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.len() as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        size_with(read, &rest)
    }
}

#[cfg(test)]
mod tests {
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::mpsc;

    use super::*;

    /// A request of HTTP/1.1 with this length, of which these bytes have arrived.
    async fn body(length: usize, arrived: &[u8]) -> (RequestBody, tokio::io::DuplexStream) {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (bodies, mut received) = mpsc::unbounded_channel();
        let service = service_fn(move |request: http::Request<Incoming>| {
            bodies.send(RequestBody::of(Version::HTTP_11, request.into_body())).unwrap();
            std::future::pending::<Result<http::Response<String>, hyper::Error>>()
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(server), service));
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(arrived).await.unwrap();
        (received.recv().await.unwrap(), client)
    }

    fn ahead(bytes: usize) -> ReadAhead {
        ReadAhead { room: Arc::new(Semaphore::new(bytes)), idle: Duration::from_secs(5) }
    }

    #[tokio::test]
    async fn whole_body_can_be_replaced() {
        let ahead = ahead(100);
        let (mut body, _client) = body(5, b"hello").await;
        assert_eq!(body.read(5, &ahead).await.unwrap().unwrap(), "hello");
        assert_eq!(ahead.room.available_permits(), 95);
        body.replace(Bytes::from("bye"));
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "bye");
        assert_eq!(ahead.room.available_permits(), 100);
    }

    #[tokio::test]
    async fn long_body_continues_after_the_part_that_was_read() {
        let (mut body, mut client) = body(9, b"hello").await;
        assert_eq!(body.read(3, &ahead(100)).await.unwrap(), None);
        assert_eq!(body.size_hint().exact(), Some(9));
        client.write_all(b" you").await.unwrap();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "hello you");
    }

    #[tokio::test]
    async fn all_bodies_share_the_memory() {
        let ahead = ahead(8);
        let (mut first, _one) = body(5, b"hello").await;
        let (mut second, _two) = body(5, b"hello").await;
        assert!(first.read(5, &ahead).await.is_ok());
        let error = second.read(5, &ahead).await.unwrap_err();
        assert!(matches!(error, BodyError::NoMemory));
        drop((first, second));
        assert_eq!(ahead.room.available_permits(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_client_is_given_up() {
        let (mut body, client) = body(5, b"hell").await;
        let error = body.read(5, &ahead(8)).await.unwrap_err();
        assert!(matches!(error, BodyError::Idle(_)));
        drop(client);
    }
}
