//! All interleavings of three requests for one key, and of their cancellation at any step.
//!
//! Each step is an action of a program that drives the engine: a request arrives, the store decides
//! its charges, the reply reaches the request, the request wakes, or its caller leaves. The test
//! tries every order of these actions.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::task::Waker;
use std::time::Duration;

use tollgate_core::{
    Algorithm, Cost, Key, Micros, Policy, Quota, ReceiptId, Store, StoreExt, Timestamp, Verdict,
};
use tollgate_engine::{
    Asking, Charges, Conclusion, Limit, Limits, Mode, Question, Queue, Refunds, Request, Sleeping,
    Step,
};
use tollgate_memory::{Clock as _, ManualClock, MemoryStore};

/// Repeats a test with every sequence of choices.
#[derive(Default)]
struct Choices {
    /// Each choice so far, and the number of its options.
    made: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    fn choose(&mut self, options: usize) -> usize {
        if self.next == self.made.len() {
            self.made.push((0, options));
        }
        let (choice, of) = self.made[self.next];
        assert_eq!(of, options, "the test is not deterministic");
        self.next += 1;
        choice
    }

    /// Returns `false` after the last sequence.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((choice, options)) = self.made.pop() {
            if choice + 1 < options {
                self.made.push((choice + 1, options));
                return true;
            }
        }
        false
    }
}

enum State {
    Away,
    /// The question is on its way to the store.
    Asked(Request, Asking),
    /// The store's reply is on its way to the request.
    Decided(Request, Asking, Verdict),
    Asleep(Request, Sleeping),
    Passed {
        charged_at: Timestamp,
    },
    Rejected,
    Left,
}

struct World<'a> {
    limits: &'a Limits,
    policy: &'a Policy,
    costs: [u64; 3],
    clock: ManualClock,
    store: &'a MemoryStore<ManualClock>,
    key: Key,
    queue: Queue,
    states: [State; 3],
    /// The requests in the order of their arrival.
    arrived: Vec<usize>,
    /// When each request began to wait.
    since: [Option<Timestamp>; 3],
    /// Whether each request was woken since it fell asleep.
    woken: [bool; 3],
    receipts: usize,
    cancels: usize,
}

#[derive(Clone, Copy)]
enum Action {
    Arrive(usize),
    Decide(usize),
    Deliver(usize),
    Wake(usize),
    Leave(usize),
    /// Time passes until the next request has to wake.
    Tick,
}

const MAX_WAIT: Duration = Duration::from_millis(1_500);

impl World<'_> {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Everything that can happen next.
    fn actions(&mut self) -> Vec<Action> {
        let (mut actions, mut is_waiting) = (Vec::new(), false);
        for (number, state) in self.states.iter().enumerate() {
            match state {
                State::Away if self.is_next(number) => actions.push(Action::Arrive(number)),
                State::Away => {}
                State::Asked(..) => actions.push(Action::Decide(number)),
                State::Decided(..) => actions.push(Action::Deliver(number)),
                State::Asleep(_, sleeping) => {
                    is_waiting = true;
                    self.woken[number] |= sleeping.is_woken(Waker::noop());
                    if self.woken[number] || sleeping.until <= self.clock.now() {
                        actions.push(Action::Wake(number));
                    }
                }
                State::Passed { .. } | State::Rejected | State::Left => {}
            }
        }
        // Everything else takes no time, so the waits are known exactly.
        if actions.is_empty() && is_waiting {
            actions.push(Action::Tick);
        }
        if self.cancels > 0 {
            let is_here = |number: &usize| {
                matches!(
                    self.states[*number],
                    State::Asked(..) | State::Decided(..) | State::Asleep(..)
                )
            };
            actions.extend((0..3).filter(is_here).map(Action::Leave));
        }
        actions
    }

    /// Requests with equal costs arrive in the order of their numbers, because only their names would
    /// differ otherwise.
    fn is_next(&self, number: usize) -> bool {
        let is_before = |other: usize| {
            self.costs[other] == self.costs[number] && matches!(self.states[other], State::Away)
        };
        !(0..number).any(is_before)
    }

    fn take(&mut self, action: Action) {
        match action {
            Action::Arrive(number) => {
                let cost = Cost::new(self.costs[number]);
                let charges = Charges::of_each(self.limits, &self.key, cost);
                self.arrived.push(number);
                let arrival = self.queue.arrive(0);
                let (request, asking) = Request::start(self.limits, charges, Some(arrival));
                self.step(number, request, Step::Ask(asking));
            }
            Action::Decide(number) => {
                let State::Asked(request, asking) = self.leave(number) else { unreachable!() };
                let verdict = self.ask(&request, asking.question);
                self.states[number] = State::Decided(request, asking, verdict);
            }
            Action::Deliver(number) => {
                let State::Decided(mut request, asking, verdict) = self.leave(number) else {
                    unreachable!()
                };
                let step = request.on_reply(asking, self.limits, Ok(verdict), self.now());
                self.step(number, request, step);
            }
            Action::Wake(number) => {
                let State::Asleep(mut request, sleeping) = self.leave(number) else {
                    unreachable!()
                };
                self.woken[number] = false;
                let step = request.on_wake(sleeping, self.now());
                self.step(number, request, step);
            }
            Action::Leave(number) => {
                self.cancels -= 1;
                self.cancel(number);
            }
            Action::Tick => {
                let untils = self.states.iter().filter_map(|state| match state {
                    State::Asleep(_, sleeping) => Some(sleeping.until),
                    _ => None,
                });
                let until = untils.min().unwrap();
                self.clock.advance(until.since(self.now()));
            }
        }
    }

    fn leave(&mut self, number: usize) -> State {
        std::mem::replace(&mut self.states[number], State::Left)
    }

    fn ask(&self, request: &Request, question: Question) -> Verdict {
        let charges = question.charges(self.limits, request.charges());
        self.store.decide(&charges).into_inner().unwrap()
    }

    /// The caller leaves. If the store has decided or will decide, its charge is refunded.
    fn cancel(&mut self, number: usize) {
        let (mut request, asking, verdict) = match self.leave(number) {
            State::Asked(request, asking) => {
                let verdict = self.ask(&request, asking.question);
                (request, asking, verdict)
            }
            State::Decided(request, asking, verdict) => (request, asking, verdict),
            State::Asleep(..) => return,
            _ => unreachable!(),
        };
        let refunds = asking.refunds(Refunds::All);
        let mut charges = request.take_charges();
        drop(asking);
        if verdict.is_admitted() {
            charges.fill_in(&verdict);
            let next_id = || {
                self.receipts += 1;
                ReceiptId(self.receipts as u128)
            };
            let receipts: Vec<_> = refunds.of(self.limits, &charges, next_id).collect();
            for receipt in receipts {
                let settled = self.store.settle(&receipt, Cost::ZERO).now();
                assert!(matches!(settled, Ok(Ok(_))));
            }
        }
    }

    fn step(&mut self, number: usize, request: Request, step: Step) {
        let now = self.now();
        if request.has_queued() {
            self.since[number].get_or_insert(now);
        }
        self.states[number] = match step {
            Step::Ask(asking) => {
                if asking.question == Question::Charge {
                    self.check_order(number);
                }
                State::Asked(request, asking)
            }
            Step::Sleep(sleeping) => {
                let gives_up = self.since[number].unwrap() + Micros::from(MAX_WAIT);
                let is_short = sleeping.until <= gives_up && now < gives_up;
                assert!(is_short, "it waits for too long");
                State::Asleep(request, sleeping)
            }
            Step::Done(Conclusion::Pass(_)) => {
                let charged_at = request.charges().decided_at();
                State::Passed { charged_at }
            }
            Step::Done(_) => State::Rejected,
        };
    }

    /// No request takes units while an earlier request waits.
    fn check_order(&self, number: usize) {
        let earlier = self.arrived.iter().take_while(|other| **other != number);
        for other in earlier {
            let is_queued = match &self.states[*other] {
                State::Asked(_, asking) | State::Decided(_, asking, _) => asking.is_queued(),
                State::Asleep(..) => true,
                _ => false,
            };
            assert!(!is_queued, "{number} overtakes {other}");
        }
    }

    /// The store counts the requests that passed in the current window, and no others.
    fn check_units(&self) {
        let window = |at: Timestamp| at.as_micros() / self.policy.window().get();
        let counts = |(state, cost): (&State, u64)| match state {
            State::Passed { charged_at } if window(*charged_at) == window(self.now()) => cost,
            _ => 0,
        };
        let used: u64 = self.states.iter().zip(self.costs).map(counts).sum();
        let peeked = self.store.peek(self.policy, &self.key).into_inner().unwrap();
        let remaining = peeked.decisions()[0].remaining;
        assert_eq!(remaining, self.policy.capacity() - used, "units are lost");
    }
}

/// Tries all orders, and returns how many there are and how often each number of requests passed.
fn explore(costs: [u64; 3], cancels: usize) -> (usize, [usize; 4]) {
    let quota = Quota::new(2, Duration::from_secs(1));
    let policy = Policy::new("p", quota, Algorithm::FixedWindowCounter).unwrap();
    let limits = Limits::new([Limit::new(policy.clone()).mode(Mode::Wait(MAX_WAIT))]);
    let (mut choices, mut orders, mut passed) = (Choices::default(), 0_usize, [0; 4]);
    let start = Timestamp::from_micros(1_000_000_000);
    let clock = ManualClock::at(start);
    let store = MemoryStore::builder().clock(clock.clone()).shards(1).build();
    loop {
        clock.set(start);
        let mut world = World {
            limits: &limits,
            policy: &policy,
            costs,
            store: &store,
            // A key without state, because a new store for each order takes longer than the test.
            key: Key::new(orders.to_be_bytes()),
            clock: clock.clone(),
            queue: Queue::new(),
            states: [const { State::Away }; 3],
            arrived: Vec::new(),
            since: [None; 3],
            woken: [false; 3],
            // IDs are unique in the store.
            receipts: orders << 8,
            cancels,
        };
        loop {
            let actions = world.actions();
            if actions.is_empty() {
                break;
            }
            let action = actions[choices.choose(actions.len())];
            world.take(action);
        }
        world.check_units();
        assert!(matches!(store.reset(&policy, &world.key).now(), Ok(Ok(()))));
        orders += 1;
        let pass = |state: &&State| matches!(state, State::Passed { .. });
        passed[world.states.iter().filter(pass).count()] += 1;
        if !choices.advance() {
            return (orders, passed);
        }
    }
}

#[test]
fn requests_pass_in_order_under_all_interleavings() {
    for costs in [[1, 1, 1], [2, 1, 1], [2, 2, 2], [1, 2, 1]] {
        let (orders, passed) = explore(costs, 0);
        println!("{costs:?}: {orders} orders, {passed:?}");
        assert!(orders > 200);
        // Two units a second for up to 1.5 seconds: after the first window, one more passes.
        let units: u64 = costs.iter().sum();
        assert_eq!(passed[3] > 0, units <= 4, "{costs:?}: {passed:?}");
    }
}

#[test]
fn cancels_lose_no_unit_at_any_step() {
    for costs in [[1, 1, 1], [2, 1, 1]] {
        let (orders, passed) = explore(costs, 1);
        println!("{costs:?}: {orders} orders, {passed:?}");
        assert!(orders > 2_000 && passed[2] > 0);
    }
}
