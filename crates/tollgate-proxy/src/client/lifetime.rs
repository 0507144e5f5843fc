//! Closes connections when they are done, exceed a time limit, or the gateway stops.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::SetOnce;
use tokio::time::{Instant, sleep_until};

use super::activity::{Activity, Patience};

pub(super) struct Lifetime<F> {
    pub(super) patience: Patience,
    /// Whether other clients wait for a connection.
    pub(super) is_crowded: F,
}

impl<F: Fn() -> bool> Lifetime<F> {
    /// Serves a connection until it closes. After `stop`, requests in flight finish, but no new
    /// requests start.
    pub(super) async fn drive<C, E>(
        &self,
        serving: C,
        stop: fn(Pin<&mut C>),
        activity: &Activity,
    ) -> io::Result<()>
    where
        C: Future<Output = Result<(), E>>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut serving = std::pin::pin!(serving);
        let mut leaving = Leaving::new(&activity.draining);
        let mut look = std::pin::pin!(sleep_until(Instant::now() + self.patience.head));
        loop {
            let event = poll_fn(|cx| {
                // First, so a request that has arrived is read before the timer fires. On a busy
                // machine both may be late.
                if let Poll::Ready(ended) = serving.as_mut().poll(cx) {
                    return Poll::Ready(Event::Ended(ended.map_err(io::Error::other)));
                }
                if leaving.is_asked(cx) {
                    return Poll::Ready(Event::Asked);
                }
                look.as_mut().poll(cx).map(|()| Event::Look)
            });
            match event.await {
                Event::Ended(ended) => return ended,
                Event::Asked => {
                    // HTTP/2 can announce which requests it will still answer. In HTTP/1, a request
                    // may already be on its way. So the next response has `Connection: close`, and
                    // only connections without another request stay open.
                    if activity.is_h2() {
                        stop(serving.as_mut());
                    }
                    look.as_mut().reset(Instant::now() + LAST_CALL);
                }
                Event::Look => {
                    let now = Instant::now();
                    let patience = self.patience_now(leaving.begun);
                    // If the connection was new when the drain started, its protocol may only be
                    // known now. HTTP/2 answers have no `Connection: close`.
                    if leaving.begun && activity.is_h2() || leaving.over {
                        stop(serving.as_mut());
                    }
                    match activity.deadline(patience) {
                        Some(deadline) if deadline <= now => {
                            if leaving.over || activity.is_working() {
                                return Err(io::ErrorKind::TimedOut.into());
                            }
                            leaving.over = true;
                            stop(serving.as_mut());
                            look.as_mut().reset(now + LAST_CALL);
                        }
                        // A head may start at any time, so check the deadline at least once within
                        // a head's time limit.
                        deadline => {
                            let next = deadline.unwrap_or(now + patience.head);
                            let latest = if leaving.begun { LAST_CALL } else { patience.head };
                            look.as_mut().reset(next.min(now + latest));
                        }
                    }
                }
            }
        }
    }

    /// The current time limits. Idle connections have less time if other clients wait for a
    /// connection or the gateway drains.
    fn patience_now(&self, is_leaving: bool) -> Patience {
        let Patience { keep_alive, .. } = self.patience;
        let is_short = is_leaving || (self.is_crowded)();
        let keep_alive = if is_short { keep_alive.min(LAST_CALL) } else { keep_alive };
        Patience { keep_alive, ..self.patience }
    }
}

enum Event {
    Ended(io::Result<()>),
    Asked,
    Look,
}

struct Leaving<'a> {
    draining: &'a SetOnce<()>,
    begins: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
    is_woken: bool,
    begun: bool,
    over: bool,
}

impl<'a> Leaving<'a> {
    fn new(draining: &'a SetOnce<()>) -> Self {
        let begins = Box::pin(async { *draining.wait().await });
        Self { draining, begins, is_woken: false, begun: false, over: false }
    }

    /// Returns true a single time, when the gateway starts to drain.
    fn is_asked(&mut self, cx: &mut Context<'_>) -> bool {
        if self.begun {
            return false;
        }
        if !self.is_woken {
            // Polled only once, because a task's waker remains the same and polling takes a lock.
            self.is_woken = true;
            let _ = self.begins.as_mut().poll(cx);
        }
        self.begun = self.draining.initialized();
        self.begun
    }
}

/// How long a draining connection may still start requests.
pub const LAST_CALL: Duration = Duration::from_secs(1);
