//! Requests that a node of a Cluster sends on to another node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout_at;
use tollgate_core::StoreError;

use super::deadlines::Unanswered;
use super::lane::Lane;
use super::{Combiner, Drive, NO_SERVER};
use crate::failure::{Failure, Refusal, STORE};
use crate::future::Left;
use crate::ticket::Ticket;
use crate::topology::{Member, Place};

/// A server that a call is sent to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) member: Arc<Member>,
    /// The node does not have the slot yet, but these keys of it.
    pub(super) is_asking: bool,
    redirects: Redirects,
    /// A slot for a call that was redirected here. A task holds it.
    _room: Option<OwnedSemaphorePermit>,
}

/// The redirections of requests so far.
#[derive(Clone, Debug, Default)]
struct Redirects {
    /// Times that they were sent on, since their keys were last found on two nodes at once.
    count: u32,
    /// Times that their keys were found on two nodes at once.
    halves: u32,
    /// To be kept before they go on.
    pause: Duration,
    /// The node that they were sent to, and whether it has to be asked; else the leader.
    next: Option<(Arc<Member>, bool)>,
}

/// More often than this nodes do not send on a call unless they disagree.
const MOST_REDIRECTIONS: u32 = 5;
/// The pause before a third redirect of a call, because nodes that disagree need a moment, and
/// before a call for keys that are moving is repeated.
const PAUSE: Duration = Duration::from_millis(2);
/// It is doubled for each time that keys were still on their way, but not more often.
const LONGEST: u32 = 3;

impl Target {
    pub(super) fn first(member: &Arc<Member>) -> Self {
        let (member, redirects) = (Arc::clone(member), Redirects::default());
        Self { member, is_asking: false, redirects, _room: None }
    }
}

impl Combiner {
    /// Sends requests on to the member that has their key now.
    pub(super) fn hand_over(self: &Arc<Self>, member: &Arc<Member>, ticket: &Arc<Ticket>) {
        if let Some(call) = self.queue(member, ticket) {
            self.runtime.spawn(Left { call, tickets: vec![Arc::clone(ticket)] });
        }
    }

    /// Sends requests of one slot that a server refused to the server that it named. Nothing has
    /// been charged.
    pub(super) fn redirect(
        self: &Arc<Self>,
        refusal: Refusal,
        from: &Target,
        tickets: &[Arc<Ticket>],
    ) {
        let Some(redirects) = self.follow(&refusal, from, tickets[0].slot) else {
            return self.fail(&from.member, &Failure::Refused(refusal), tickets);
        };
        let tickets = tickets.iter().filter(|ticket| ticket.unsend()).cloned();
        if refusal != Refusal::TryAgain {
            return self.go_on(tickets.collect(), redirects);
        }
        // The keys of some requests have moved, and the keys of others have not. Most requests have
        // all keys on one side. The other requests wait, and do not delay them.
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

    /// Sends requests in a call of their own.
    fn go_on(self: &Arc<Self>, tickets: Vec<Arc<Ticket>>, redirects: Redirects) {
        if tickets.is_empty() {
            return;
        }
        let (combiner, sent) = (Arc::clone(self), tickets.clone());
        let call: Drive = Box::pin(async move {
            if let Some(target) = combiner.target(redirects, &sent).await {
                combiner.call(&target, sent, Lane::Aside).await;
            }
        });
        self.runtime.spawn(Left { call, tickets });
    }

    /// Waits for a server that has room for a call. `None` if the time of the requests is nearly
    /// over first.
    async fn target(&self, redirects: Redirects, tickets: &[Arc<Ticket>]) -> Option<Target> {
        let find = async {
            tokio::time::sleep(redirects.pause).await;
            let (member, is_asking) = match redirects.next.clone() {
                Some(next) => next,
                None => (self.topology.leader(tickets[0].slot).await, false),
            };
            // It is never closed.
            let room = Arc::clone(&member.room).acquire_owned().await.ok();
            Target { member, is_asking, redirects, _room: room }
        };
        let unanswered = Unanswered(tickets);
        let find = timeout_at(self.last_call(tickets), find);
        let target = self.until_deadlines(find, None, tickets).await;
        std::mem::forget(unanswered);
        if target.is_err() {
            for ticket in tickets {
                ticket.answer(Err(StoreError::not_charged(STORE, NO_SERVER)));
            }
        }
        target.ok()
    }

    /// Where requests go on that were refused at a server. `None` if they do not.
    fn follow(&self, refusal: &Refusal, from: &Target, slot: u16) -> Option<Redirects> {
        let (asked, topology) = (&*from.member.place.host, &self.topology);
        let mut redirects = Redirects { pause: Duration::ZERO, ..from.redirects.clone() };
        let (member, is_asking) = match refusal {
            Refusal::Moved { to, .. } => {
                (topology.moved(slot, &Place::of_redirection(to, asked)?)?, false)
            }
            Refusal::Ask { to } => (topology.named(&Place::of_redirection(to, asked)?)?, true),
            Refusal::TryAgain => {
                redirects.pause = PAUSE * (1 << redirects.halves.min(LONGEST));
                redirects.halves += 1;
                // The nodes agree: each has sent it on for what it does not have itself.
                redirects.count = 0;
                redirects.next = None;
                return Some(redirects);
            }
            _ => return None,
        };
        redirects.next = Some((member, is_asking));
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

    use tokio::time::Instant;

    use super::*;
    use crate::RedisStore;
    use crate::names::Name;
    use crate::ticket::Request;

    #[test]
    fn who_waits_for_keys_that_move_is_told_when_the_runtime_is_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async { RedisStore::connect("redis://127.0.0.1:1").unwrap() });
        drop(runtime);
        let last = Instant::now() + Duration::from_secs(60);
        let ticket = Arc::new(Ticket::new(Request::Reset { state: Name::new() }, 0, 0, last));
        store.0.combiner.go_on(vec![Arc::clone(&ticket)], Redirects::default());
        let answer = ticket.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(answer, Poll::Ready(Err(error)) if !error.may_have_charged()));
    }
}
