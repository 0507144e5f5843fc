//! Searches every interleaving of two replicas that lease from a key, up to a bounded depth.
//!
//! The replicas run this crate's code, and the reference store acts as Redis. Calls and answers
//! arrive in any order or not at all, the key is reset, a replica returns its leases, and the clocks
//! drift apart. After each step the limit must hold, and no unit may be spent from a block that Redis
//! no longer holds. A replica that has returned its leases spends no unit before its next request, and
//! reports each block that it knows, unless the block lapses.

mod returned;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tollgate_core::{
    Algorithm, Charge, Cost, Granted, Key, Lease, Policy, Quota, Resolution, StoreError, Timestamp,
};
use tollgate_store_tests::is_long;
use tollgate_store_tests::reference::Reference;

use super::{Blocks, Plan, Returned};
use crate::calls::ticket::Leased;
use crate::clock::{Clock, Moment};
use crate::lease::demand::HOT;
use crate::script::encode::{Ask, Spent};

const LIMIT: u64 = 5;
const WINDOW: u64 = 2_600_000;
const TTL: u64 = 1_300_000;
/// Redis' microseconds for each of the replicas': clocks run at the same rate, or Redis' clock is a
/// twelfth faster and the replicas' a twelfth slower, or the reverse.
const RATES: [(u64, u64); 3] = [(1, 1), (13, 11), (11, 13)];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Replica sends the call that is planned, if any.
    Send(usize),
    /// Redis executes the replica's call.
    Execute(usize),
    /// The replica receives the answer.
    Receive(usize),
    /// The call or its answer is lost. Redis may still execute the call later.
    GiveUp(usize),
    /// Redis executes a call that its replica has given up.
    ExecuteLate,
    /// The replica spends leased units.
    Spend(usize, u64),
    /// A busy replica's request for a unit is decided by Redis.
    Decide(usize),
    Reset,
    /// The replica returns its leases, while its call may be in flight. Redis executes the report, or
    /// the replica does not get an answer in time.
    Return(usize),
    ReturnLate(usize),
    /// Time passes until the last instant of the replica's block, or for a part of the lease time.
    PassToLast(usize),
    Pass(u64),
}

#[derive(Clone)]
struct World {
    redis: Reference,
    /// A hash of Redis' history, because its state cannot be hashed.
    done: u64,
    now: u64,
    replicas: [Replica; 2],
    late: Vec<(SmallVec<[Spent; 2]>, Ask)>,
    /// Units since the last reset, and when they were admitted.
    admitted: Vec<(u64, u64)>,
    tags: u32,
}

#[derive(Clone)]
struct Replica {
    blocks: Blocks,
    call: Option<Call>,
    /// Whether it has returned its leases, and no request has arrived since.
    has_returned: bool,
    /// The blocks that it has received, and when they lapse by its clock.
    received: Vec<(u64, Moment)>,
}

/// A call in flight.
#[derive(Clone)]
struct Call {
    spent: Returned,
    ask: Ask,
    sent: Moment,
    answer: Option<Leased>,
}

/// The states that a search reached, and how often it took the rare steps.
#[derive(Debug, Default)]
struct Seen {
    states: HashMap<u64, usize>,
    hasher: RandomState,
    spent: usize,
    reset: usize,
    refused: usize,
    /// Blocks that arrived after the replica had returned its leases.
    late: usize,
}

struct Search {
    policy: Policy,
    lease: Lease,
    rate: (u64, u64),
    seen: Seen,
    /// The steps up to the present state.
    path: Vec<Step>,
}

impl Search {
    fn new(rate: (u64, u64)) -> Self {
        let log = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
        let quota = Quota::new(LIMIT, std::time::Duration::from_micros(WINDOW));
        let lease = Lease::of(4, 5).ttl(std::time::Duration::from_micros(TTL));
        let policy = Policy::new("p", quota, log).unwrap().with_lease(lease).unwrap();
        Self { policy, lease, rate, seen: Seen::default(), path: Vec::new() }
    }

    fn start(&self) -> World {
        let replica = || {
            let mut blocks = Blocks::new(&self.policy, self.lease, 0);
            (0..HOT).for_each(|_| {
                blocks.asked(0);
            });
            blocks.has_refill = true;
            Replica { blocks, call: None, has_returned: false, received: Vec::new() }
        };
        World {
            redis: Reference::default(),
            done: 0,
            now: 13 * 11 * 1_000_000,
            replicas: [replica(), replica()],
            late: Vec::new(),
            admitted: Vec::new(),
            tags: 0,
        }
    }

    /// Returns the replicas' time.
    fn here(&self, now: u64) -> Moment {
        now * self.rate.1 / self.rate.0
    }

    fn clock(&self, now: u64) -> Clock {
        Clock::by_hand(Arc::new(AtomicU64::new(self.here(now))), false)
    }

    fn explore(&mut self, world: &World, depth: usize) {
        if depth == 0 {
            return;
        }
        let hash = world.hash(&self.seen.hasher);
        let known = self.seen.states.entry(hash).or_default();
        if *known >= depth {
            return;
        }
        *known = depth;
        for step in world.steps() {
            let mut next = world.clone();
            self.path.push(step);
            if self.take(&mut next, step) {
                self.check_returned(&next);
                self.explore(&next, depth - 1);
            }
            self.path.pop();
        }
    }

    /// Takes a step. Returns `false` if it changes nothing.
    fn take(&mut self, world: &mut World, step: Step) -> bool {
        let (now, here, clock) = (world.now, self.here(world.now), self.clock(world.now));
        match step {
            Step::Send(number) => {
                let replica = &mut world.replicas[number];
                let tags = &mut world.tags;
                let plan = replica.blocks.plan(here, || {
                    *tags += 1;
                    *tags
                });
                let Plan::Call { spent, ask } = plan else { return false };
                replica.call = Some(Call { spent, ask, sent: here, answer: None });
            }
            Step::Execute(number) => {
                let Some(mut call) = world.replicas[number].call.take() else { return false };
                let spent = call.spent.spent();
                let granted = self.execute(world, &spent, call.ask);
                let decided_at = Timestamp::from_micros(now);
                call.answer = Some(Leased { granted, decided_at, sent: call.sent });
                world.replicas[number].call = Some(call);
            }
            Step::ExecuteLate => {
                let (spent, ask) = world.late.remove(0);
                self.execute(world, &spent, ask);
            }
            Step::Receive(number) => {
                let replica = &mut world.replicas[number];
                let Some(Call { spent, ask, answer: Some(answer), .. }) = replica.call.take()
                else {
                    return false;
                };
                if answer.granted.units > 0 {
                    let span = clock.span(answer.sent, answer.granted.lasts.get());
                    replica.received.push((ask.id(answer.decided_at), span.lapses));
                    self.seen.late += usize::from(replica.has_returned);
                }
                replica.blocks.learn(spent, ask, Ok(answer), &clock);
            }
            Step::GiveUp(number) => {
                let replica = &mut world.replicas[number];
                let Some(Call { spent, ask, answer, .. }) = replica.call.take() else {
                    return false;
                };
                if answer.is_none() {
                    world.late.push((spent.spent(), ask));
                }
                let error = StoreError::maybe_charged("redis", "no answer");
                replica.blocks.learn(spent, ask, Err(error), &clock);
            }
            Step::Spend(number, units) => {
                let Some(taken) = world.replicas[number].blocks.take(units, &clock) else {
                    self.seen.refused += 1;
                    return false;
                };
                self.seen.spent += 1;
                let at = Timestamp::from_micros(now);
                let is_held = world.redis.knows_block(&self.policy, &Key::GLOBAL, taken.id, at);
                assert!(is_held, "a unit was spent after its block: {:?}", self.path);
                let has_returned = world.replicas[number].has_returned;
                assert!(!has_returned, "a unit was spent after the return: {:?}", self.path);
                self.admit(world, units);
            }
            Step::Decide(number) => {
                let Replica { blocks, has_returned, .. } = &mut world.replicas[number];
                *has_returned = false;
                blocks.has_refill |= (0..HOT).any(|_| blocks.asked(here));
                let charge = [Charge::new(&self.policy, &Key::GLOBAL, Cost::ONE)];
                world.note(1);
                if world.redis.decide(&charge, Timestamp::from_micros(now)).is_admitted() {
                    self.admit(world, 1);
                }
            }
            Step::Reset => {
                self.seen.reset += 1;
                world.redis.reset(&self.policy, &Key::GLOBAL, Timestamp::from_micros(now));
                world.redis.forget_resets();
                world.note(2);
                world.admitted.clear();
            }
            Step::Return(number) => {
                let spent = world.replicas[number].close(here);
                if !spent.is_empty() {
                    self.execute(world, &spent.spent(), self.report());
                }
            }
            Step::ReturnLate(number) => {
                let spent = world.replicas[number].close(here);
                if spent.is_empty() {
                    return false;
                }
                world.late.push((spent.spent(), self.report()));
                world.replicas[number].blocks.report_again(spent, here);
            }
            Step::PassToLast(number) => {
                let open = world.replicas[number].blocks.open.front();
                let Some(last) = open.map(|block| block.span.last).filter(|last| *last > here)
                else {
                    return false;
                };
                // The latest instant in Redis that is not after the block's last moment on this
                // replica's clock.
                world.now = ((last + 1) * self.rate.0).div_ceil(self.rate.1) - 1;
            }
            Step::Pass(micros) => world.now += micros,
        }
        // No two calls have the same time.
        world.now += 1;
        true
    }

    /// A call that requests no block.
    fn report(&self) -> Ask {
        Ask { tag: 0, units: 0, ttl: self.lease.time_to_live() }
    }

    fn execute(&self, world: &mut World, spent: &[Spent], ask: Ask) -> Granted {
        let now = Timestamp::from_micros(world.now);
        let reports: Vec<_> = spent.iter().map(|it| (it.id, it.units)).collect();
        world.note((spent, ask));
        let block = (ask.id(now), ask.units, ask.ttl);
        world.redis.lease((&self.policy, &Key::GLOBAL), now, &reports, block)
    }

    /// Counts admitted units. A window may not have more than the limit.
    fn admit(&self, world: &mut World, units: u64) {
        world.admitted.push((world.now, units));
        let counts = |(at, _): &&(u64, u64)| at + WINDOW > world.now;
        let sum: u64 = world.admitted.iter().filter(counts).map(|(_, units)| units).sum();
        assert!(sum <= LIMIT, "{sum} units of {LIMIT}: {:?}", self.path);
    }
}

impl Replica {
    fn close(&mut self, here: Moment) -> Returned {
        self.has_returned = true;
        self.blocks.close(here)
    }
}

impl World {
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, replica) in self.replicas.iter().enumerate() {
            match &replica.call {
                None => steps.push(Step::Send(number)),
                Some(Call { answer: None, .. }) => {
                    steps.extend([Step::Execute(number), Step::GiveUp(number)]);
                }
                Some(_) => steps.extend([Step::Receive(number), Step::GiveUp(number)]),
            }
            if !replica.blocks.open.is_empty() {
                steps.extend([Step::Spend(number, 1), Step::Spend(number, 2)]);
                steps.push(Step::PassToLast(number));
            }
        }
        if !self.late.is_empty() {
            steps.push(Step::ExecuteLate);
        }
        steps.extend([Step::Return(0), Step::ReturnLate(0)]);
        steps.extend([Step::Decide(0), Step::Reset, Step::Pass(TTL / 4), Step::Pass(TTL)]);
        steps
    }

    /// Records what Redis did.
    fn note(&mut self, done: impl Hash) {
        self.done = FixedState::default().hash_one((self.done, self.now, done));
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        let mut hasher = hasher.build_hasher();
        (self.done, self.now, &self.late, &self.admitted).hash(&mut hasher);
        for Replica { blocks, call, has_returned, received } in &self.replicas {
            (blocks, has_returned, received).hash(&mut hasher);
            if let Some(Call { spent, ask, sent, answer }) = call {
                (spent, ask, sent, answer.map(|answer| answer.decided_at)).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// A block for each replica.
const GRANTED: [Step; 6] = [
    Step::Send(0),
    Step::Execute(0),
    Step::Receive(0),
    Step::Send(1),
    Step::Execute(1),
    Step::Receive(1),
];

#[test]
fn limit_holds_in_every_interleaving() {
    let depth = if is_long() { 8 } else { 5 };
    for rate in RATES {
        let mut search = Search::new(rate);
        let mut world = search.start();
        search.explore(&world, depth);
        for step in GRANTED {
            assert!(search.take(&mut world, step));
        }
        search.path.extend(GRANTED);
        search.explore(&world, depth);
        let Seen { states, spent, reset, refused, late, .. } = search.seen;
        println!("{rate:?}: {} states, {spent} spends, {late} late blocks", states.len());
        assert!(spent > 1_000 && reset > 1_000 && refused > 10, "{spent} {reset} {refused}");
        assert!(late > 1_000, "{late}");
    }
}
