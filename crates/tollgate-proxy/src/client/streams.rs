//! Closes HTTP/2 streams whose client stops reading the response.
//!
//! A connection timeout does not catch such a client, because it can stall on some responses and
//! still read other responses, so the connection never looks idle. Each stream therefore has its
//! own time limit.

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;

use crate::flow::{Stream, WaitingBytes};

/// Runs each of a connection's streams in its own task. If the client reads no bytes for `stall`,
/// the task drops the stream and h2 resets it.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) stall: Duration,
    pub(super) in_connection: WaitingBytes,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, serving: F) {
        let stall = self.stall;
        let stream = Stream::new(self.in_connection.clone());
        // Boxed here, because each layer of futures around it would otherwise reserve its size
        // again.
        let serving = Box::pin(serving);
        tokio::spawn(Arc::clone(&stream).serve(async move {
            tokio::select! {
                biased;
                () = serving => {}
                () = stream.stalls(stall) => {
                    tracing::debug!(?stall, "reset a stream because its client did not read it");
                }
            }
        }));
    }
}
