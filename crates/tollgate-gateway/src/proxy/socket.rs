use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::sync::OwnedSemaphorePermit;

use super::settings::Protocol;

/// Whether a byte came on a connection since something was last sent on it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Begun(Arc<AtomicBool>);

impl Begun {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection to an upstream, inside TLS: what comes there is HTTP.
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
            // It has windows.
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

/// hyper takes a chunk more than the client does, and chunks as large as what was read at once:
/// many responses that are not read would take much memory. One byte more would fill hyper's first
/// buffer, and after each one that is filled hyper takes a larger one.
const READ: u64 = 8 * 1024 - 1;
