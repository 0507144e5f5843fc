//! Simulates a test's requests: each meets the same routes, identities and limits as in `serve`.

use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;

use tollgate::denial::Reason;
use tollgate::store::{Micros, Outcome as Decided, StoreError, Timestamp};
use tollgate_config::plan::{FaultAt, Plan, StorePlan};
use tollgate_engine::{Charges, Limits};
use tollgate_replay::log::Record;
use tollgate_replay::scenario::{Arrival, Arrivals, Outcome, Requests, START};
use tollgate_replay::{Answer, Bounds, Fault, Fleet, Resolved};

use crate::replay::{Decided as Decision, Recorded};

/// Why a test does not fit the limits, or the exit code if a file is invalid.
pub(super) type TestError = Result<String, ExitCode>;

/// The processes that decide a test's requests, and their faults.
pub(super) struct Simulation<'a> {
    pub(super) plan: &'a Plan,
    pub(super) happenings: Vec<(Timestamp, Happening)>,
    pub(super) replicas: NonZeroU32,
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

impl Simulation<'_> {
    /// Decides the requests, and returns their outcomes in arrival order.
    pub(super) fn run(&self, mut arrivals: Arrivals<'_>) -> Result<Vec<Outcome>, String> {
        let is_failover =
            |it: &(Timestamp, Happening)| matches!(it.1, Happening::Fault(Fault::Failover { .. }));
        let fails_over = self.happenings.iter().any(is_failover);
        let fleet = Fleet { fails_over, ..fleet(self.plan, self.replicas) };
        let mut recorded = Recorded::in_fleet(self.plan.clone(), &fleet, Bounds::default())?;
        let wrong = |error: StoreError| error.to_string();
        let mut happenings = self.happenings.iter().peekable();
        let mut outcomes: Vec<Outcome> = Vec::new();
        loop {
            let arrives = arrivals.next_at();
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
            } else if let Some(arrival) = arrivals.next() {
                let requests = arrivals.requests(&arrival);
                let outcome = self.decide(&mut recorded, requests, arrival).map_err(wrong)?;
                if outcome.status != WAITS {
                    arrivals.answered(&outcome);
                }
                outcomes.push(outcome);
            } else {
                return Ok(outcomes);
            }
            for Resolved { number, answer, limits, charges } in recorded.resolved() {
                let Some(outcome) = outcomes.get_mut(number as usize) else { continue };
                let answers = arrivals.requests(&outcome.arrival).answer;
                *outcome = outcome_of(outcome.arrival, answer, &limits, &charges, answers);
                arrivals.answered(outcome);
            }
        }
    }

    fn decide(
        &self,
        recorded: &mut Recorded,
        requests: &Requests,
        arrival: Arrival,
    ) -> Result<Outcome, StoreError> {
        let path = requests.for_client(&requests.path, arrival.client);
        let user = requests.user.as_ref().map(|user| requests.for_client(user, arrival.client));
        let headers = requests.headers.iter();
        let headers =
            headers.map(|(name, value)| (name, requests.for_client(value, arrival.client)));
        let headers: Vec<_> = headers.collect();
        let record = Record {
            file: "",
            line: 0,
            at: arrival.at,
            duration: Some(requests.takes),
            address: Some(requests.address(arrival.client)),
            method: &requests.method,
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
    let enforced = charges.iter().filter(|applied| limits.of(applied).mode.enforces());
    let never =
        enforced.clone().any(|applied| applied.decision.outcome == Decided::ExceedsCapacity);
    let outcome = Outcome {
        is_allowed: wait.is_some(),
        wait: wait.unwrap_or_default(),
        ..Outcome::unlimited(
            arrival,
            match answer {
                Answer::Allowed { .. } => status,
                Answer::Waits => WAITS,
                Answer::Undecided => Reason::StoreUnavailable.status().as_u16(),
                Answer::Denied if never => Reason::CostExceedsQuota.status().as_u16(),
                Answer::Denied => Reason::QuotaExceeded.status().as_u16(),
            },
        )
    };
    outcome.decided_by(enforced.map(|applied| (limits.policy(applied), &applied.decision)))
}
