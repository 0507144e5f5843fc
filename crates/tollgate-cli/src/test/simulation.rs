//! Simulates a test's requests: each meets the same routes, identities and limits as in `serve`.

use std::borrow::Cow;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;

use tollgate::denial::Reason;
use tollgate::store::{Micros, Outcome as Decided, StoreError, Timestamp};
use tollgate_config::plan::{FaultAt, Plan, Requests, StorePlan};
use tollgate_engine::{AppliedLimit, Charges, Limits};
use tollgate_replay::log::Record;
use tollgate_replay::scenario::{Arrival, Outcome, Pace, START, Schedule, Sender};
use tollgate_replay::{Answer, Bounds, Fault, Fleet, Resolved};

use crate::replay::{Decided as Decision, Recorded};

/// Why a test does not fit the limits, or the exit code if a file is invalid.
pub(super) type TestError = Result<String, ExitCode>;

/// A test's requests and faults.
pub(super) struct Simulation<'a> {
    pub(super) plan: &'a Plan,
    pub(super) requests: &'a [Requests],
    pub(super) happenings: Vec<(Timestamp, Happening)>,
    pub(super) replicas: NonZeroU32,
    pub(super) seed: u64,
}

#[derive(Clone)]
pub(super) enum Happening {
    Fault(Fault),
    Reload(Box<Plan>),
}

/// A plan's processes.
pub(crate) fn fleet(plan: &Plan, replicas: NonZeroU32) -> Fleet {
    let (is_shared, local_share) = match &plan.store {
        StorePlan::Memory(_) => (false, None),
        StorePlan::Redis(redis) => (true, redis.local_share),
    };
    Fleet { replicas, is_shared, local_share, ..Fleet::default() }
}

/// What happens because of faults. `load` reads a file with limits.
pub(super) fn happenings(
    faults: &[FaultAt],
    load: impl Fn(&Path) -> Result<Plan, ExitCode>,
) -> Result<Vec<(Timestamp, Happening)>, TestError> {
    let mut all = Vec::new();
    for (number, fault) in faults.iter().enumerate() {
        let before = all.len();
        let at = START + Micros::from(fault.at);
        let mut happens = |after: Micros, fault| all.push((at + after, Happening::Fault(fault)));
        if let Some(time) = fault.store_lost {
            happens(Micros::ZERO, Fault::StoreLost);
            happens(time.into(), Fault::StoreBack);
        }
        if let Some(lag) = fault.failover {
            happens(Micros::ZERO, Fault::Failover { lag: lag.into() });
        }
        if let Some(step) = fault.clock_forward {
            happens(Micros::ZERO, Fault::ClockForward(step.into()));
        }
        if let Some(step) = fault.clock_back {
            happens(Micros::ZERO, Fault::ClockBack(step.into()));
        }
        if let Some(file) = &fault.reload {
            let plan = load(file).map_err(Err)?;
            all.push((at, Happening::Reload(Box::new(plan))));
        }
        if all.len() == before {
            return Err(Ok(format!(
                "faults[{number}] does nothing: write `storeLost`, `failover`, `clockForward`, \
                 `clockBack` or `reload`"
            )));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    Ok(all)
}

/// The source for requests: a schedule, or part of an earlier history.
enum Source<'a> {
    Schedule(Schedule),
    History(std::iter::Peekable<std::slice::Iter<'a, Arrival>>),
}

impl Source<'_> {
    fn next_at(&mut self) -> Option<Timestamp> {
        match self {
            Self::Schedule(schedule) => schedule.next_at(),
            Self::History(history) => history.peek().map(|arrival| arrival.at),
        }
    }

    fn next(&mut self) -> Option<Arrival> {
        match self {
            Self::Schedule(schedule) => schedule.next(),
            Self::History(history) => history.next().copied(),
        }
    }

    fn answered(&mut self, outcome: &Outcome, requests: &[Requests]) {
        if let Self::Schedule(schedule) = self {
            let takes = requests[outcome.arrival.sender as usize].takes;
            let takes = if outcome.is_allowed { Micros::from(takes) } else { Micros::ZERO };
            schedule.answered(&outcome.arrival, outcome.passed_at() + takes);
        }
    }
}

impl Simulation<'_> {
    /// Runs the test's requests.
    pub(super) fn run(&self) -> Result<Vec<Outcome>, String> {
        let senders = self.requests.iter().map(sender).collect();
        self.simulate(Source::Schedule(Schedule::new(senders, self.seed)))
    }

    /// Runs only these requests.
    pub(super) fn rerun(&self, history: &[Arrival]) -> Result<Vec<Outcome>, String> {
        self.simulate(Source::History(history.iter().peekable()))
    }

    fn simulate(&self, mut source: Source<'_>) -> Result<Vec<Outcome>, String> {
        let is_failover =
            |it: &(Timestamp, Happening)| matches!(it.1, Happening::Fault(Fault::Failover { .. }));
        let fails_over = self.happenings.iter().any(is_failover);
        let fleet = Fleet { fails_over, ..fleet(self.plan, self.replicas) };
        let mut recorded = Recorded::in_fleet(self.plan.clone(), &fleet, Bounds::default())?;
        let wrong = |error: StoreError| error.to_string();
        let mut happenings = self.happenings.iter().peekable();
        let mut outcomes: Vec<Outcome> = Vec::new();
        loop {
            let arrives = source.next_at();
            let event = recorded.replay.next_event();
            let happens = happenings.peek().map(|(at, _)| *at);
            if let Some(at) = event
                && arrives.is_none_or(|arrives| at <= arrives)
                && happens.is_none_or(|happens| at <= happens)
            {
                recorded.replay.advance(at).map_err(wrong)?;
            } else if let Some((at, happening)) = happenings
                .next_if(|(at, _)| arrives.is_some_and(|arrives| *at <= arrives) || event.is_some())
            {
                match happening {
                    Happening::Fault(fault) => {
                        recorded.replay.happens(*at, *fault).map_err(wrong)?;
                    }
                    Happening::Reload(plan) => {
                        recorded.replay.advance(*at).map_err(wrong)?;
                        recorded.reload((**plan).clone())?;
                    }
                }
            } else if let Some(arrival) = source.next() {
                let outcome = self.decide(&mut recorded, arrival).map_err(wrong)?;
                if outcome.status != WAITS {
                    source.answered(&outcome, self.requests);
                }
                outcomes.push(outcome);
            } else {
                return Ok(outcomes);
            }
            for Resolved { number, answer, limits, charges } in recorded.resolved() {
                let Some(outcome) = outcomes.get_mut(number as usize) else { continue };
                let answers = self.requests[outcome.arrival.sender as usize].answer;
                *outcome = outcome_of(outcome.arrival, answer, &limits, &charges, answers);
                source.answered(outcome, self.requests);
            }
        }
    }

    fn decide(&self, recorded: &mut Recorded, arrival: Arrival) -> Result<Outcome, StoreError> {
        let requests = &self.requests[arrival.sender as usize];
        let path = fill(&requests.path, arrival.client);
        let user = requests.user.as_ref().map(|user| fill(user, arrival.client));
        let headers = requests.header.iter().flatten();
        let headers = headers.map(|(name, value)| (name, fill(value, arrival.client)));
        let headers: Vec<_> = headers.collect();
        let record = Record {
            file: "",
            line: 0,
            at: arrival.at,
            duration: Some(requests.takes.into()),
            address: Some(address(requests.client, arrival.client)),
            method: requests.method.as_str(),
            target: &path,
            host: requests.host.as_deref(),
            status: requests.answer,
            bytes: requests.bytes,
            user: user.as_deref(),
            tier: requests.tier.as_deref(),
            tokens: None,
            headers: headers.iter().map(|(name, value)| (name.as_str(), &**value)).collect(),
        };
        let replica = match requests.replica {
            Some(replica) => replica as usize - 1,
            None => (arrival.number % u64::from(self.replicas.get())) as usize,
        };
        recorded.decide_on(&record, replica, |decided| {
            let Decision { answer, refused, limits, charges, .. } = decided;
            match refused {
                Some(status) => {
                    let is_allowed = false;
                    Outcome { is_allowed, ..Outcome::unlimited(arrival, status.as_u16()) }
                }
                None => outcome_of(arrival, answer, limits, charges, requests.answer),
            }
        })
    }
}

/// The status while a request still waits.
const WAITS: u16 = 0;

fn sender(requests: &Requests) -> Sender {
    let Requests { at, clients, count, duration, every, rate, think, .. } = requests;
    let pace = match (rate, think) {
        (Some(mean), _) => Pace::Random((*mean).into()),
        (_, Some(time)) => Pace::Think((*time).into()),
        _ => Pace::Every(every.unwrap_or_default().into()),
    };
    let count = count.unwrap_or(if duration.is_some() { u64::MAX } else { 1 });
    let duration = duration.map(Micros::from);
    Sender { at: (*at).into(), clients: *clients, count, duration, pace }
}

/// A client's address. Addresses follow each other from the first client's address on.
pub(super) fn address(first: IpAddr, client: u32) -> IpAddr {
    match first {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).wrapping_add(client).into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).wrapping_add(client.into()).into()),
    }
}

/// Replaces `{client}` by the client's number.
pub(super) fn fill(text: &str, client: u32) -> Cow<'_, str> {
    if text.contains("{client}") {
        Cow::Owned(text.replace("{client}", &(client + 1).to_string()))
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns the outcome that a client sees. `status` is the status of the target's answers.
fn outcome_of(
    arrival: Arrival,
    answer: Answer,
    limits: &Limits,
    charges: &Charges,
    status: u16,
) -> Outcome {
    let wait = match answer {
        Answer::Allowed { wait } => Some(wait),
        Answer::Denied | Answer::Undecided | Answer::Waits => None,
    };
    let shown = charges.iter().filter(|applied| {
        let is_decided = applied.decision.outcome != Decided::Undecided;
        is_decided && limits.of(applied).mode.enforces()
    });
    let is_shown =
        |applied: &&AppliedLimit| !limits.policy(applied).is_penalty() || applied.decision.denies();
    let tightest = shown.clone().filter(is_shown).reduce(|tightest, applied| {
        if is_tighter(limits, applied, tightest) { applied } else { tightest }
    });
    let never = shown.clone().any(|applied| applied.decision.outcome == Decided::ExceedsCapacity);
    Outcome {
        arrival,
        is_allowed: wait.is_some(),
        status: match answer {
            Answer::Allowed { .. } => status,
            Answer::Waits => WAITS,
            Answer::Undecided => Reason::StoreUnavailable.status().as_u16(),
            Answer::Denied if never => Reason::CostExceedsQuota.status().as_u16(),
            Answer::Denied => Reason::QuotaExceeded.status().as_u16(),
        },
        wait: wait.unwrap_or_default(),
        policy: tightest.map(|applied| limits.policy(applied).clone()),
        remaining: tightest.map(|applied| applied.decision.remaining),
        retry_after: tightest.and_then(|applied| applied.decision.retry_after()),
    }
}

/// Which of two limits the headers of an answer show, as in the layer: the one with the longer wait
/// or else with the smaller remaining share.
fn is_tighter(limits: &Limits, a: &AppliedLimit, b: &AppliedLimit) -> bool {
    let wait = |applied: &AppliedLimit| match applied.decision.outcome {
        Decided::ExceedsCapacity => Some(Micros::MAX),
        _ if limits.policy(applied).is_concurrency() => {
            applied.decision.retry_after().map(|wait| wait.min(Micros::new(1_000_000)))
        }
        _ => applied.decision.retry_after(),
    };
    let share = |a: &AppliedLimit, b: &AppliedLimit| {
        u128::from(a.decision.remaining) * u128::from(b.decision.limit)
    };
    wait(a).cmp(&wait(b)).then_with(|| share(b, a).cmp(&share(a, b))).is_gt()
}
