//! The bytes on a client's connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::half_close::ReadAhead;
use super::invalid_head::{self, ChooseAnswer, FaultAnswer};
use super::linger::Lingering;

/// A connection's bytes. `K` is held until the socket is closed, even after an upgrade.
#[derive(Debug)]
pub(super) struct Watched<S, K> {
    stream: S,
    activity: Arc<Activity>,
    ahead: ReadAhead,
    lingering: Option<Lingering>,
    faults: ChooseAnswer,
    /// Answers the last head, if it is invalid.
    fault: FaultAnswer,
    /// The rest of the answer that replaces hyper's answer to an invalid head.
    instead: Bytes,
    _kept: K,
}

impl<S, K> Watched<S, K> {
    pub(super) fn new(stream: S, activity: Arc<Activity>, faults: ChooseAnswer, kept: K) -> Self {
        let (ahead, lingering, instead) = (ReadAhead::default(), None, Bytes::new());
        let fault = faults(&[]);
        Self { stream, activity, ahead, lingering, faults, fault, instead, _kept: kept }
    }
}

impl<S: AsyncWrite + Unpin, K> Watched<S, K> {
    /// Whether these bytes are hyper's answer to an invalid head, which is replaced.
    fn replaces(&mut self, data: &[u8]) -> bool {
        if !self.activity.is_in_head() {
            return false;
        }
        let Some(answer) = invalid_head::replaced(data, self.fault) else { return false };
        self.activity.has_written();
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

impl<S: AsyncRead + Unpin, K: Unpin> AsyncRead for Watched<S, K> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, activity, ahead, faults, fault, .. } = self.get_mut();
        let before = buffer.filled().len();
        let read = ahead.poll_read(stream, cx, buffer);
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() && activity.has_read() {
            *fault = faults(bytes);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, K: Unpin> AsyncWrite for Watched<S, K> {
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
            self.activity.has_written();
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
            self.activity.has_written();
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
        if let Some(moved_at) = activity.answers_http1_since() {
            ahead.check(stream, cx, moved_at)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        let Self { stream, activity, lingering, .. } = self.get_mut();
        if lingering.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            if !activity.must_linger() {
                return Poll::Ready(Ok(()));
            }
        }
        lingering.get_or_insert_with(Lingering::begin).poll(stream, cx).map(Ok)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use http::Response;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// A client, and its connection.
    pub(in super::super) fn watched(
        activity: &Arc<Activity>,
    ) -> (DuplexStream, Watched<DuplexStream, ()>) {
        let (client, ours) = duplex(64 << 10);
        let faults: ChooseAnswer = |_| |_| Response::new(Bytes::new());
        (client, Watched::new(ours, Arc::clone(activity), faults, ()))
    }
}
