//! Forwards a connection's bytes in one direction.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep_until};

use super::{Flow, Way};
use crate::proxy::tally::Reader;

/// Copies bytes until either end closes.
pub(super) async fn run(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    mut reader: Reader,
) {
    let mut flow = way.flow.subscribe();
    // Delayed bytes wait in this channel while later bytes are read, so the delays overlap.
    let (send, mut due) = unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
            reader.read(&bytes[..count], &mut way.tally());
            let Ok(now) = flow.wait_for(|flow| *flow != Flow::Hold).await.map(|flow| *flow) else {
                return;
            };
            let at = match now {
                Flow::Swallow => continue,
                Flow::Late(by) => Instant::now() + by,
                Flow::Pass | Flow::Hold => Instant::now(),
            };
            if send.send((at, bytes[..count].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((at, bytes)) = due.recv().await {
            if at > Instant::now() {
                sleep_until(at).await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    // At end of input, write the bytes that were already read. A write error stops both sides.
    tokio::select! {
        () = write => {}
        () = async { read.await; std::future::pending().await } => {}
    }
}
