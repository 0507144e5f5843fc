//! A fleet, the service that it calls, and what happened to them.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::select;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::feedback::Feedback;
use tollgate::key::Key;
use tollgate::limiter::AcquireError;
use tollgate::store::{StoreError, TokioClock};
use tollgate::{Limiter, MemoryStore, Policy, Quota, Store};
use tollgate_store_tests::is_long;

use crate::stage::{self, Staged};
use crate::support::on_tokio_time;

type SharedStore = Staged<MemoryStore<TokioClock>>;

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The service's.
    pub(super) quota: u64,
    pub(super) window: Duration,
    /// The longest time until a call arrives.
    pub(super) jitter: Duration,
    pub(super) processes: usize,
    pub(super) callers: usize,
    pub(super) length: Duration,
    /// Whether callers give up, and a process is killed.
    pub(super) leaves: bool,
    pub(super) halves: bool,
    /// Whether the service's denials name a wait.
    pub(super) says: bool,
    /// Whether calls leave at an even pace.
    pub(super) paced: bool,
    pub(super) fault: Option<Fault>,
}

/// What happens to the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Lost,
    Emptied,
}
use Fault::{Emptied, Lost};

pub(super) const OUTAGE: Duration = Duration::from_secs(10);

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (quota, window) = (rng.u64(1..=40), Duration::from_secs(rng.u64(10..=60)));
        // A million calls in all seeds and tests of a long run.
        let windows = if is_long() { (10_000 / quota).max(8) } else { 8 };
        Self {
            seed,
            quota,
            window,
            jitter: MILLISECOND * (window.as_millis() as u32 / rng.u32(125..=1_000)),
            processes: rng.usize(1..=8),
            callers: quota as usize * rng.usize(3..=5) + rng.usize(1..=8),
            length: window * windows as u32,
            leaves: false,
            halves: false,
            says: true,
            paced: false,
            fault: None,
        }
    }

    /// When the quota is halved, after the start.
    fn halved(&self) -> (Duration, Duration) {
        let start = self.length / 4 + self.window.mul_f64(Rng::with_seed(!self.seed).f64());
        (start, if self.says { start + self.window } else { self.length })
    }

    fn policy(&self) -> Policy {
        // Tokio's timers and the ways of two calls differ by this much.
        let window = self.window + self.jitter + 2 * MILLISECOND;
        let quota = Quota::new(self.quota, window);
        let policy = match self.paced {
            true => Policy::token_bucket("service", quota.burst(1)),
            false => Policy::sliding_window_log("service", quota),
        };
        policy.unwrap()
    }

    fn limiter(&self, store: SharedStore) -> Limiter<SharedStore> {
        let builder = Limiter::builder(store).policy(self.policy()).queue(3600 * SECOND);
        let builder = builder.pausable(300 * SECOND);
        let builder = if self.says { builder } else { builder.adaptive(20 * self.window) };
        builder.build().unwrap()
    }

    /// Lets the fault happen.
    async fn disturb(&self, store: &SharedStore, limiter: &Limiter<SharedStore>) {
        match self.fault {
            None => {}
            Some(Lost) => {
                store.fail(stage::Fault::MaybeCharged);
                sleep(self.window / 2).await;
                store.fail(stage::Fault::NotCharged);
                sleep(OUTAGE).await;
                store.recover();
            }
            Some(Emptied) => {
                for policy in limiter.policies() {
                    store.reset(policy, &key()).await.unwrap();
                }
            }
        }
    }
}

fn key() -> Key {
    Key::from("account")
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) start: Instant,
    pub(super) rng: Rng,
    /// When the calls arrived that count at the service.
    pub(super) log: VecDeque<Instant>,
    pub(super) history: History,
}

/// All instants are relative to the start.
#[derive(Default)]
pub(super) struct History {
    pub(super) asked: u64,
    /// When each call left, and as which it had asked.
    pub(super) departures: Vec<(u64, Duration)>,
    pub(super) allowed: Vec<Duration>,
    pub(super) denied: Vec<Duration>,
    /// The latest end of the waits that the service told.
    pub(super) told_until: Duration,
    pub(super) in_flight: usize,
    pub(super) most_in_flight: usize,
    /// The places of callers that gave up or were killed.
    pub(super) lost: usize,
    /// The calls that the store could not decide.
    pub(super) failed: usize,
}

/// What became of a halved quota.
pub(super) struct Effects {
    pub(super) denied: usize,
    pub(super) in_flight: usize,
    /// How long after the quota's return, and after all waits that the service had told, nine
    /// tenths were used.
    pub(super) recovered_after: Duration,
    /// The share of the quota used from then on.
    pub(super) used: f64,
}

pub(super) fn run(plan: Plan) -> World {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World {
            plan,
            start: Instant::now(),
            rng: Rng::with_seed(plan.seed + 1),
            log: VecDeque::new(),
            history: History::default(),
        };
        let start = world.start;
        let (store, world) = (Staged::new(on_tokio_time()), Arc::new(Mutex::new(world)));
        let killed = Arc::new(Notify::new());
        let mut callers = JoinSet::new();
        let limiters: Vec<_> = (0..plan.processes).map(|_| plan.limiter(store.clone())).collect();
        for number in 0..plan.callers {
            let limiter = limiters[number % plan.processes].clone();
            let (world, killed) = (Arc::clone(&world), Arc::clone(&killed));
            let is_killed = plan.leaves && number % plan.processes == plan.processes - 1;
            callers.spawn(async move {
                let call = call_always(&world, &limiter);
                if !is_killed {
                    return call.await;
                }
                let mut call = Box::pin(call);
                select! {
                    () = &mut call => {}
                    () = killed.notified() => {
                        world.lock().history.lost += 1;
                        // A killed process refunds nothing.
                        std::mem::forget(call);
                    }
                }
            });
        }
        sleep_until(start + plan.length / 2).await;
        if plan.processes > 1 {
            killed.notify_waiters();
        }
        plan.disturb(&store, &limiters[0]).await;
        sleep_until(start + plan.length).await;
        callers.shutdown().await;
        Arc::into_inner(world).map_or_else(|| panic!("callers left"), Mutex::into_inner)
    })
}

/// Calls the service until the end of the run.
async fn call_always(world: &Mutex<World>, limiter: &Limiter<SharedStore>) {
    let key = key();
    loop {
        let (ticket, patience) = world.lock().ask();
        let mut acquiring = pin!(limiter.acquire(&key, 1));
        let permit = select! {
            biased;
            permit = &mut acquiring => permit,
            () = sleep(patience) => {
                world.lock().history.lost += 1;
                continue;
            }
        };
        let permit = match permit {
            Ok(permit) => permit,
            Err(AcquireError::Store(error)) => {
                world.lock().fail(&error);
                sleep(SECOND).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let (there, back) = world.lock().leave(ticket);
        sleep(there).await;
        let answer = world.lock().arrive();
        sleep(back).await;
        // A store that fails cannot share the pause.
        let _ = permit.learn(&answer).await;
        world.lock().history.in_flight -= 1;
    }
}

impl World {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the call's number, and how long it waits.
    fn ask(&mut self) -> (u64, Duration) {
        self.history.asked += 1;
        let gives_up = self.plan.leaves && self.rng.u8(..16) == 0;
        let patience = self.plan.window.mul_f64(3.0 * self.rng.f64());
        (self.history.asked, if gives_up { patience } else { self.plan.length })
    }

    /// Returns how long the call takes to arrive, and the answer to return.
    fn leave(&mut self, ticket: u64) -> (Duration, Duration) {
        let now = self.now();
        let history = &mut self.history;
        history.departures.push((ticket, now));
        history.in_flight += 1;
        history.most_in_flight = history.most_in_flight.max(history.in_flight);
        let (there, back) = (self.rng.f64(), self.rng.f64());
        // Some answers are very late.
        let late = if self.rng.u8(..16) == 0 { self.plan.window } else { SECOND };
        (self.plan.jitter.mul_f64(there), late.mul_f64(back))
    }

    fn fail(&mut self, error: &StoreError) {
        self.history.failed += 1;
        // Its place passes unused.
        self.history.lost += usize::from(error.may_have_charged());
    }

    fn arrive(&mut self) -> Feedback {
        let (now, plan) = (self.now(), self.plan);
        while self.log.front().is_some_and(|oldest| oldest.elapsed() >= plan.window) {
            self.log.pop_front();
        }
        let (from, until) = plan.halved();
        let is_halved = plan.halves && (from..until).contains(&now);
        let quota = if is_halved { (plan.quota / 2).max(1) } else { plan.quota } as usize;
        let mut headers = HeaderMap::new();
        let status = match self.log.len().checked_sub(quota) {
            None => {
                self.log.push_back(Instant::now());
                self.history.allowed.push(now);
                StatusCode::OK
            }
            Some(index) => {
                let wait = (plan.window - self.log[index].elapsed()).as_secs() + 1;
                self.history.denied.push(now);
                self.history.told_until =
                    self.history.told_until.max(now + Duration::from_secs(wait));
                if plan.says {
                    headers.insert("retry-after", wait.into());
                }
                StatusCode::TOO_MANY_REQUESTS
            }
        };
        Feedback::read(status, &headers, SystemTime::UNIX_EPOCH)
    }
}

impl History {
    /// The share of the quota that was used, including lost places, since it was used up first.
    pub(super) fn used(&self, plan: &Plan) -> f64 {
        let full = self.allowed[plan.quota as usize - 1];
        let lost = self.lost as f64 * plan.window.as_secs_f64();
        self.share(plan, full) + lost / usable(plan, full)
    }

    pub(super) fn share(&self, plan: &Plan, from: Duration) -> f64 {
        let counted = |at: &Duration| {
            let (start, end) = ((*at).max(from), (*at + plan.window).min(plan.length));
            end.saturating_sub(start).as_secs_f64()
        };
        self.allowed.iter().map(counted).sum::<f64>() / usable(plan, from)
    }

    /// A call that left after another that had asked later.
    pub(super) fn overtaken(&self) -> Option<(u64, Duration)> {
        let mut departures = self.departures.clone();
        departures.sort_unstable();
        let mut latest = Duration::ZERO;
        departures.into_iter().find(|(_, at)| {
            latest = latest.max(*at);
            // Timers fire at whole milliseconds.
            *at + MILLISECOND < latest
        })
    }

    pub(super) fn effects(&self, plan: &Plan) -> Effects {
        let returned = plan.halved().1.max(self.told_until);
        let counts = |now: Duration| {
            let counted = |at: &&Duration| **at <= now && now < **at + plan.window;
            self.allowed.iter().filter(counted).count() as u64
        };
        let is_used = |now: &Duration| counts(*now) * 10 >= plan.quota * 9;
        let later = self.allowed.iter().copied().filter(|at| *at > returned);
        let recovered = [returned].into_iter().chain(later).find(is_used).unwrap_or(plan.length);
        Effects {
            denied: self.denied.len(),
            in_flight: self.most_in_flight,
            recovered_after: recovered - returned,
            used: self.share(plan, recovered),
        }
    }
}

fn usable(plan: &Plan, from: Duration) -> f64 {
    (plan.length - from).as_secs_f64() * plan.quota as f64
}
