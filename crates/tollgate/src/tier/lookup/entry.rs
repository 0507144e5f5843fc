//! A client's look-ups and their last result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client_quota::ClientQuota;
use super::quotas::Terms;
use super::source::{Client, LookUpResult, Source};

/// A client in the cache, without its name. A client may have chosen a long name, and its requests
/// contain the name whenever a look-up needs it.
pub(super) struct Entry {
    /// The number of the client's counter of epochs.
    counter: u8,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Last>,
    in_progress: Option<InProgress>,
}

struct Last {
    /// The last successful look-up's result.
    known: Option<Arc<Known>>,
    fresh_until: Instant,
    failed_at: Option<Instant>,
    /// When the next look-up may start in the background.
    next_at: Instant,
    epoch: u64,
}

struct InProgress {
    epoch: u64,
    answer: watch::Receiver<Option<Answer>>,
}

/// The quota to use, or the look-up to wait for.
pub(crate) enum Look {
    Cached(Answer),
    InProgress(PendingAnswer),
}

/// A look-up in progress.
pub(crate) struct PendingAnswer(watch::Receiver<Option<Answer>>);

/// The current knowledge about a client's quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The last successful look-up's result.
    pub(super) known: Option<Arc<Known>>,
    /// Whether the latest look-up failed, and the result has expired.
    pub(super) has_failed: bool,
}

/// A look-up's result: the quota, or `None` for an unknown client.
#[derive(Debug)]
pub(crate) struct Known {
    pub(super) quota: Option<ClientQuota>,
    /// Earlier results, in case this result does not fit a policy: the last first, up to one that
    /// fits all policies that have used it.
    pub(super) before: SmallVec<[Option<ClientQuota>; 1]>,
    pub(super) is_unfit: AtomicBool,
    /// The terms under each limit that has used this result.
    pub(super) terms: Mutex<SmallVec<[(u64, Terms); 1]>>,
}

impl Entry {
    pub(super) fn new(counter: u8) -> Self {
        Self { counter, state: Mutex::default() }
    }

    pub(super) fn look(
        self: &Arc<Self>,
        source: &Arc<Source>,
        client: impl FnOnce() -> Client,
    ) -> Look {
        let (now, epoch) = (Instant::now(), source.epochs.current(self.counter));
        let mut state = self.state.lock();
        let cached = state.last.as_ref().filter(|last| last.is_usable(now, epoch, source.ttl));
        let is_due = match (cached, &state.in_progress) {
            (Some(last), in_progress) => now >= last.next_at && in_progress.is_none(),
            (None, in_progress) => in_progress.as_ref().is_none_or(|it| it.epoch != epoch),
        };
        let cached = cached.map(|last| last.answer(now));
        let running = if is_due { self.start(&mut state, source, epoch, now) } else { None };
        let look = match (cached, &state.in_progress) {
            (Some(answer), _) => Look::Cached(answer),
            (None, Some(it)) => Look::InProgress(PendingAnswer(it.answer.clone())),
            (None, None) => {
                source.report(&"there is no tokio runtime");
                let known = state.last.as_ref().and_then(|last| last.known.clone());
                Look::Cached(Answer { known, has_failed: true })
            }
        };
        drop(state);
        if let Some((runtime, running)) = running {
            // A runtime that shuts down drops the task immediately, and the drop takes the lock.
            runtime.spawn(running.run(client()));
        }
        look
    }

    pub(super) fn last(&self) -> Option<Answer> {
        let state = self.state.lock();
        let known = state.last.as_ref()?.known.clone();
        Some(Answer { known, has_failed: false })
    }

    /// Prepares a look-up. It runs in its own task, because requests share it, and each may be
    /// cancelled.
    #[cold]
    fn start(
        self: &Arc<Self>,
        state: &mut State,
        source: &Arc<Source>,
        epoch: u64,
        started: Instant,
    ) -> Option<(Handle, Running)> {
        let runtime = Handle::try_current().ok()?;
        let (sender, answer) = watch::channel(None);
        state.in_progress = Some(InProgress { epoch, answer });
        let (source, entry) = (Arc::clone(source), Arc::clone(self));
        Some((runtime, Running { source, entry, epoch, started, sender, result: None }))
    }

    fn finish(
        &self,
        source: &Source,
        epoch: u64,
        started: Instant,
        result: LookUpResult,
    ) -> Answer {
        let mut state = self.state.lock();
        if state.in_progress.as_ref().is_some_and(|it| it.epoch == epoch) {
            state.in_progress = None;
        }
        let known = state.last.as_ref().and_then(|last| last.known.as_ref());
        let failed_at = result.is_err().then(Instant::now);
        let answer = match result {
            Ok(quota) => Answer { known: Some(Known::next(known, quota)), has_failed: false },
            Err(error) => {
                source.report(&error);
                Answer { known: known.cloned(), has_failed: true }
            }
        };
        let pause = (source.ttl / 2).min(RETRY);
        let next_at = failed_at.map_or(started + source.ttl / 2, |at| at + pause);
        let fresh_until = match &state.last {
            // An earlier result remains valid, unless it was forgotten.
            Some(last) if failed_at.is_some() && last.epoch == epoch => last.fresh_until,
            _ if failed_at.is_some() => started,
            _ => started + source.ttl,
        };
        // A look-up that started before the client was forgotten may end after a later look-up.
        if state.last.as_ref().is_none_or(|last| last.epoch <= epoch) {
            let known = answer.known.clone();
            state.last = Some(Last { known, fresh_until, failed_at, next_at, epoch });
        }
        answer
    }
}

/// How many results are kept that may not fit.
const MAX_BEFORE: usize = 3;

/// The pause between a failed look-up and the next, unless the time to live is short.
const RETRY: Duration = Duration::from_secs(1);

/// A look-up that runs. It also finishes if it panics, or if its runtime shuts down.
struct Running {
    source: Arc<Source>,
    entry: Arc<Entry>,
    epoch: u64,
    started: Instant,
    sender: watch::Sender<Option<Answer>>,
    result: Option<LookUpResult>,
}

impl Running {
    async fn run(mut self, client: Client) {
        self.result = Some(self.source.ask(client).await);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| Err("the look-up did not end".into()));
        let answer = self.entry.finish(&self.source, self.epoch, self.started, result);
        self.sender.send_replace(Some(answer));
    }
}

impl Last {
    /// After a failure, later requests do not wait for a look-up, as long as it is tried again.
    fn is_usable(&self, now: Instant, epoch: u64, ttl: Duration) -> bool {
        let failed_now = self.failed_at.is_some_and(|at| now < at + ttl);
        self.epoch == epoch && (now < self.fresh_until || failed_now)
    }

    fn answer(&self, now: Instant) -> Answer {
        Answer { known: self.known.clone(), has_failed: now >= self.fresh_until }
    }
}

impl PendingAnswer {
    pub(crate) async fn wait(mut self) -> Answer {
        let answer = self.0.wait_for(Option::is_some).await;
        let failed = || Answer { known: None, has_failed: true };
        answer.map_or_else(|_| failed(), |answer| answer.clone().unwrap_or_else(failed))
    }
}

impl Known {
    fn next(last: Option<&Arc<Self>>, quota: Option<ClientQuota>) -> Arc<Self> {
        let is_same = |last: &Self| match (&last.quota, &quota) {
            (Some(last), Some(quota)) => last.is_same(quota),
            (last, quota) => last.is_none() && quota.is_none(),
        };
        // The terms under each limit are not built again if the result is the same.
        if let Some(last) = last.filter(|last| is_same(last)) {
            return Arc::clone(last);
        }
        let before = last.map(|last| {
            let is_fit = !last.terms.lock().is_empty() && !last.is_unfit.load(Ordering::Relaxed);
            let older = last.before.iter().take(if is_fit { 0 } else { MAX_BEFORE }).cloned();
            std::iter::once(last.quota.clone()).chain(older).collect()
        });
        let before = before.unwrap_or_default();
        let (is_unfit, terms) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { quota, before, is_unfit, terms })
    }
}
