use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::sync::OwnedSemaphorePermit;

use crate::settings::Protocol;

/// Whether a byte has arrived on a connection since something was last sent. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun(Arc<AtomicBool>);

impl Begun {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection to an upstream, inside TLS, so all bytes are HTTP.
#[derive(Debug)]
pub(super) struct Socket<S> {
    io: Take<TokioIo<S>>,
    most: u64,
    begun: Begun,
    _permit: OwnedSemaphorePermit,
}

impl<S: Read> Socket<S> {
    pub(super) fn new(
        stream: S,
        protocol: Protocol,
        permit: OwnedSemaphorePermit,
    ) -> (TokioIo<Self>, Begun) {
        let most = match protocol {
            Protocol::Http1 => READ,
            // HTTP/2 has flow control windows.
            Protocol::Http2 => u64::MAX,
        };
        let (io, begun) = (TokioIo::new(stream).take(most), Begun::default());
        (TokioIo::new(Self { io, most, begun: begun.clone(), _permit: permit }), begun)
    }
}

impl<S: Read + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = self.most;
        self.io.set_limit(most);
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.begun.0.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<S: Read + Write + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begun.0.store(false, Ordering::Relaxed);
        Pin::new(self.io.get_mut()).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begun.0.store(false, Ordering::Relaxed);
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

/// hyper reads one chunk ahead of the client, and its chunks are as large as a single read, so many
/// unread responses would take much memory. One byte more would fill hyper's first buffer, and
/// hyper doubles a buffer after filling it.
const READ: u64 = 8 * 1024 - 1;
