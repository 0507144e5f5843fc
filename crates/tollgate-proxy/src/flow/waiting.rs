//! Counts the body pieces that wait to be sent, per stream and per connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::task_local;
use tokio::time::{Instant, sleep_until};

task_local! {
    /// The HTTP/2 stream that a task serves.
    static STREAM: Arc<Stream>;
}

/// The memory for the waiting pieces on all streams of a connection. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingBytes(Arc<AtomicUsize>);

#[derive(Debug)]
pub(crate) struct Stream {
    in_connection: WaitingBytes,
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The memory for the pieces that have not been written.
    bytes: usize,
    /// When the last piece was written, or when the first started to wait.
    moved_at: Instant,
    /// Wakes the body, which waits until a piece is written.
    body: Option<Waker>,
}

impl Stream {
    pub(crate) fn new(in_connection: WaitingBytes) -> Arc<Self> {
        let waiting = Waiting { bytes: 0, moved_at: Instant::now(), body: None };
        Arc::new(Self { in_connection, waiting: Mutex::new(waiting) })
    }

    pub(super) fn current() -> Option<Arc<Self>> {
        STREAM.try_with(Arc::clone).ok()
    }

    /// Another stream of the same connection.
    pub(super) fn beside(&self) -> Arc<Self> {
        Self::new(self.in_connection.clone())
    }

    /// Runs `task` as the task that serves this stream.
    pub(crate) async fn serve<F: Future>(self: Arc<Self>, task: F) -> F::Output {
        STREAM.scope(self, task).await
    }

    /// Completes when pieces have waited for this time without any being written.
    pub(crate) async fn stalls(&self, time: Duration) {
        loop {
            let now = Instant::now();
            let due = {
                let waiting = self.waiting.lock();
                if waiting.bytes == 0 { now + time } else { waiting.moved_at + time }
            };
            if due <= now {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Whether another piece may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.has_room_beside(&self.waiting.lock())
    }

    /// One piece may always wait. Otherwise unread streams could use up the connection's memory,
    /// and stop all other streams.
    fn has_room_beside(&self, waiting: &Waiting) -> bool {
        waiting.bytes == 0 || (waiting.bytes < STREAM_BYTES && !self.connection_is_full())
    }

    pub(super) fn connection_is_full(&self) -> bool {
        self.in_connection.0.load(Ordering::Relaxed) >= CONNECTION_BYTES
    }

    /// Whether there is no room; if so, wakes the task when a piece is written.
    pub(super) fn must_wait(&self, cx: &Context<'_>) -> bool {
        let mut waiting = self.waiting.lock();
        let must_wait = !self.has_room_beside(&waiting);
        if must_wait {
            match &mut waiting.body {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        must_wait
    }

    pub(super) fn give(self: &Arc<Self>, mut data: Bytes) -> Piece {
        let bytes = data.len() + PIECE_OVERHEAD;
        let is_first = {
            let mut waiting = self.waiting.lock();
            let is_first = waiting.bytes == 0;
            if is_first {
                waiting.moved_at = Instant::now();
            }
            waiting.bytes += bytes;
            is_first
        };
        self.in_connection.0.fetch_add(bytes, Ordering::Relaxed);
        if !is_first && data.len() < SMALL {
            // A copy, without the buffer that contained it.
            data = Bytes::copy_from_slice(&data);
        }
        Piece { data, charge: Some(Charge { bytes, stream: Arc::clone(self) }) }
    }
}

/// A piece of a body, which counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Piece {
    data: Bytes,
    #[expect(dead_code, reason = "only its drop matters")]
    charge: Option<Charge>,
}

impl Piece {
    pub(super) const fn free(data: Bytes) -> Self {
        Self { data, charge: None }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}

#[derive(Debug)]
struct Charge {
    bytes: usize,
    stream: Arc<Stream>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.stream.in_connection.0.fetch_sub(self.bytes, Ordering::Relaxed);
        let mut waiting = self.stream.waiting.lock();
        waiting.bytes -= self.bytes;
        waiting.moved_at = Instant::now();
        let body = waiting.body.take();
        // The task may immediately run on another thread.
        drop(waiting);
        if let Some(body) = body {
            body.wake();
        }
    }
}

/// How many bytes may wait on a stream before its body pauses.
const STREAM_BYTES: usize = 32 << 10;

/// How many bytes may wait on a connection. Above this, each stream has at most one piece.
const CONNECTION_BYTES: usize = 128 << 10;

/// A piece's memory besides its bytes: the frame in h2's queue, and its allocation.
const PIECE_OVERHEAD: usize = 1 << 10;

/// Smaller chunks are copied, because each may retain a buffer of several kilobytes.
pub(super) const SMALL: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_unread_streams_stall() {
        let stall = Duration::from_secs(120);
        let stream = Stream::new(WaitingBytes::default());
        let began = Instant::now();
        let watched = tokio::spawn({
            let stream = Arc::clone(&stream);
            async move { stream.stalls(stall).await }
        });
        // The service takes ten minutes, and then the client reads a piece per minute.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let mut before = None;
        for _ in 0..10 {
            let next = stream.give(Bytes::from_static(b"x"));
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(before.replace(next));
        }
        assert!(!watched.is_finished());
        watched.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 1_320);
    }

    #[test]
    fn each_stream_has_room_for_one_piece() {
        let in_connection = WaitingBytes::default();
        let streams: Vec<_> = (0..100).map(|_| Stream::new(in_connection.clone())).collect();
        let mut pieces = Vec::new();
        for stream in &streams {
            while stream.has_room() {
                pieces.push(stream.give(Bytes::from(vec![0; 8 << 10])));
            }
        }
        let held = pieces.len() * (8 << 10);
        assert!((128 << 10..1 << 20).contains(&held), "{held}");
        assert!(streams.iter().all(|stream| stream.waiting.lock().bytes > 0));
        drop(pieces);
        assert_eq!(in_connection.0.load(Ordering::Relaxed), 0);
        assert!(streams.iter().all(|stream| stream.has_room()));
    }

    #[test]
    fn small_waiting_pieces_are_copied() {
        let stream = Stream::new(WaitingBytes::default());
        let mut buffer = Bytes::from(vec![b'x'; 8 << 10]);
        let first = stream.give(buffer.split_to(1));
        let second = stream.give(buffer.split_to(1));
        drop(first);
        assert!(buffer.is_unique() && second.chunk() == b"x");
    }
}
