//! Requests that a Cluster node redirects to another node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep_until, timeout_at};
use tollgate_core::StoreError;

use super::{Combiner, Detached, Drive, Lane, NO_SERVER};
use crate::calls::failure::{Failure, Refusal, STORE};
use crate::calls::ticket::Ticket;
use crate::client::node::Node;

/// Where to send a call.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) node: Arc<Node>,
    /// The node does not have the slot yet, only these keys.
    pub(super) is_asking: bool,
    redirects: Redirects,
    /// A permit for a call that was redirected here, held by its task.
    _room: Option<OwnedSemaphorePermit>,
}

/// A request's redirections so far.
#[derive(Clone, Debug, Default)]
struct Redirects {
    /// The number of redirections since its keys were last found split over two nodes.
    count: u32,
    /// How often its keys were found split over two nodes.
    halves: u32,
    /// The pause before the next attempt.
    pause: Duration,
    /// The node to try next, and whether to send `ASKING` first. `None` for the slot's leader.
    next: Option<(Arc<Node>, bool)>,
}

/// Nodes that redirect a call more often disagree about the slot.
const MOST_REDIRECTIONS: u32 = 5;
/// The pause before a third redirection, because nodes that disagree need a moment, and before
/// repeating a call for keys that are moving.
const PAUSE: Duration = Duration::from_millis(2);
/// How many times the pause doubles while keys are still moving.
const LONGEST: u32 = 3;

impl Route {
    pub(super) fn first(node: &Arc<Node>) -> Self {
        let (node, redirects) = (Arc::clone(node), Redirects::default());
        Self { node, is_asking: false, redirects, _room: None }
    }
}

impl Combiner {
    /// Queues a request at the node that has its key now.
    pub(super) fn hand_over(self: &Arc<Self>, node: &Arc<Node>, ticket: &Arc<Ticket>) {
        let (combiner, ticket) = (Arc::clone(self), Arc::clone(ticket));
        if let Some(call) = self.queue(node, &ticket) {
            self.runtime.spawn(Detached { call, tickets: vec![ticket] });
            return;
        }
        // Requests in the queue expire in its order, but this request's deadline may be
        // the earliest.
        self.runtime.spawn(async move {
            sleep_until(ticket.deadline).await;
            combiner.expire(&[ticket]);
        });
    }

    /// Redirects requests in one slot to the server that a rejection named. They have not been
    /// charged.
    pub(super) fn redirect(
        self: &Arc<Self>,
        refusal: Refusal,
        from: &Route,
        tickets: &[Arc<Ticket>],
    ) {
        let Some(redirects) = self.follow(&refusal, from, tickets[0].slot) else {
            return self.fail(&from.node, &Failure::Refused(refusal), tickets);
        };
        let tickets = tickets.iter().filter(|ticket| ticket.unsend()).cloned();
        if refusal != Refusal::TryAgain {
            return self.go_on(tickets.collect(), redirects);
        }
        // Some keys have moved and some have not. Most requests have all keys on one node, and must
        // not be delayed by requests with split keys.
        let mut groups: Vec<Vec<Arc<Ticket>>> = Vec::new();
        for ticket in tickets {
            let belongs =
                |group: &&mut Vec<Arc<Ticket>>| group[0].request.shares_keys_with(&ticket.request);
            match groups.iter_mut().find(belongs) {
                Some(group) => group.push(ticket),
                None => groups.push(vec![ticket]),
            }
        }
        groups.into_iter().for_each(|group| self.go_on(group, redirects.clone()));
    }

    /// Sends requests in a separate call.
    fn go_on(self: &Arc<Self>, tickets: Vec<Arc<Ticket>>, redirects: Redirects) {
        if tickets.is_empty() {
            return;
        }
        let (combiner, sent) = (Arc::clone(self), tickets.clone());
        let call: Drive = Box::pin(async move {
            if let Some(route) = combiner.route(redirects, &sent).await {
                combiner.call(&route, sent, Lane::Aside).await;
            }
        });
        self.runtime.spawn(Detached { call, tickets });
    }

    /// Waits for a server with room for a call. `None` if the requests' last deadline is too close.
    async fn route(&self, redirects: Redirects, tickets: &[Arc<Ticket>]) -> Option<Route> {
        let find = async {
            tokio::time::sleep(redirects.pause).await;
            let (node, is_asking) = match redirects.next.clone() {
                Some(next) => next,
                None => (self.topology.leader(tickets[0].slot).await, false),
            };
            // The semaphore is never closed.
            let room = Arc::clone(&node.room).acquire_owned().await.ok();
            Route { node, is_asking, redirects, _room: room }
        };
        let find = timeout_at(self.last_call(tickets), find);
        let route = self.until_deadlines(find, None, tickets).await;
        if route.is_err() {
            for ticket in tickets {
                ticket.answer(Err(StoreError::not_charged(STORE, NO_SERVER)));
            }
        }
        route.ok()
    }

    /// Returns where to send requests after a rejection. `None` if they fail.
    fn follow(&self, refusal: &Refusal, from: &Route, slot: u16) -> Option<Redirects> {
        let (asked, topology) = (&*from.node.address.host, &self.topology);
        let mut redirects = Redirects { pause: Duration::ZERO, ..from.redirects.clone() };
        if *refusal == Refusal::TryAgain {
            redirects.pause = PAUSE * (1 << redirects.halves.min(LONGEST));
            redirects.halves += 1;
            // The nodes agree: each redirected the call because it lacks some of the keys.
            redirects.count = 0;
            redirects.next = None;
            return Some(redirects);
        }
        let (to, is_asking) = refusal.redirection(asked)?;
        let node = if is_asking { topology.named(&to)? } else { topology.moved(slot, &to)? };
        redirects.next = Some((node, is_asking));
        redirects.count += 1;
        if redirects.count > 2 {
            redirects.pause = PAUSE;
        }
        (redirects.count <= MOST_REDIRECTIONS).then_some(redirects)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::RedisStore;
    use crate::calls::ticket::Request;
    use crate::script::names::Name;

    #[tokio::test(start_paused = true)]
    async fn handed_over_request_keeps_its_deadline() {
        let store = RedisStore::connect("redis://127.0.0.1:1").unwrap();
        let combiner = &store.0.combiner;
        let node = combiner.topology.leader_now(0).unwrap();
        let start = Instant::now();
        let hand_over = |deadline| {
            let deadline = start + Duration::from_millis(deadline);
            let request = Request::Reset { state: Name::new(), hash: 0 };
            let ticket = Arc::new(Ticket::new(request, 0, 0, deadline));
            combiner.hand_over(&node, &ticket);
            ticket
        };
        for _ in 0..4 {
            hand_over(1_000);
            sleep(Duration::from_millis(1)).await;
        }
        // It is queued behind later deadlines.
        let late = hand_over(40);
        assert!(late.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        sleep(Duration::from_millis(40)).await;
        assert!(late.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn redirected_request_fails_without_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async { RedisStore::connect("redis://127.0.0.1:1").unwrap() });
        drop(runtime);
        let last = Instant::now() + Duration::from_secs(60);
        let ticket = Ticket::new(Request::Reset { state: Name::new(), hash: 0 }, 0, 0, last);
        let ticket = Arc::new(ticket);
        store.0.combiner.go_on(vec![ticket.clone()], Redirects::default());
        let answer = ticket.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(answer, Poll::Ready(Err(error)) if !error.may_have_charged()));
    }
}
