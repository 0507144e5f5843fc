//! Streams of HTTP/2, each of which ends when its client does not take what it asked for.
//!
//! A client may read one response and leave another where it is, for as long as it likes: bytes
//! move on the connection all the time. So each stream has a time limit of its own.

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;

use crate::flow::{Share, Stream};

/// Serves each stream of one connection in a task of its own. A stream whose client takes nothing
/// of the response for too long ends: h2 resets it when its task is dropped.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) stall: Duration,
    pub(super) share: Share,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, serving: F) {
        let stall = self.stall;
        let stream = Stream::new(self.share.clone());
        // Each layer of futures around it would have room for another one.
        let serving = Box::pin(serving);
        tokio::spawn(Arc::clone(&stream).serve(async move {
            tokio::select! {
                biased;
                () = serving => {}
                () = stream.stalls(stall) => {
                    tracing::debug!(?stall, "a stream ended whose client did not read it");
                }
            }
        }));
    }
}
