//! Lets a client close its sending side after its request, and still read the response.
//!
//! The gateway cannot distinguish such a client from a disconnected client: it receives the end of
//! the client's bytes from both. Only when it sends bytes does a disconnected client's system reset
//! the connection. So the gateway continues as long as it can send bytes, and for a while without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Looks for the end of the client's bytes while the gateway answers.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// A byte that is already read, because only reading shows whether the stream has ended.
    byte: Option<u8>,
    /// Set after the client's last byte. Fires when the client has probably disconnected.
    ended: Option<Pin<Box<Sleep>>>,
}

impl ReadAhead {
    /// # Errors
    /// The client has probably disconnected.
    pub(super) fn check<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        moved_at: Instant,
    ) -> io::Result<()> {
        if self.byte.is_none() && self.ended.is_none() {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            if Pin::new(stream).poll_read(cx, &mut buffer)?.is_pending() {
                return Ok(());
            }
            match buffer.filled() {
                [byte] => self.byte = Some(*byte),
                _ => self.ended = Some(Box::pin(sleep(QUIET))),
            }
            // If hyper waits for more of a body, it must read again.
            cx.waker().wake_by_ref();
        }
        let Some(ended) = &mut self.ended else { return Ok(()) };
        while ended.as_mut().poll(cx).is_ready() {
            let gone_at = moved_at + QUIET;
            if gone_at <= Instant::now() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            ended.as_mut().reset(gone_at);
        }
        Ok(())
    }

    /// Reads from the stream, after the byte that is already read.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Some(byte) = self.byte.take() else {
            return Pin::new(stream).poll_read(cx, buffer);
        };
        buffer.put_slice(&[byte]);
        // One call returns both, because hyper allocates a larger buffer after a small read. The
        // next call returns an error again.
        let _ = Pin::new(stream).poll_read(cx, buffer);
        Poll::Ready(Ok(()))
    }
}

/// How long the gateway waits for bytes that it can send to a half-closed client.
const QUIET: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
    use tokio::time::advance;

    use super::super::activity::{Activity, Working};
    use super::super::watched::Watched;
    use super::super::watched::tests::watched;
    use super::*;

    type Ours = Watched<DuplexStream, ()>;

    /// A client, and its connection with a request in flight.
    fn pair(is_h2: bool) -> (DuplexStream, Ours, Working) {
        let activity = Activity::new(&std::sync::Arc::default());
        let working = Working::begin(&activity, is_h2);
        let (client, ours) = watched(&activity);
        (client, ours, working)
    }

    /// Flushes as hyper does whenever its task runs.
    async fn flush(ours: &mut Ours) -> io::Result<()> {
        poll_fn(|cx| Pin::new(&mut *ours).poll_flush(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn half_closed_client_may_be_quiet_for_five_seconds() {
        let (mut client, mut ours, _working) = pair(false);
        client.shutdown().await.unwrap();
        flush(&mut ours).await.unwrap();
        advance(Duration::from_secs(4)).await;
        flush(&mut ours).await.unwrap();
        ours.write_all(b"part").await.unwrap();
        advance(Duration::from_secs(4)).await;
        flush(&mut ours).await.unwrap();
        advance(Duration::from_secs(1)).await;
        let error = flush(&mut ours).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test(start_paused = true)]
    async fn next_request_is_read_completely() {
        let (mut client, mut ours, working) = pair(false);
        client.write_all(b"next").await.unwrap();
        for _ in 0..3 {
            flush(&mut ours).await.unwrap();
        }
        drop(working);
        let mut next = [0; 16];
        assert_eq!(ours.read(&mut next).await.unwrap(), 4);
        assert_eq!(&next[..4], b"next");
        drop(client);
        assert_eq!(ours.read(&mut next).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_and_http2_connections_are_not_read_ahead() {
        for is_h2 in [false, true] {
            let (mut client, mut ours, working) = pair(is_h2);
            if !is_h2 {
                drop(working);
            }
            client.shutdown().await.unwrap();
            flush(&mut ours).await.unwrap();
            advance(2 * QUIET).await;
            flush(&mut ours).await.unwrap();
        }
    }
}
