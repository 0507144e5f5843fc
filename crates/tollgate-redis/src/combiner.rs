//! Group commit: what waits at the same moment is decided in one call.

use std::cell::LazyCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::{sleep_until, timeout_at};
use tollgate_core::{StoreError, Timestamp};

use crate::deny_cache::DenyCache;
use crate::encode::{Batch, Line};
use crate::failure::{Failure, Refusal, STORE};
use crate::node::Node;
use crate::reply::{Reply, Row};
use crate::route::{Route, Stop, Trip};
use crate::stats::Counters;
use crate::ticket::{Answer, Leased, Request, Ticket};

/// Carries requests to one server, many in a call.
///
/// There is no timer. A request that finds nothing under way goes at once; those that
/// come meanwhile go together in the next call. The busier a server is, the larger the
/// calls become, and the less each request costs it.
#[derive(Debug)]
pub(crate) struct Combiner {
    route: Route,
    bounds: Bounds,
    shared: Arc<Shared>,
    lanes: Mutex<Lanes>,
}

/// How much may be under way, and how much may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Calls at a time.
    pub(crate) calls: usize,
    /// Requests in a call.
    pub(crate) batch: usize,
    /// Requests that wait for a call.
    pub(crate) queue: usize,
    /// From a request to its answer.
    pub(crate) timeout: Duration,
}

/// What all combiners of a store have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) runtime: Handle,
    pub(crate) deny_cache: DenyCache,
    pub(crate) counters: Arc<Counters>,
    /// Makes calls tell their replies from those of others.
    pub(crate) nonce: AtomicU64,
    /// Only tests have a time of their own, in microseconds.
    pub(crate) time: Option<Arc<AtomicU64>>,
}

#[derive(Debug, Default)]
struct Lanes {
    queue: VecDeque<Arc<Ticket>>,
    /// Calls that tasks of their own carry out, one after the other.
    calls: usize,
    /// Whether a request that found nothing under way is with Redis.
    is_direct: bool,
}

/// A call that whoever made the request carries out by waiting for the answer.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Combiner {
    pub(crate) fn new(route: Route, bounds: Bounds, shared: Arc<Shared>) -> Self {
        Self { route, bounds, shared, lanes: Mutex::default() }
    }

    /// Takes a request on its way. If it is to go alone, its caller carries it out, as a
    /// task would cost a change of threads there and back; it must be polled to its end,
    /// here or there.
    ///
    /// It does not stand in the way of others while it is not polled: they count the calls
    /// of tasks alone.
    pub(crate) fn submit(self: &Arc<Self>, ticket: &Arc<Ticket>) -> Option<Drive> {
        let mut lanes = self.lanes.lock();
        if lanes.calls == 0 && !lanes.is_direct {
            lanes.is_direct = true;
            drop(lanes);
            let guard = DirectLane(Arc::clone(self));
            let ticket = Arc::clone(ticket);
            return Some(Box::pin(async move { guard.0.call(vec![ticket], Lane::Direct).await }));
        }
        if lanes.queue.len() >= self.bounds.queue {
            drop(lanes);
            let reason = format_args!("{} requests are waiting already", self.bounds.queue);
            ticket.answer(Err(self.of_here(StoreError::not_charged(STORE, reason))));
            return None;
        }
        lanes.queue.push_back(Arc::clone(ticket));
        if lanes.calls < self.bounds.calls {
            lanes.calls += 1;
            drop(lanes);
            TaskLane::open(self);
        }
        None
    }

    /// The number of requests that wait for a call.
    pub(crate) fn queued(&self) -> usize {
        self.lanes.lock().queue.len()
    }

    /// Sends requests in one call and hands out the answers. What one node of a Cluster
    /// refused, it sends to the next: nothing has been charged by then.
    async fn call(self: &Arc<Self>, tickets: Vec<Arc<Ticket>>, lane: Lane) {
        self.travel(tickets, lane, self.route.at_once(), Trip::default()).await;
    }

    async fn travel(
        self: &Arc<Self>,
        mut tickets: Vec<Arc<Ticket>>,
        lane: Lane,
        mut next: Option<Stop>,
        mut trip: Trip,
    ) {
        loop {
            let stop = match next.take() {
                Some(stop) => stop,
                None => match self.stop(&mut trip, &tickets).await {
                    Some(stop) => stop,
                    None => return,
                },
            };
            if !stop.admits() {
                let reason = "the node that has the key does not answer";
                return self.fail(&Failure::Refused(Refusal::Other(reason.into())), &tickets);
            }
            let refusal = match self.call_at(&stop, &mut tickets, lane).await {
                After::Done => return,
                After::Again => {
                    next = Some(stop);
                    continue;
                }
                After::Refused(refusal) => refusal,
            };
            if !self.route.follow(&refusal, &stop, &mut trip) {
                return self.fail(&Failure::Refused(refusal), &tickets);
            }
            drop(stop);
            tickets.retain(|ticket| ticket.unsend());
            if refusal == Refusal::TryAgain && lane == Lane::Task {
                return self.divide(tickets, &trip);
            }
        }
    }

    /// The server for a call, unless time is nearly up by when there is one: the answer
    /// would come too late, and nobody would know whether it was a charge.
    async fn stop(&self, trip: &mut Trip, tickets: &[Arc<Ticket>]) -> Option<Stop> {
        let last = tickets.iter().map(|ticket| ticket.deadline).max()?;
        let last = last.checked_sub(self.bounds.timeout / 8).unwrap_or(last);
        let unanswered = Unanswered(tickets);
        let stop = self.watch(timeout_at(last.into(), self.route.stop(trip)), tickets).await;
        std::mem::forget(unanswered);
        if stop.is_err() {
            let is_partial = self.route.is_partial();
            tickets.iter().for_each(|ticket| ticket.expire(is_partial));
        }
        stop.ok()
    }

    /// Sends requests to one server. What it says if that refuses all of them is for the
    /// caller to deal with, and so are requests that are to be sent once more.
    async fn call_at(
        self: &Arc<Self>,
        stop: &Stop,
        tickets: &mut Vec<Arc<Ticket>>,
        lane: Lane,
    ) -> After {
        let node = stop.node();
        if !self.acquaint(stop, tickets).await {
            return After::Done;
        }
        tickets.retain(|ticket| ticket.send());
        let sent = Instant::now();
        let time = self.shared.time.as_ref().map(|time| time.load(Ordering::Relaxed));
        let now = time.map(Timestamp::from_micros).or_else(|| node.at_server(sent));
        let nonce = self.shared.nonce.fetch_add(1, Ordering::Relaxed);
        let mut batch = Batch::at(nonce, now.unwrap_or_default());
        tickets.retain(|ticket| self.add(&mut batch, ticket, node));
        if tickets.is_empty() {
            return After::Done;
        }
        let unanswered = Unanswered(tickets);
        let last = tickets.iter().map(|ticket| ticket.deadline).max().unwrap_or(sent);
        let call = node.call(&batch, time.map(Timestamp::from_micros), last, stop.is_asking());
        let outcome = match &tickets[..] {
            // The call ends at its deadline, so it takes no watch; and what is queued is
            // another call's.
            [_] if lane == Lane::Direct => call.await,
            _ => self.watch(call, tickets).await,
        };
        std::mem::forget(unanswered);
        self.shared.counters.count_call(tickets.len(), sent.elapsed(), &outcome);
        stop.learn(outcome.as_ref().err());
        match outcome.map(|bytes| batch.parse(&bytes)) {
            Ok(Ok(reply)) => {
                *tickets = self.distribute(&batch, reply, tickets, sent, node);
                if !tickets.is_empty() {
                    return After::Again;
                }
            }
            Ok(Err(bad)) => {
                // Whatever this answers, other replies may be off by one as well.
                node.distrust();
                self.doubt(tickets);
                for ticket in tickets {
                    ticket.answer(Err(StoreError::maybe_charged(STORE, bad).with_source(bad)));
                }
            }
            Err(Failure::Refused(refusal)) => return After::Refused(refusal),
            Err(failure) => {
                self.doubt(tickets);
                self.fail(&failure, tickets);
            }
        }
        After::Done
    }

    /// What these asked for may have been done, and nobody said so.
    fn doubt(&self, tickets: &[Arc<Ticket>]) {
        if tickets.iter().any(|ticket| matches!(ticket.request, Request::Reset { .. })) {
            self.shared.deny_cache.forget();
        }
    }

    /// Sees to it that a server's time is known, as a call without deadlines may be carried
    /// out when nobody waits for it any more. If it cannot be had, all are answered.
    async fn acquaint(&self, stop: &Stop, tickets: &[Arc<Ticket>]) -> bool {
        let node = stop.node();
        let last = tickets.iter().map(|ticket| ticket.deadline).max();
        let Some(last) = last.filter(|_| self.shared.time.is_none() && !node.knows_time()) else {
            return true;
        };
        let unanswered = Unanswered(tickets);
        let outcome = self.watch(node.learn_time(last), tickets).await;
        std::mem::forget(unanswered);
        let Err(failure) = outcome else { return true };
        stop.learn(Some(&failure));
        // To ask for the time charges nobody, whether it is answered or not.
        let reason = match failure {
            Failure::Lost(reason) => reason,
            Failure::Refused(refusal) => refusal.to_string(),
        };
        self.fail(&Failure::Refused(Refusal::Other(reason)), tickets);
        false
    }

    fn fail(&self, failure: &Failure, tickets: &[Arc<Ticket>]) {
        self.route.suspect();
        for ticket in tickets {
            ticket.answer(Err(self.of_here(failure.to_store_error())));
        }
    }

    /// An error that is one of a part of the store, if others are well.
    fn of_here(&self, error: StoreError) -> StoreError {
        if self.route.is_partial() { error.of_a_part() } else { error }
    }

    /// Sends requests some keys of which have moved and others have not in calls of their
    /// own, one for each set of keys. Most have theirs on one side; those that have not wait
    /// for them without keeping a lane from others.
    fn divide(self: &Arc<Self>, tickets: Vec<Arc<Ticket>>, trip: &Trip) {
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
            let (combiner, trip) = (Arc::clone(self), trip.clone());
            let call: Drive =
                Box::pin(async move { combiner.travel(group, Lane::Aside, None, trip).await });
            self.shared.runtime.spawn(call);
        }
    }

    /// Adds a request to a call to `node`, or answers it.
    fn add(&self, batch: &mut Batch, ticket: &Arc<Ticket>, node: &Node) -> bool {
        // Tests that have a time of their own have no deadlines in it.
        let deadline = match self.shared.time {
            None => node.at_server(ticket.deadline),
            Some(_) => None,
        };
        let added = match &ticket.request {
            Request::Decide(lines) => {
                let lines: SmallVec<[Line<'_>; 4]> = lines
                    .iter()
                    .map(|line| Line {
                        key: &line.state,
                        policy: &line.policy,
                        cost: line.cost,
                        enforce: line.enforce,
                    })
                    .collect();
                batch.decide(&lines, deadline)
            }
            Request::Settle { state, settled, receipt, actual, lifetime } => {
                batch.settle_within(*lifetime, state, settled, receipt, *actual, deadline)
            }
            Request::Renew { state, settled, receipt } => {
                batch.renew(state, settled, receipt, deadline)
            }
            Request::Reset { state } => batch.reset(state, deadline),
            Request::Lease { state, policy, spent, ask } => {
                batch.lease(state, policy, spent, *ask, deadline)
            }
        };
        match added {
            Ok(()) => true,
            Err(error) => {
                ticket.answer(Err(StoreError::invalid(STORE, error)));
                false
            }
        }
    }

    /// Waits for a call, and meanwhile answers those whose time is up, in the call and in
    /// the queue: the call may end in time for some and too late for others.
    async fn watch<C: Future>(&self, call: C, tickets: &[Arc<Ticket>]) -> C::Output {
        let mut call = pin!(call);
        let mut timer = pin!(sleep_until(self.expire(tickets).into()));
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = call.as_mut().poll(cx) {
                return Poll::Ready(outcome);
            }
            while timer.as_mut().poll(cx).is_ready() {
                let next = self.expire(tickets);
                timer.as_mut().reset(next.into());
            }
            Poll::Pending
        })
        .await
    }

    /// Answers those whose time is up, and says when to look next.
    fn expire(&self, sent: &[Arc<Ticket>]) -> Instant {
        let now = Instant::now();
        let mut next = now + self.bounds.timeout;
        // Asked once, and only if there is something to say.
        let is_partial = LazyCell::new(|| self.route.is_partial());
        for ticket in sent {
            if ticket.deadline <= now {
                ticket.expire(*is_partial);
            } else {
                next = next.min(ticket.deadline);
            }
        }
        let mut lanes = self.lanes.lock();
        while let Some(ticket) = lanes.queue.front() {
            if ticket.deadline > now {
                next = next.min(ticket.deadline);
                break;
            }
            ticket.expire(*is_partial);
            lanes.queue.pop_front();
        }
        next
    }

    /// Hands out the answers, and returns the requests that were refused as late though
    /// they came in time by the clock here. They go again with what is known now, and at
    /// once: in the queue nobody would look at the time for them.
    fn distribute(
        &self,
        batch: &Batch,
        reply: Reply,
        tickets: &[Arc<Ticket>],
        sent: Instant,
        node: &Node,
    ) -> Vec<Arc<Ticket>> {
        let mut again = Vec::new();
        let received = Instant::now();
        for (ticket, row) in tickets.iter().zip(reply.rows) {
            let answer = match row {
                Row::Verdict(verdict) => {
                    self.shared.deny_cache.learn(ticket, &verdict, sent);
                    Ok(Answer::Verdict(verdict))
                }
                Row::Settlement(settlement) => Ok(Answer::Settlement(settlement)),
                Row::Leased(granted) => {
                    Ok(Answer::Leased(Leased { granted, decided_at: reply.now, sent }))
                }
                Row::Renewal(begun) => {
                    let renewed = |at| match &ticket.request {
                        Request::Renew { receipt, .. } => Some(receipt.begun_at(at)),
                        _ => None,
                    };
                    Ok(Answer::Renewal(begun.and_then(renewed)))
                }
                Row::Reset => {
                    // Denials from before it may have come since this was sent.
                    self.shared.deny_cache.forget();
                    Ok(Answer::Reset)
                }
                Row::Fault { fault, key } => {
                    let key = batch.keys().nth(key).unwrap_or_default();
                    let key = String::from_utf8_lossy(key);
                    // Redis is well: nobody else should suffer from this.
                    Err(StoreError::invalid(STORE, format_args!("{key}: {fault}"))
                        .with_source(fault))
                }
                Row::Stale => {
                    self.shared.counters.count_late();
                    if received < ticket.deadline && ticket.take_back() {
                        again.push(Arc::clone(ticket));
                        continue;
                    }
                    Err(StoreError::not_charged(STORE, "the request came too late to be decided"))
                }
            };
            ticket.answer(answer);
        }
        if again.is_empty() {
            node.learn(reply.now, sent);
        } else {
            // The two clocks differ by more than was known.
            node.relearn(reply.now, sent);
        }
        again
    }
}

/// What is left to do after a call.
enum After {
    Done,
    /// What is left of the requests is to be sent once more.
    Again,
    /// Nothing was carried out.
    Refused(Refusal),
}

/// Which way a call goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Direct,
    Task,
    /// Beside the others, as it may have to wait.
    Aside,
}

/// The way of a request that found nothing under way.
struct DirectLane(Arc<Combiner>);

impl Drop for DirectLane {
    fn drop(&mut self) {
        self.0.lanes.lock().is_direct = false;
    }
}

/// The way of all others: one call after the other for as long as requests wait.
struct TaskLane {
    combiner: Arc<Combiner>,
    is_open: bool,
}

impl TaskLane {
    /// Whoever opens a lane has counted it.
    fn open(combiner: &Arc<Combiner>) {
        let lane = Self { combiner: Arc::clone(combiner), is_open: true };
        combiner.shared.runtime.spawn(lane.run());
    }

    async fn run(mut self) {
        while let Some(tickets) = self.next() {
            self.combiner.call(tickets, Lane::Task).await;
        }
    }

    /// The requests of the next call. Without any the lane closes, under the lock, so that
    /// no request is queued behind a lane that has stopped looking.
    fn next(&mut self) -> Option<Vec<Arc<Ticket>>> {
        let mut lanes = self.combiner.lanes.lock();
        let mut keys = 0;
        let fits = |ticket: &&Arc<Ticket>| {
            let more = ticket.request.keys();
            keys += more;
            // The first goes whatever it holds: left in the queue it would stop all others.
            keys <= Batch::MAX || keys == more
        };
        let count = lanes.queue.iter().take(self.combiner.bounds.batch).take_while(fits).count();
        if count == 0 {
            lanes.calls -= 1;
            self.is_open = false;
            return None;
        }
        Some(lanes.queue.drain(..count).collect())
    }
}

impl Drop for TaskLane {
    /// A lane that is not closed by itself ends with its runtime.
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut lanes = self.combiner.lanes.lock();
        lanes.calls -= 1;
        for ticket in lanes.queue.drain(..) {
            ticket.strand();
        }
    }
}

/// Requests of a call that is given up with its runtime.
struct Unanswered<'a>(&'a [Arc<Ticket>]);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for ticket in self.0 {
            ticket.strand();
        }
    }
}
