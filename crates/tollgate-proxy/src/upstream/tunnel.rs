//! Connections that have changed to another protocol: forwards bytes both ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use metrics::gauge;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::time::{Instant, sleep_until};
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tunnels, each in its own task, for which only the shutdown waits. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    pub tasks: TaskTracker,
    pub cut: CancellationToken,
    open: Arc<AtomicUsize>,
    most: usize,
}

#[derive(Debug)]
pub(super) struct TunnelPermit(Arc<AtomicUsize>);

impl Drop for TunnelPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        gauge!(TUNNELS).decrement(1);
    }
}

impl Tunnels {
    /// The same tunnels, with a maximum of `most`. The default is 0.
    #[must_use]
    pub fn at_most(&self, most: usize) -> Self {
        Self { most, ..self.clone() }
    }

    pub(super) fn acquire(&self) -> Option<TunnelPermit> {
        let take = |open| (open < self.most).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        gauge!(TUNNELS).increment(1);
        Some(TunnelPermit(Arc::clone(&self.open)))
    }

    /// Connects both sides after each has changed its protocol. Drops `permit` when the tunnel
    /// closes.
    pub(super) fn open(
        &self,
        client: OnUpgrade,
        upstream: OnUpgrade,
        permit: impl Send + 'static,
        idle: Duration,
    ) {
        let cut = self.cut.clone();
        self.tasks.spawn(async move {
            let _permit = permit;
            let carried = async {
                let (client, upstream) = tokio::try_join!(client, upstream)?;
                carry(TokioIo::new(client), TokioIo::new(upstream), idle).await
            };
            let ended: Result<(), Error> = tokio::select! {
                ended = carried => ended,
                () = cut.cancelled() => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "an upgraded connection failed");
            }
        });
    }
}

pub const TUNNELS: &str = "tollgate_gateway_tunnels";

type Error = Box<dyn std::error::Error + Send + Sync>;

/// If one side closes its direction, the other side is notified and may still send.
async fn carry<A, B>(client: A, upstream: B, idle: Duration) -> Result<(), Error>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (began, heard) = (Instant::now(), AtomicU64::new(0));
    // Milliseconds in a `u64` last for 500 million years.
    let hear = |_: &[u8]| heard.store(began.elapsed().as_millis() as u64, Ordering::Relaxed);
    let silence = async {
        loop {
            let last = began + Duration::from_millis(heard.load(Ordering::Relaxed));
            if last.elapsed() >= idle {
                return;
            }
            sleep_until(last + idle).await;
        }
    };
    let mut client = InspectReader::new(client, hear);
    let mut upstream = InspectReader::new(upstream, hear);
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut upstream) => {
            copied?;
            Ok(())
        }
        () = silence => Err(format!("no byte for {idle:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const IDLE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn half_closed_side_still_receives() {
        let ((mut client, ours), (theirs, mut upstream)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(carry(ours, theirs, IDLE));
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = String::new();
        upstream.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "question");
        upstream.write_all(b"answer").await.unwrap();
        drop(upstream);
        heard.clear();
        client.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "answer");
        carried.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_closes_the_tunnel() {
        let ((mut client, ours), (theirs, mut upstream)) = (duplex(64), duplex(64));
        let start = Instant::now();
        let carried = tokio::spawn(carry(ours, theirs, IDLE));
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            client.write_all(b"x").await.unwrap();
            tokio::time::sleep(Duration::from_secs(9)).await;
            upstream.write_all(b"y").await.unwrap();
        }
        let error = carried.await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("no byte"), "{error}");
        assert_eq!(start.elapsed().as_secs(), 46);
    }
}
