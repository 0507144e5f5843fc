//! Tracks a connection's activity, to separate idle connections from connections with work.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::SetOnce;
use tokio::time::Instant;

/// A client's time limits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the request's first byte to its complete head.
    pub head: Duration,
    /// Between two requests.
    pub keep_alive: Duration,
    /// How long no byte may move while a response is being sent.
    pub stall: Duration,
}

impl Patience {
    /// The proxy gives up on a silent upstream after `idle`. So if a response stalls for twice that
    /// time, the client is not reading.
    pub const fn new(head: Duration, keep_alive: Duration, idle: Duration) -> Self {
        Self { head, keep_alive, stall: stall_after(idle) }
    }
}

const fn stall_after(idle: Duration) -> Duration {
    idle.saturating_mul(2)
}

/// One connection's activity.
#[derive(Debug)]
pub(super) struct Activity {
    pub(super) draining: Arc<SetOnce<()>>,
    // A connection's task and its streams' tasks run on one thread, so they never wait for this.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    requests: usize,
    responses: usize,
    free_since: Instant,
    /// When an incomplete request head's first byte arrived.
    head_since: Option<Instant>,
    /// The last byte in either direction.
    moved_at: Instant,
    /// How long no byte may move, if a response's target may pause longer than by default.
    longer_stall: Duration,
    /// In HTTP/2, a byte may belong to no request.
    is_h2: bool,
    /// The last request was answered before its body was read.
    leaves_unread: bool,
    /// The last response is sent. Bytes that the client still sends are discarded.
    lingers: bool,
}

impl State {
    const fn is_in_http1_head(&self) -> bool {
        self.requests == 0 && self.head_since.is_some() && !self.is_h2
    }
}

impl Activity {
    pub(super) fn new(draining: &Arc<SetOnce<()>>) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            requests: 0,
            responses: 0,
            free_since: now,
            head_since: None,
            moved_at: now,
            longer_stall: Duration::ZERO,
            is_h2: false,
            leaves_unread: false,
            lingers: false,
        };
        Arc::new(Self { draining: Arc::clone(draining), state: Mutex::new(state) })
    }

    /// When to close the connection if its activity does not change. `None` while a request waits
    /// for its response or the connection lingers, because both have their own time limits.
    pub(super) fn deadline(&self, patience: Patience) -> Option<Instant> {
        let state = self.state.lock();
        if state.lingers {
            return None;
        }
        if state.requests > 0 {
            let stall = patience.stall.max(state.longer_stall);
            return (state.responses == state.requests).then(|| state.moved_at + stall);
        }
        match state.head_since {
            Some(since) if !state.is_h2 => Some(since + patience.head),
            _ => Some(state.free_since + patience.keep_alive),
        }
    }

    /// Whether an HTTP/1 head is incomplete.
    pub(super) fn is_in_head(&self) -> bool {
        self.state.lock().is_in_http1_head()
    }

    /// The client may still be sending the answered request's body.
    pub(super) fn leaves_unread(&self) {
        self.state.lock().leaves_unread = true;
    }

    /// Whether the client may still be sending after the last response. If so, the connection
    /// lingers from now on.
    pub(super) fn must_linger(&self) -> bool {
        let mut state = self.state.lock();
        state.lingers |= state.leaves_unread;
        state.lingers
    }

    pub(super) fn is_working(&self) -> bool {
        self.state.lock().requests > 0
    }

    pub(super) fn is_h2(&self) -> bool {
        self.state.lock().is_h2
    }

    /// When the last byte moved, if an HTTP/1 request is in flight.
    pub(super) fn answers_http1_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.requests > 0 && !state.is_h2).then_some(state.moved_at)
    }

    /// Bytes have arrived. Returns whether they start a head.
    ///
    /// Only a head's first byte counts. Otherwise one byte per minute would keep the connection
    /// open.
    pub(super) fn has_read(&self) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.moved_at = now;
        let starts_head = state.requests == 0 && state.head_since.is_none();
        if starts_head {
            state.head_since = Some(now);
        }
        starts_head
    }

    pub(super) fn has_written(&self) {
        let mut state = self.state.lock();
        state.moved_at = Instant::now();
        // The head is invalid, so hyper answers while the client may still be sending. HTTP/2 may
        // write at any time.
        state.leaves_unread |= state.is_in_http1_head();
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Working {
    activity: Arc<Activity>,
    answers: bool,
}

impl Working {
    pub(super) fn begin(activity: &Arc<Activity>, is_h2: bool) -> Self {
        let mut state = activity.state.lock();
        if state.requests == 0 {
            state.longer_stall = Duration::ZERO;
        }
        state.requests += 1;
        state.head_since = None;
        state.leaves_unread = false;
        state.is_h2 |= is_h2;
        Self { activity: Arc::clone(activity), answers: false }
    }

    /// The request is answered before its body is read.
    pub(super) fn leaves_unread(&self) {
        self.activity.leaves_unread();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.activity.draining.initialized()
    }

    /// The target may pause for this time during its response.
    pub(super) fn may_pause(&self, time: Duration) {
        let mut state = self.activity.state.lock();
        state.longer_stall = state.longer_stall.max(stall_after(time));
    }

    pub(super) fn answers(mut self) -> Self {
        self.activity.state.lock().responses += 1;
        self.answers = true;
        self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        state.responses -= usize::from(self.answers);
        state.requests -= 1;
        state.free_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::advance;

    use super::super::watched::tests::watched;
    use super::*;

    const PATIENCE: Patience =
        Patience::new(Duration::from_secs(10), Duration::from_secs(75), Duration::from_secs(60));

    fn left(activity: &Activity) -> Option<u64> {
        activity.deadline(PATIENCE).map(|deadline| (deadline - Instant::now()).as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_depends_on_activity() {
        let activity = Activity::new(&Arc::default());
        let (mut client, mut ours) = watched(&activity);
        assert_eq!(left(&activity), Some(75));
        advance(Duration::from_secs(5)).await;
        assert_eq!(left(&activity), Some(70));
        for seconds in [10, 6, 2] {
            client.write_all(b"x").await.unwrap();
            ours.read_u8().await.unwrap();
            assert_eq!(left(&activity), Some(seconds), "only the first byte counts");
            advance(Duration::from_secs(4)).await;
        }
        let working = Working::begin(&activity, false);
        assert_eq!(left(&activity), None);
        let working = working.answers();
        assert_eq!(left(&activity), Some(116));
        ours.write_all(b"x").await.unwrap();
        assert_eq!(left(&activity), Some(120));
        working.may_pause(Duration::from_secs(3600));
        assert_eq!(left(&activity), Some(7200));
        drop(working);
        let working = Working::begin(&activity, false).answers();
        assert_eq!(left(&activity), Some(120), "only that response could pause");
        drop(working);
        assert_eq!(left(&activity), Some(75));
    }

    #[tokio::test(start_paused = true)]
    async fn http2_bytes_may_belong_to_no_request() {
        let activity = Activity::new(&Arc::default());
        drop(Working::begin(&activity, true));
        activity.has_read();
        assert_eq!(left(&activity), Some(75));
        activity.has_written();
        assert!(!activity.must_linger(), "a PING is answered");
    }
}
