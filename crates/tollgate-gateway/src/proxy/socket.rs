//! A connection to a target, of which hyper reads a bounded part at a time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// A connection to a target.
#[derive(Debug)]
pub(super) struct Socket<S> {
    io: Take<TokioIo<S>>,
    most: u64,
}

impl<S: hyper::rt::Read> Socket<S> {
    /// For HTTP/1: hyper reads a chunk ahead of what the client takes, and as much at once as
    /// the target sends. Of many answers that nobody reads that would be much.
    pub(super) fn http1(stream: S) -> TokioIo<Self> {
        Self::new(stream, READ)
    }

    /// For HTTP/2, which has windows.
    pub(super) fn http2(stream: S) -> TokioIo<Self> {
        Self::new(stream, u64::MAX)
    }

    fn new(stream: S, most: u64) -> TokioIo<Self> {
        TokioIo::new(Self { io: TokioIo::new(stream).take(most), most })
    }
}

impl<S: hyper::rt::Read + Connection> Connection for Socket<S> {
    fn connected(&self) -> Connected {
        self.io.get_ref().inner().connected()
    }
}

impl<S: hyper::rt::Read + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = self.most;
        self.io.set_limit(most);
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<S: hyper::rt::Read + hyper::rt::Write + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.io.get_mut()).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.io.get_mut()).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_shutdown(cx)
    }
}

/// One byte less than hyper's first buffer: each time that one is filled it takes a larger one.
const READ: u64 = 8 * 1024 - 1;
