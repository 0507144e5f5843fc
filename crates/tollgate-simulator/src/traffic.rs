//! A run's mix of requests.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

/// How often requests of each kind occur. Each run has a different mix, because most bugs need many
/// requests of the same kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// The maximum number of clients per replica. Each sends bursts.
    pub(crate) clients: usize,
    /// Each client returns its replica's leases after every n-th burst on average.
    pub(crate) returned: u32,
    /// The longest pause between bursts in milliseconds.
    pause: u64,
    /// The largest number of requests in a burst.
    burst: u64,
    /// A burst's requests start within this number of milliseconds.
    spread: u64,
    keys: usize,
    /// Requests with a unique cost, and resets, in 40 requests.
    ledger: u8,
    resets: u8,
    /// Settles every n-th charge on average, and cancels or stalls every n-th request.
    settled: u8,
    disturbed: u8,
    /// Puts every n-th charge in shadow mode.
    shadows: u8,
}

/// How a caller treats its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Waits,
    /// Cancels the request after this time.
    Leaves(Duration),
    /// Polls the request, and polls again after this time, for example in a busy runtime.
    Stalls(Duration),
}

/// A kind of request.
pub(crate) enum RequestKind {
    Ledger,
    Reset,
    Other,
}

impl Traffic {
    /// If `is_hot`, most keys are busy enough for leases.
    pub(crate) fn random(rng: &mut Rng, replicas: usize, is_hot: bool) -> Self {
        let is_hot = is_hot && rng.u8(..4) > 0;
        // With less traffic, hardly any key would be leased.
        let (clients, returned) = if is_hot { (4, 400) } else { (2, 40) };
        // An overloaded server sheds requests.
        let calm = if replicas > 4 { 4 } else { 1 };
        Self {
            clients,
            returned,
            pause: if is_hot { 2 } else { [3, 8, 30, 100][rng.usize(..4)] * calm },
            burst: [1, 1, 4, 16][rng.usize(..4)],
            spread: [1, 1, 10, 60][rng.usize(..4)],
            keys: if is_hot { 1 } else { rng.usize(1..=3) },
            ledger: [2, 7, 7, 20][rng.usize(..4)],
            resets: [0, 1, 8][rng.usize(..3)],
            settled: [2, 6, 6][rng.usize(..3)],
            disturbed: [3, 30][rng.usize(..2)],
            shadows: [3, 20][rng.usize(..2)],
        }
    }

    /// Returns the pause before the next burst, and each request's start in the burst.
    pub(crate) fn burst(&self, rng: &mut Rng) -> (Duration, Vec<Duration>) {
        let pause = Duration::from_millis(rng.u64(1..=self.pause * self.burst));
        let requests = 0..rng.u64(1..=self.burst);
        let starts = requests.map(|_| Duration::from_millis(rng.u64(..self.spread)));
        (pause, starts.collect())
    }

    /// Returns a key's index. Lower indexes are more frequent.
    pub(crate) fn key(&self, rng: &mut Rng) -> usize {
        rng.usize(..self.keys).min(rng.usize(..self.keys))
    }

    pub(crate) fn kind(&self, rng: &mut Rng) -> RequestKind {
        match rng.u8(..40) {
            number if number < self.resets => RequestKind::Reset,
            number if number < self.resets + self.ledger => RequestKind::Ledger,
            _ => RequestKind::Other,
        }
    }

    pub(crate) fn settles(&self, rng: &mut Rng) -> bool {
        rng.u8(..self.settled) == 0
    }

    pub(crate) fn is_shadow(&self, rng: &mut Rng) -> bool {
        rng.u8(..self.shadows) == 0
    }

    pub(crate) fn caller(&self, rng: &mut Rng) -> Caller {
        if rng.u8(..self.disturbed) > 0 {
            Caller::Waits
        } else if rng.bool() {
            Caller::Leaves(Duration::from_millis(rng.u64(..8)))
        } else {
            Caller::Stalls(Duration::from_millis(rng.u64(..60)))
        }
    }
}

impl Caller {
    /// Polls a request. Returns `None` if the caller cancelled it.
    pub(crate) async fn poll<F: Future>(self, request: F) -> Option<F::Output> {
        let mut request = pin!(request);
        match self {
            Self::Waits => Some(request.await),
            Self::Leaves(after) => tokio::time::timeout(after, request).await.ok(),
            Self::Stalls(pause) => {
                let first = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
                if let Poll::Ready(output) = first {
                    return Some(output);
                }
                sleep(pause).await;
                Some(request.await)
            }
        }
    }

    /// Returns when a request with this timeout must have returned.
    pub(crate) fn patience(self, timeout: Duration) -> Duration {
        match self {
            Self::Waits | Self::Leaves(_) => timeout,
            Self::Stalls(pause) => timeout.max(pause),
        }
    }
}
