//! Closes a connection whose client may still be sending.
//!
//! Closing a socket with unread bytes resets the connection. The client's system then discards
//! bytes that the client has not read, such as the answer to a denied upload. So the gateway first
//! closes only its own side, and discards the rest of the client's bytes.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::body::discard::{LONGEST, MOST_BYTES, QUIET};

#[derive(Debug)]
pub(super) struct Lingering {
    until: Instant,
    /// Fires after `QUIET` without a byte, or at `until`.
    quiet: Pin<Box<Sleep>>,
    left: usize,
}

impl Lingering {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { until: now + LONGEST, quiet: Box::pin(sleep_until(now + QUIET)), left: MOST_BYTES }
    }

    /// Reads until the client is done, silent for too long, or has sent too much.
    pub(super) fn poll<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut buffer = [0; 8 * 1024];
        // The runtime interrupts reads that are always ready.
        while self.left > 0 {
            let mut buffer = ReadBuf::new(&mut buffer);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buffer.filled().len());
                    self.quiet.as_mut().reset(self.until.min(Instant::now() + QUIET));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.quiet.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::super::activity::Activity;
    use super::super::watched::Watched;
    use super::super::watched::tests::watched;
    use super::*;

    fn pair(is_being_sent_more: bool) -> (DuplexStream, Watched<DuplexStream, ()>) {
        let activity = Activity::new(&std::sync::Arc::default());
        if is_being_sent_more {
            activity.leaves_unread();
        }
        watched(&activity)
    }

    #[tokio::test(start_paused = true)]
    async fn finished_client_is_closed_immediately() {
        let (mut client, mut ours) = pair(false);
        let started = Instant::now();
        ours.shutdown().await.unwrap();
        drop(ours);
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(started.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn rest_of_an_upload_is_read() {
        let (mut client, mut ours) = pair(true);
        let closed = tokio::spawn(async move {
            ours.write_all(b"no").await.unwrap();
            ours.shutdown().await
        });
        client.write_all(&vec![b'x'; 10_000_000]).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer == "no" && !closed.is_finished());
        drop(client);
        closed.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_is_bounded() {
        for (pause, expected) in [(60, 5), (4, 30)] {
            let (mut client, mut ours) = pair(true);
            let started = Instant::now();
            let closed = tokio::spawn(async move { ours.shutdown().await });
            let sending = tokio::spawn(async move {
                while client.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                }
            });
            closed.await.unwrap().unwrap();
            assert_eq!(started.elapsed(), Duration::from_secs(expected));
            sending.await.unwrap();
        }
        let (mut client, mut ours) = pair(true);
        let closed = tokio::spawn(async move { ours.shutdown().await });
        let mut sent = 0;
        while client.write_all(&[0; 1 << 16]).await.is_ok() {
            sent += 1 << 16;
        }
        closed.await.unwrap().unwrap();
        assert!((64 << 20..(64 << 20) + (1 << 18)).contains(&sent), "{sent}");
    }
}
