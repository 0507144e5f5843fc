//! Tracks a connection's activity, to separate idle connections from connections with work.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tollgate_config::plan::Front;

use super::half_close::ReadAhead;
use super::invalid_head;
use super::linger::Lingering;
use super::slots::Slot;
use crate::serve::fronts::nginx;
use crate::serve::operations::access_log::AccessLogEntry;
use crate::trace::Traced;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the request's first byte to the end of its head.
    pub(crate) head: Duration,
    /// Between two requests.
    pub(crate) keep_alive: Duration,
    /// How long no byte may move while a response is being sent.
    pub(crate) stall: Duration,
}

/// The gateway gives up on a silent upstream after one idle time. So if a response stalls for two
/// idle times, the client is not reading.
pub(crate) const fn stall_after(idle: Duration) -> Duration {
    idle.saturating_mul(2)
}

/// One connection's activity. Times are milliseconds since the connection was accepted.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    requests: AtomicUsize,
    responses: AtomicUsize,
    free_since: AtomicU64,
    /// The first byte of an incomplete request head, or [`NEVER`].
    head_since: AtomicU64,
    /// The last byte in either direction.
    moved_at: AtomicU64,
    /// How long no byte may move, if the target of a response may pause longer than by default.
    longer_stall: AtomicU64,
    /// In HTTP/2, a byte may belong to no request.
    is_h2: AtomicBool,
    /// The last request was answered before its body was read.
    leaves_unread: AtomicBool,
    /// The last response is sent. Bytes that the client still sends are discarded.
    lingers: AtomicBool,
}

const NEVER: u64 = u64::MAX;

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            requests: AtomicUsize::new(0),
            responses: AtomicUsize::new(0),
            free_since: AtomicU64::new(0),
            head_since: AtomicU64::new(NEVER),
            moved_at: AtomicU64::new(0),
            longer_stall: AtomicU64::new(0),
            is_h2: AtomicBool::new(false),
            leaves_unread: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
        })
    }

    /// When to close the connection if its activity does not change. `None` while a request waits
    /// for its response or the connection lingers, because both have their own time limits.
    pub(crate) fn deadline(&self, patience: Patience) -> Option<Instant> {
        if self.lingers.load(Ordering::Relaxed) {
            return None;
        }
        let after = |millis: &AtomicU64, patience: Duration| {
            self.began + Duration::from_millis(millis.load(Ordering::Relaxed)) + patience
        };
        let requests = self.requests.load(Ordering::Relaxed);
        if requests > 0 {
            let all_answered = self.responses.load(Ordering::Relaxed) == requests;
            let longer = Duration::from_millis(self.longer_stall.load(Ordering::Relaxed));
            return all_answered.then(|| after(&self.moved_at, patience.stall.max(longer)));
        }
        if self.is_in_head() && !self.is_h2() {
            return Some(after(&self.head_since, patience.head));
        }
        Some(after(&self.free_since, patience.keep_alive))
    }

    fn is_in_head(&self) -> bool {
        self.head_since.load(Ordering::Relaxed) != NEVER
    }

    /// The client may still be sending the answered request's body.
    pub(crate) fn leaves_unread(&self) {
        self.leaves_unread.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_working(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_h2(&self) -> bool {
        self.is_h2.load(Ordering::Relaxed)
    }

    fn is_answering_http1(&self) -> bool {
        self.is_working() && !self.is_h2()
    }

    fn last_moved(&self) -> Instant {
        self.began + Duration::from_millis(self.moved_at.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        // Milliseconds in a `u64` last for 500 million years.
        self.began.elapsed().as_millis() as u64
    }

    fn moved(&self, is_read: bool) {
        let now = self.now();
        self.moved_at.store(now, Ordering::Relaxed);
        if !is_read && !self.is_working() && self.is_in_head() && !self.is_h2() {
            // The head is invalid, so hyper answers while the client may still be sending. HTTP/2
            // may write at any time.
            self.leaves_unread();
        }
        // Only a head's first byte counts. Otherwise one byte per minute would keep the connection
        // open.
        if is_read && !self.is_working() && !self.is_in_head() {
            self.head_since.store(now, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Working {
    activity: Arc<Activity>,
    answers: bool,
}

impl Working {
    pub(crate) fn begin(activity: &Arc<Activity>, is_h2: bool) -> Self {
        if activity.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            activity.longer_stall.store(0, Ordering::Relaxed);
        }
        activity.head_since.store(NEVER, Ordering::Relaxed);
        activity.leaves_unread.store(false, Ordering::Relaxed);
        activity.is_h2.fetch_or(is_h2, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), answers: false }
    }

    /// The request is answered before its body is read.
    pub(crate) fn leaves_unread(&self) {
        self.activity.leaves_unread();
    }

    /// The target may pause for this time during its response.
    pub(crate) fn may_pause(&self, time: Duration) {
        self.activity
            .longer_stall
            .fetch_max(stall_after(time).as_millis() as u64, Ordering::Relaxed);
    }

    fn answers(mut self) -> Self {
        self.activity.responses.fetch_add(1, Ordering::Relaxed);
        self.answers = true;
        self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if self.answers {
            self.activity.responses.fetch_sub(1, Ordering::Relaxed);
        }
        self.activity.free_since.store(self.activity.now(), Ordering::Relaxed);
        self.activity.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

pin_project! {
    /// A response body. Its end finishes the request and its span, and writes the log line.
    #[derive(Debug)]
    pub(crate) struct LoggedBody<B> {
        #[pin]
        body: B,
        hides_end: bool,
        working: Working,
        traced: Traced,
        logged: Option<Box<AccessLogEntry>>,
    }
}

impl<B> LoggedBody<B> {
    pub(crate) fn new(
        body: B,
        working: Working,
        traced: Traced,
        logged: Option<Box<AccessLogEntry>>,
    ) -> Self {
        Self { body, hides_end: false, working: working.answers(), traced, logged }
    }

    /// Hides that there is no body, so hyper does not remove `Content-Length`. In a 304, this header
    /// describes the body that a 200 would have.
    pub(crate) const fn hiding_end(mut self, hides_end: bool) -> Self {
        self.hides_end = hides_end;
        self
    }
}

impl<B: http_body::Body> http_body::Body for LoggedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if let (Some(entry), Some(Ok(frame))) = (this.logged, &frame)
            && let Some(data) = frame.data_ref()
        {
            entry.sent(data.remaining() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        !self.hides_end && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.hides_end { SizeHint::default() } else { self.body.size_hint() }
    }
}

#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    ahead: ReadAhead,
    lingering: Option<Lingering>,
    front: Front,
    /// Whether the last head is a check of nginx.
    is_for_nginx: bool,
    /// The rest of an answer that replaces hyper's answer to an invalid head.
    instead: Bytes,
    /// Counts the connection until its socket is closed, even after an upgrade.
    _slot: Slot,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>, slot: Slot) -> Self {
        Self {
            stream,
            activity,
            ahead: ReadAhead::default(),
            lingering: None,
            front: Front::Proxy,
            is_for_nginx: false,
            instead: Bytes::new(),
            _slot: slot,
        }
    }

    pub(crate) const fn of_front(mut self, front: Front) -> Self {
        self.front = front;
        self
    }
}

impl<S: AsyncWrite + Unpin> Watched<S> {
    /// Whether these bytes are hyper's answer to an invalid head, which is replaced.
    fn replaces(&mut self, data: &[u8]) -> bool {
        let activity = &self.activity;
        if activity.is_working() || !activity.is_in_head() || activity.is_h2() {
            return false;
        }
        let Some(answer) = invalid_head::replaced(data, self.is_for_nginx) else { return false };
        activity.moved(false);
        self.instead = answer;
        true
    }

    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, activity, ahead, front, is_for_nginx, .. } = self.get_mut();
        let before = buffer.filled().len();
        let read = ahead.poll_read(stream, cx, buffer);
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            let begins = !activity.is_working() && !activity.is_in_head();
            if begins && *front == Front::ForwardAuth {
                *is_for_nginx = nginx::is_check(bytes);
            }
            activity.moved(true);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if self.replaces(data) {
            return Poll::Ready(Ok(data.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        if written.is_ready() {
            self.activity.moved(false);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if let [data] = data
            && self.replaces(data)
        {
            return Poll::Ready(Ok(data.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        if written.is_ready() {
            self.activity.moved(false);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Also detects disconnected clients. hyper does not read beyond the request while the gateway
    /// answers, but it flushes whenever its task runs.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        let Self { stream, activity, ahead, .. } = self.get_mut();
        ready!(Pin::new(&mut *stream).poll_flush(cx))?;
        if activity.is_answering_http1() {
            ahead.check(stream, cx, activity.last_moved())?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        let Self { stream, activity, lingering, .. } = self.get_mut();
        if lingering.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            if !activity.leaves_unread.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            activity.lingers.store(true, Ordering::Relaxed);
        }
        lingering.get_or_insert_with(Lingering::begin).poll(stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::advance;

    use super::*;
    use crate::serve::edge::slots::Slots;
    use crate::serve::edge::workers::Counted;
    use crate::trace::Tracing;

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        keep_alive: Duration::from_secs(75),
        stall: Duration::from_secs(120),
    };

    fn left(activity: &Activity) -> Option<u64> {
        activity.deadline(PATIENCE).map(|deadline| (deadline - Instant::now()).as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_depends_on_activity() {
        let activity = Activity::new();
        let (mut client, ours) = duplex(64);
        let slot = Slots::new(1).take(Counted::default());
        let mut ours = Watched::new(ours, Arc::clone(&activity), slot);
        assert_eq!(left(&activity), Some(75));
        advance(Duration::from_secs(5)).await;
        assert_eq!(left(&activity), Some(70));
        for seconds in [10, 6, 2] {
            client.write_all(b"x").await.unwrap();
            ours.read_u8().await.unwrap();
            assert_eq!(left(&activity), Some(seconds), "only the first byte counts");
            advance(Duration::from_secs(4)).await;
        }
        let working = Working::begin(&activity, false);
        assert_eq!(left(&activity), None);
        let traced = Traced::begin(&Tracing::default(), &mut http::Request::new(()), false);
        let answer = LoggedBody::new((), working, traced, None);
        assert_eq!(left(&activity), Some(116));
        ours.write_all(b"x").await.unwrap();
        assert_eq!(left(&activity), Some(120));
        answer.working.may_pause(Duration::from_secs(3600));
        assert_eq!(left(&activity), Some(7200));
        drop(answer);
        let working = Working::begin(&activity, false).answers();
        assert_eq!(left(&activity), Some(120), "only that response could pause");
        drop(working);
        assert_eq!(left(&activity), Some(75));
    }

    #[tokio::test(start_paused = true)]
    async fn http2_bytes_may_belong_to_no_request() {
        let activity = Activity::new();
        drop(Working::begin(&activity, true));
        activity.moved(true);
        assert_eq!(left(&activity), Some(75));
        activity.moved(false);
        assert!(!activity.leaves_unread.load(Ordering::Relaxed), "a PING is answered");
    }
}
