//! How a request starts to wait, retries, and stops waiting.

use std::cmp::Reverse;

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Store, StoreError, Timestamp, Verdict};
use tollgate_memory::Clock;

use super::waiting::{self, Next, Owned, Waiter};
use super::{Answer, Ask, Replay, Request, What, tally};

impl Replay {
    /// Lets a request wait unless there are too many waiting requests.
    pub(super) fn join(
        &mut self,
        number: u64,
        request: &Request<'_>,
        denying: u64,
        denied: Option<(waiting::Denied, Verdict)>,
        now: Timestamp,
    ) -> Result<Answer, StoreError> {
        let (denied, verdict) = match denied {
            Some((denied, verdict)) => (Some(denied), Some(verdict)),
            None => (None, None),
        };
        let waiter = Waiter::new(Owned::of(request), denied, now);
        if let Some(next) = self.waiting.enter(number, waiter, denying) {
            self.tallies.join(request, now);
            self.later(next, What::Wake(number));
            return Ok(Answer::Waits);
        }
        let verdict = match verdict {
            Some(verdict) => verdict,
            None => self.peek(request.asks)?,
        };
        self.tallies.decide(request, &verdict, None, false);
        Ok(Answer::Denied)
    }

    /// Decides a request without charging it.
    fn peek(&self, asks: &[Ask<'_>]) -> Result<Verdict, StoreError> {
        let charges = asks.iter().map(Ask::charge);
        let charges: SmallVec<[Charge<'_>; 4]> =
            charges.map(|charge| Charge { cost: Cost::ZERO, ..charge }).collect();
        self.store.decide(&charges).into_inner()
    }

    /// Retries a waiting request. If it stops waiting, the next requests in its lanes retry too.
    pub(super) fn wake(&mut self, number: u64) -> Result<(), StoreError> {
        let mut woken = vec![number];
        while let Some(number) = woken.pop() {
            self.look_again(number, &mut woken)?;
            // Retry the earliest request first.
            woken.sort_unstable_by_key(|number| Reverse(*number));
            woken.dedup();
        }
        Ok(())
    }

    fn look_again(&mut self, number: u64, woken: &mut Vec<u64>) -> Result<(), StoreError> {
        let now = self.clock.now();
        loop {
            match self.waiting.look(number, now, woken) {
                Next::Gone => return Ok(()),
                Next::Sleep(until) => {
                    self.later(until, What::Wake(number));
                    return Ok(());
                }
                Next::GiveUp => {
                    let Some(waiter) = self.waiting.leave(number, woken) else { return Ok(()) };
                    return self.reject(number, &waiter, now);
                }
                Next::Ask => {
                    let Some(waiter) = self.waiting.get(number) else { return Ok(()) };
                    let asks = waiter.request.asks();
                    let verdict = self.decide(&asks)?;
                    let left = waiter.until.since(now);
                    let denied = (!verdict.is_admitted())
                        .then(|| waiting::denied(&asks, &verdict, now, Some(left)));
                    drop(asks);
                    match denied {
                        Some(Some(denied)) => {
                            self.waiting.deny(number, denied);
                            continue;
                        }
                        Some(None) => {
                            let Some(waiter) = self.waiting.leave(number, woken) else {
                                return Ok(());
                            };
                            let asks = waiter.request.asks();
                            let request = waiter.request.request(&asks);
                            self.tallies.decide(
                                &request,
                                &verdict,
                                Some(now.since(waiter.since)),
                                false,
                            );
                            self.resolved.push((number, Answer::Denied));
                        }
                        None => {
                            let Some(waiter) = self.waiting.leave(number, woken) else {
                                return Ok(());
                            };
                            let asks = waiter.request.asks();
                            let request = waiter.request.request(&asks);
                            let waited = now.since(waiter.since);
                            self.admit(&request, &verdict, Some(waited));
                            let wait = tally::plus(waited, verdict.delay());
                            self.resolved.push((number, Answer::Allowed { wait }));
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    fn reject(&mut self, number: u64, waiter: &Waiter, now: Timestamp) -> Result<(), StoreError> {
        let asks = waiter.request.asks();
        let verdict = self.peek(&asks)?;
        let request = waiter.request.request(&asks);
        self.tallies.decide(&request, &verdict, Some(now.since(waiter.since)), false);
        self.resolved.push((number, Answer::Denied));
        Ok(())
    }
}
