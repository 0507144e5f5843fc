//! The question about a request: whom it concerns, what it costs, and what the store is asked.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{Charge, Cost, Store, Verdict};

use super::excess::Answer;
use super::explain;
use super::queued::Charged;
use super::room::Arrived;
use super::rules::{Applied, Rule, Rules};
use super::ruling::Ruling;
use super::tiers::InTier;
use super::witness::Sight;
use crate::denial::{Denial, Dialect};
use crate::key::KeyError;
use crate::limit::shared_key;
use crate::{Head, Limit, Listed, OnMissingKey, Subject, SubjectKind};

/// What a request takes by one rule, and from whom.
#[derive(Clone, Copy)]
pub(super) struct Keyed<'a> {
    pub(super) index: usize,
    pub(super) subject: &'a Subject,
    pub(super) cost: Cost,
}

/// The first step of a request.
pub(super) enum Step<St: Store> {
    /// The store will answer, or the wait queue in front of it.
    Await(Asked<St>),
    /// The ruling is there already.
    Follow(Ruling<St>),
}

/// What the store is asked about a request.
pub(super) struct Asked<St: Store> {
    pub(super) answer: Answer<St>,
    pub(super) question: Question,
}

impl<St: Store> Asked<St> {
    /// Whether the request waits before the store answers.
    pub(super) const fn waits(&self) -> bool {
        matches!(self.answer, Answer::Waiting(_))
    }
}

/// What must be remembered of a request to understand the answer of the store.
pub(super) struct Question {
    pub(super) applied: Applied,
    /// What was charged, if it may have to be given back or corrected.
    pub(super) charged: Option<Box<[Charged]>>,
    /// Stands for the key in the jitter of `Retry-After`.
    pub(super) seed: u64,
    /// Its place in the wait queue, if a limit lets it wait.
    pub(super) arrived: Arrived,
    pub(super) sight: Sight,
}

impl<St: Store> Rules<St> {
    /// Puts the question to the store, if there is one, and rules at once if it has answered.
    #[inline]
    pub(super) fn ask(&self, head: &Head<'_>) -> Step<St> {
        let listed = match self.options.lists.as_ref().map(|lists| lists.find(head)) {
            None => Listed::Neither,
            Some(Ok(listed)) => listed,
            Some(Err(error)) => {
                return Step::Follow(Ruling::Refuse(
                    self.refuse(head, &self.misconfigured(&error)),
                ));
            }
        };
        if listed == Listed::Denied {
            let denial = Denial::denied_subject();
            tracing::debug!(target: "tollgate", reason = denial.reason().code(), "deny");
            return Step::Follow(Ruling::Refuse(self.refuse(head, &denial)));
        }
        if listed == Listed::Allowed {
            return Step::Follow(Ruling::Pass);
        }
        if self.options.exempt_preflights && head.is_preflight()
            || self.options.exempt.iter().any(|exempt| exempt(head))
        {
            return Step::Follow(Ruling::Pass);
        }
        let tier = self.tiers.as_ref().map_or(InTier::NONE, |tiers| tiers.of(head));
        if let [rule] = &*self.rules {
            return self.ask_about_one(rule, tier, head);
        }
        let mut found = SmallVec::<[(usize, Subject, Cost); 4]>::new();
        for (index, Rule { limit, .. }) in self.rules.iter().enumerate() {
            if !limit.applies_to(head) {
                continue;
            }
            let subject = match limit.key.subject(head) {
                Ok(Some(subject)) => Ok(Some(subject)),
                missing => self.without_key(limit, missing.err(), head),
            };
            match subject {
                Ok(Some(subject)) => found.push((index, subject, self.cost_of(limit, head))),
                Ok(None) => {}
                Err(response) => return Step::Follow(Ruling::Refuse(response)),
            }
        }
        if found.is_empty() {
            return Step::Follow(Ruling::Pass);
        }
        let mut keyed = SmallVec::<[Keyed<'_>; 4]>::new();
        for &(index, ref subject, cost) in &found {
            keyed.push(Keyed { index, subject, cost });
        }
        let mut sight = self.witness.look(&self.rules, &keyed, head);
        let charges: SmallVec<[Charge<'_>; 4]> = keyed
            .iter()
            .map(|it| self.rules[it.index].charge(&it.subject.key, it.cost, tier))
            .collect();
        let rules = keyed.iter().fold(0, |bits, keyed| bits | 1 << keyed.index);
        let applied = Applied { rules, tier };
        let mut arrived = self.arrived(head);
        let (answer, charged, seed) = self.put(&charges, applied, &mut arrived, &mut sight);
        let sight = sight.keeping(&keyed);
        self.step(answer, Question { applied, charged, seed, arrived, sight }, head)
    }

    /// Most layers have one limit, and then there is nothing to collect; and mostly nothing to
    /// be kept either, of the request and of an answer that is there at once.
    #[inline(always)]
    fn ask_about_one(&self, rule: &Rule, tier: InTier, head: &Head<'_>) -> Step<St> {
        let Rule { limit, .. } = rule;
        if !limit.applies_to(head) {
            return Step::Follow(Ruling::Pass);
        }
        // Looked at where it was put: to move what has just been written waits for the writes.
        let found = limit.key.subject(head);
        let shared;
        let subject = match found {
            Ok(Some(ref subject)) => subject,
            missing => match self.without_key(limit, missing.err(), head) {
                Ok(Some(subject)) => {
                    shared = subject;
                    &shared
                }
                Ok(None) => return Step::Follow(Ruling::Pass),
                Err(response) => return Step::Follow(Ruling::Refuse(response)),
            },
        };
        let cost = self.cost_of(limit, head);
        let keyed = [Keyed { index: 0, subject, cost }];
        let mut sight = self.witness.look(&self.rules, &keyed, head);
        let applied = Applied { rules: 1, tier };
        let charge = rule.charge(&subject.key, cost, tier);
        if self.remembers {
            let mut arrived = self.arrived(head);
            let (answer, charged, seed) = self.put(&[charge], applied, &mut arrived, &mut sight);
            let sight = sight.keeping(&keyed);
            return self.step(answer, Question { applied, charged, seed, arrived, sight }, head);
        }
        let mut answer = self.decide(&[charge]);
        let now = at_once(&mut answer);
        let sight = sight.keeping(&keyed);
        if now.as_ref().is_some_and(|answer| self.passes_untold(answer, applied, &sight)) {
            return Step::Follow(Ruling::Pass);
        }
        let question =
            Question { applied, charged: None, seed: 0, arrived: Arrived::default(), sight };
        match now {
            Some(answer) => Step::Follow(self.weigh(answer, question, head)),
            None => Step::Await(Asked { answer: Answer::Store(answer), question }),
        }
    }

    /// A store in memory has answered by now, and what it says is not carried about.
    fn step(&self, mut answer: Answer<St>, question: Question, head: &Head<'_>) -> Step<St> {
        match at_once(&mut answer) {
            Some(answer) => Step::Follow(self.rule(answer, question, head)),
            None => Step::Await(Asked { answer, question }),
        }
    }

    #[inline]
    fn cost_of(&self, limit: &Limit, head: &Head<'_>) -> Cost {
        limit.costs.as_ref().unwrap_or(&self.options.costs).among(head, self.options.is_grpc)
    }

    /// Under whom a request counts that has no key, or whose key cannot be told; none if it
    /// does not count. A shadow policy lets both pass. An error is the answer to the request.
    #[cold]
    fn without_key(
        &self,
        limit: &Limit,
        error: Option<KeyError>,
        head: &Head<'_>,
    ) -> Result<Option<Subject>, Box<Response<Bytes>>> {
        let denial = match (error, limit.on_missing_key) {
            (Some(error), _) => self.misconfigured(&error),
            (None, Some(OnMissingKey::Pass)) => return Ok(None),
            (None, Some(OnMissingKey::Share)) => {
                return Ok(Some(Subject { kind: SubjectKind::Other, key: shared_key() }));
            }
            (None, Some(OnMissingKey::Deny) | None) => {
                let (policy, shadow) = (limit.policy.name(), !limit.enforce);
                tracing::debug!(target: "tollgate", policy, shadow, "no key");
                Denial::missing_key()
            }
        };
        if limit.enforce { Err(self.refuse(head, &denial)) } else { Ok(None) }
    }

    /// The server is set up so that a key source cannot work. The log says what to do, once in a
    /// while because all requests fail alike; a client could do nothing with it.
    fn misconfigured(&self, error: &KeyError) -> Denial<'static> {
        let mut logged = self.misconfigured.lock();
        if logged.is_none_or(|at| at.elapsed() >= LOG_AGAIN) {
            *logged = Some(Instant::now());
            tracing::error!(target: "tollgate", %error, "cannot tell who is asking");
        }
        Denial::misconfigured()
    }

    /// Asks the store, or waits for it, and notes what it takes to understand the answer.
    #[inline]
    fn put(
        &self,
        charges: &[Charge<'_>],
        applied: Applied,
        arrived: &mut Arrived,
        sight: &mut Sight,
    ) -> (Answer<St>, Option<Box<[Charged]>>, u64) {
        if !self.remembers {
            return (Answer::Store(self.decide(charges)), None, 0);
        }
        let kept =
            self.queue.is_some() || self.settles || self.room.is_some() || self.keeper.is_some();
        let charged: Option<Box<[_]>> = kept.then(|| charges.iter().map(Charged::of).collect());
        let waiting = match (&self.room, &charged) {
            (Some(room), Some(charged)) => self.join(room, applied, charged, arrived, sight),
            _ => None,
        };
        let answer = waiting.unwrap_or_else(|| {
            let answer = self.decide(charges);
            match (&self.keeper, &charged) {
                (Some(keeper), Some(charged)) => Answer::Watched(keeper.watch(answer, charged)),
                _ => Answer::Store(answer),
            }
        });
        let jitter = self.options.headers.has_jitter();
        // Of all keys, as it is not known yet which policy will deny.
        let seed = if jitter { seed_of(charges) } else { 0 };
        (answer, charged, seed)
    }

    #[inline(always)]
    fn decide(&self, charges: &[Charge<'_>]) -> St::Future<Verdict> {
        match self.options.explain {
            true => explain::decide(&self.store, charges),
            false => self.store.decide(charges),
        }
    }

    /// The bytes that the request holds while it waits, if a limit lets it.
    #[inline]
    fn arrived(&self, head: &Head<'_>) -> Arrived {
        let bytes = self.room.as_ref().map_or(0, |room| room.bytes_of(head));
        Arrived { number: 0, bytes }
    }

    pub(super) fn refuse(&self, head: &Head<'_>, denial: &Denial<'_>) -> Box<Response<Bytes>> {
        Box::new(denial.respond(self.dialect(head), &*self.options.response))
    }

    /// In which form a request wants its denial.
    pub(super) fn dialect(&self, head: &Head<'_>) -> Dialect {
        Dialect::among(head, self.options.is_grpc)
    }
}

/// Often enough for a log that was rotated.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// The answer, if it is there already.
#[inline(always)]
fn at_once<F: Future + Unpin>(answer: &mut F) -> Option<F::Output> {
    match Pin::new(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// A number that is the same for a client on all replicas (FNV-1a over its keys).
pub(super) fn seed_of(charges: &[Charge<'_>]) -> u64 {
    let step = |seed: u64, byte: &u8| (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let keys = charges.iter().map(|charge| charge.key.as_bytes());
    keys.fold(0xcbf2_9ce4_8422_2325, |seed, key| key.iter().fold(seed, step))
}
