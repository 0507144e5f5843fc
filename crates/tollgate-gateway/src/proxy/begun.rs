//! Whether the upstream has begun to answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::Extensions;
use hyper_util::client::legacy::Error as ClientError;
use hyper_util::client::legacy::connect::{Connected, Connection};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether a byte came on a connection since something was last sent on it. Clones share it.
#[derive(Clone, Debug, Default)]
struct Begun(Arc<AtomicBool>);

/// Whether the upstream had begun to answer the request that failed.
pub(super) fn has_begun(error: &ClientError) -> bool {
    let mut extensions = Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extensions);
    }
    extensions.get::<Begun>().is_some_and(|begun| begun.0.load(Ordering::Relaxed))
}

pin_project! {
    /// A connection to an upstream, inside TLS: what comes there is HTTP.
    #[derive(Debug)]
    pub(super) struct Noted<S> {
        #[pin]
        stream: S,
        begun: Begun,
    }
}

impl<S> Noted<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, begun: Begun::default() }
    }
}

impl<S: Connection> Connection for Noted<S> {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.begun.clone())
    }
}

impl<S: AsyncRead> AsyncRead for Noted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buffer.filled().len();
        let read = this.stream.poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.begun.0.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite> AsyncWrite for Noted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        this.begun.0.store(false, Ordering::Relaxed);
        this.stream.poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        this.begun.0.store(false, Ordering::Relaxed);
        this.stream.poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(cx)
    }
}
