//! The way of requests from server to server, until one carries them out.

use std::sync::Arc;

use tokio::time::timeout_at;
use tollgate_core::StoreError;

use super::call::After;
use super::deadlines::Unanswered;
use super::lane::Lane;
use super::{Combiner, Drive};
use crate::failure::{Failure, Refusal, STORE};
use crate::pace::Ended;
use crate::route::{Redirects, Target};
use crate::ticket::Ticket;

impl Combiner {
    /// Sends requests in one call and hands out the answers. What one node of a Cluster
    /// refused, it sends to the next: nothing has been charged by then.
    pub(super) async fn call(self: &Arc<Self>, tickets: Vec<Arc<Ticket>>, lane: Lane) -> Ended {
        self.redirect(tickets, lane, self.route.at_once(), Redirects::default()).await
    }

    async fn redirect(
        self: &Arc<Self>,
        mut tickets: Vec<Arc<Ticket>>,
        lane: Lane,
        mut next: Option<Target>,
        mut redirects: Redirects,
    ) -> Ended {
        loop {
            let target = match next.take() {
                Some(target) => target,
                None => match self.target(&mut redirects, &tickets).await {
                    Some(target) => target,
                    None => return Ended::Refused,
                },
            };
            if target.node().guard().is_open() {
                self.refuse(target.node().guard(), &tickets);
                return Ended::Refused;
            }
            let refusal = match self.call_at(&target, &mut tickets, lane).await {
                After::Done(ended) => return ended,
                After::Again => {
                    next = Some(target);
                    continue;
                }
                After::Refused(refusal) => refusal,
            };
            if !self.route.follow(&refusal, &target, &mut redirects) {
                self.fail(&Failure::Refused(refusal), &tickets);
                return Ended::Refused;
            }
            drop(target);
            tickets.retain(|ticket| ticket.unsend());
            if refusal == Refusal::TryAgain && lane == Lane::Task {
                self.divide(tickets, &redirects);
                return Ended::Refused;
            }
        }
    }

    /// The server for a call, unless time is nearly up by when there is one: the answer
    /// would come too late, and nobody would know whether it was a charge.
    async fn target(&self, redirects: &mut Redirects, tickets: &[Arc<Ticket>]) -> Option<Target> {
        let last = tickets.iter().map(|ticket| ticket.deadline).max()?;
        let last = last.checked_sub(self.bounds.timeout / 8).unwrap_or(last);
        let unanswered = Unanswered(tickets);
        let target = self
            .until_deadlines(timeout_at(last.into(), self.route.target(redirects)), tickets)
            .await;
        std::mem::forget(unanswered);
        if target.is_err() {
            for ticket in tickets {
                let error = StoreError::not_charged(STORE, "no server for the key in time");
                ticket.answer(Err(self.of_here(error)));
            }
        }
        target.ok()
    }

    /// Sends requests some keys of which have moved and others have not in calls of their
    /// own, one for each set of keys. Most have theirs on one side; those that have not wait
    /// for them without keeping a lane from others.
    fn divide(self: &Arc<Self>, tickets: Vec<Arc<Ticket>>, redirects: &Redirects) {
        let mut groups: Vec<Vec<Arc<Ticket>>> = Vec::new();
        for ticket in tickets {
            let belongs =
                |group: &&mut Vec<Arc<Ticket>>| group[0].request.shares_keys_with(&ticket.request);
            match groups.iter_mut().find(belongs) {
                Some(group) => group.push(ticket),
                None => groups.push(vec![ticket]),
            }
        }
        for group in groups {
            let (combiner, redirects) = (Arc::clone(self), redirects.clone());
            let divided = Divided(group.clone());
            let call: Drive = Box::pin(async move {
                combiner.redirect(group, Lane::Aside, None, redirects).await;
                drop(divided);
            });
            self.shared.runtime.spawn(call);
        }
    }
}

/// Requests in the hands of the runtime, which may end before it has begun with them. When
/// they have come to their end they are answered, and this tells nobody anything.
struct Divided(Vec<Arc<Ticket>>);

impl Drop for Divided {
    fn drop(&mut self) {
        self.0.iter().for_each(|ticket| ticket.fail_pending());
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::names::Name;
    use crate::ticket::Request;
    use crate::{RedisStore, Way};

    #[test]
    fn who_waits_for_keys_that_move_is_told_when_the_runtime_is_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async { RedisStore::connect("redis://127.0.0.1:1").unwrap() });
        let Way::One(_, combiner) = &store.0.way else { panic!("one server") };
        drop(runtime);
        let last = Instant::now() + Duration::from_secs(60);
        let ticket = Arc::new(Ticket::new(Request::Reset { state: Name::new() }, 0, last));
        combiner.divide(vec![Arc::clone(&ticket)], &Redirects::default());
        let answer = ticket.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(answer, Poll::Ready(Err(error)) if !error.may_have_charged()));
    }
}
