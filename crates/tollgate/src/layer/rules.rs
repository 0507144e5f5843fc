//! The layer's limits over one request: keys, costs, charges, and what an answer means.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, Method, Response};
use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, OnStoreError, Outcome, Store, StoreError, Verdict,
};

use super::queued::Charged;
use super::witness::{Sight, Waits, Witness};
use crate::denial::{Denial, DenialResponse, Dialect, Problem};
use crate::head::Condition;
use crate::headers::PolicyFields;
use crate::key::KeyError;
use crate::limit::shared_key;
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::{Costs, Head, HeaderOptions, Limit, OnMissingKey, Subject, SubjectKind};

/// Everything that the services of a layer share.
pub(super) struct Rules<St> {
    store: St,
    rules: Box<[Rule]>,
    options: Options,
    witness: Witness,
    /// The rule in whose queue a request may have to wait, and its charges to be given back.
    queue: Option<usize>,
    misconfigured: AtomicBool,
    /// Whether the last answer of the store was that it cannot decide.
    failing: AtomicBool,
}

/// What holds for all limits of a layer.
pub(super) struct Options {
    pub(super) costs: Costs,
    pub(super) exempt: Vec<Arc<Condition>>,
    pub(super) headers: HeaderOptions,
    pub(super) response: Arc<dyn DenialResponse>,
    pub(super) expose_verdicts: bool,
    #[cfg(feature = "metrics")]
    pub(super) observer: Option<Observer>,
    #[cfg(feature = "metrics")]
    pub(super) endpoint: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            costs: Costs::default(),
            exempt: Vec::new(),
            headers: HeaderOptions::default(),
            response: Arc::new(Problem::default()),
            expose_verdicts: false,
            #[cfg(feature = "metrics")]
            observer: None,
            #[cfg(feature = "metrics")]
            endpoint: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("costs", &self.costs)
            .field("headers", &self.headers)
            .field("expose_verdicts", &self.expose_verdicts)
            .finish_non_exhaustive()
    }
}

/// A limit and its header fields as far as they are the same in every response.
pub(super) struct Rule {
    pub(super) limit: Limit,
    fields: PolicyFields,
}

/// What a request takes by one rule, and from whom.
pub(super) struct Keyed {
    pub(super) index: usize,
    pub(super) subject: Subject,
    pub(super) cost: Cost,
}

/// The first step of a request.
pub(super) enum Step<St: Store> {
    /// The store is asked.
    Ask(Asked<St>),
    /// The ruling needs no store.
    Follow(Ruling),
}

/// What the store is asked about a request.
pub(super) struct Asked<St: Store> {
    pub(super) answer: St::Future<Verdict>,
    pub(super) question: Question,
}

/// What must be remembered of a request to understand the answer of the store.
pub(super) struct Question {
    /// The rules that apply, a bit each; one decision per bit, in their order.
    applied: u64,
    /// What was charged, if it may have to be given back.
    charged: Option<Box<[Charged]>>,
    /// Stands for the key in the jitter of `Retry-After`.
    seed: u64,
    sight: Sight,
}

/// What is to be done with a request.
pub(super) enum Ruling {
    /// It goes on to the service, without any trace.
    Pass,
    /// It goes on after `delay`; the response will tell of the verdict.
    Admit { admitted: Admitted, delay: Micros, charged: Option<Box<[Charged]>> },
    /// It ends here.
    Refuse(Box<Response<Bytes>>),
}

/// A verdict on its way into the response.
pub(super) struct Admitted {
    pub(super) verdict: Verdict,
    applied: u64,
}

/// A source is asked to come back so soon when the store does not know when it is back.
const PROBE: Micros = Micros::new(1_000_000);

impl<St: Store> Rules<St> {
    pub(super) fn new(store: St, limits: Vec<Limit>, options: Options) -> Self {
        let queue = limits.iter().position(|limit| limit.enforce && limit.policy.queues());
        let rule = |limit: Limit| Rule { fields: PolicyFields::new(&limit.policy), limit };
        let rules: Box<[_]> = limits.into_iter().map(rule).collect();
        Self {
            store,
            witness: Witness::new(&rules, &options),
            rules,
            options,
            queue,
            misconfigured: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }

    /// Whether a response says anything of an admission.
    pub(super) fn tells(&self) -> bool {
        self.options.expose_verdicts || self.options.headers.any()
    }

    /// Whether handlers and outer layers may read the verdict.
    pub(super) fn expose_verdicts(&self) -> bool {
        self.options.expose_verdicts
    }

    pub(super) fn store(&self) -> &St {
        &self.store
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules.iter().map(|rule| &rule.limit)
    }

    /// Counts a request as waiting.
    pub(super) fn waits(&self) -> Waits {
        self.witness.waits(self.queue)
    }

    /// What is kept of the policy of a limit.
    #[cfg(feature = "metrics")]
    pub(super) fn observed(&self, limit: usize) -> &crate::observe::ObservedPolicy {
        self.witness.policy(limit)
    }

    /// Puts the question to the store, if there is one.
    #[inline]
    pub(super) fn ask(&self, head: &Head<'_>) -> Step<St> {
        if is_preflight(head) || self.options.exempt.iter().any(|exempt| exempt(head)) {
            return Step::Follow(Ruling::Pass);
        }
        // Most layers have one limit, and then there is nothing to collect.
        if let [Rule { limit, .. }] = &*self.rules {
            return match self.keyed(limit, head) {
                Ok(Some((subject, cost))) => {
                    let keyed = Keyed { index: 0, subject, cost };
                    let sight = self.witness.look(&self.rules, slice::from_ref(&keyed), head);
                    let (answer, charged, seed) =
                        self.put(&[limit.charge(&keyed.subject.key, cost)]);
                    let sight = sight.keeping([keyed]);
                    Step::Ask(Asked {
                        answer,
                        question: Question { applied: 1, charged, seed, sight },
                    })
                }
                Ok(None) => Step::Follow(Ruling::Pass),
                Err(response) => Step::Follow(Ruling::Refuse(response)),
            };
        }
        let mut keyed = SmallVec::<[Keyed; 4]>::new();
        for (index, Rule { limit, .. }) in self.rules.iter().enumerate() {
            match self.keyed(limit, head) {
                Ok(Some((subject, cost))) => keyed.push(Keyed { index, subject, cost }),
                Ok(None) => {}
                Err(response) => return Step::Follow(Ruling::Refuse(response)),
            }
        }
        if keyed.is_empty() {
            return Step::Follow(Ruling::Pass);
        }
        let sight = self.witness.look(&self.rules, &keyed, head);
        let charges: SmallVec<[Charge<'_>; 4]> = keyed
            .iter()
            .map(|it| self.rules[it.index].limit.charge(&it.subject.key, it.cost))
            .collect();
        let (answer, charged, seed) = self.put(&charges);
        let applied = keyed.iter().fold(0, |bits, keyed| bits | 1 << keyed.index);
        drop(charges);
        let sight = sight.keeping(keyed);
        Step::Ask(Asked { answer, question: Question { applied, charged, seed, sight } })
    }

    /// Whose quota a limit uses for the request, and how much of it; none if the request
    /// is none of its business. An error is the answer to the request.
    #[inline]
    fn keyed(
        &self,
        limit: &Limit,
        head: &Head<'_>,
    ) -> Result<Option<(Subject, Cost)>, Box<Response<Bytes>>> {
        if !limit.applies_to(head) {
            return Ok(None);
        }
        let subject = match limit.key.subject(head) {
            Ok(Some(subject)) => subject,
            missing => match self.without_key(limit, missing.err(), head)? {
                Some(key) => Subject { kind: SubjectKind::Other, key },
                None => return Ok(None),
            },
        };
        let costs = limit.costs.as_ref().unwrap_or(&self.options.costs);
        Ok(Some((subject, costs.of(head))))
    }

    /// What becomes of a request without a key, or of one whose key cannot be told. A
    /// shadow policy lets both pass.
    #[cold]
    fn without_key(
        &self,
        limit: &Limit,
        error: Option<KeyError>,
        head: &Head<'_>,
    ) -> Result<Option<Key>, Box<Response<Bytes>>> {
        let denial = match (error, limit.on_missing_key) {
            (Some(error), _) => {
                if !self.misconfigured.swap(true, Ordering::Relaxed) {
                    tracing::error!(target: "tollgate", %error, "cannot tell who is asking");
                }
                Denial::misconfigured(match error {
                    // Written by others, it may say what is no client's business.
                    KeyError::Other(_) => {
                        "The key source failed; the server's log says why.".into()
                    }
                    ours => ours.to_string(),
                })
            }
            (None, Some(OnMissingKey::Pass)) => return Ok(None),
            (None, Some(OnMissingKey::Share)) => return Ok(Some(shared_key())),
            (None, Some(OnMissingKey::Deny) | None) => {
                let (policy, shadow) = (limit.policy.name(), !limit.enforce);
                tracing::info!(target: "tollgate", policy, shadow, "no key");
                Denial::missing_key()
            }
        };
        if limit.enforce { Err(self.refuse(head, &denial)) } else { Ok(None) }
    }

    /// Asks the store, and notes what it takes to understand the answer.
    #[inline]
    fn put(&self, charges: &[Charge<'_>]) -> (St::Future<Verdict>, Option<Box<[Charged]>>, u64) {
        let answer = self.store.decide(charges);
        let charged = self.queue.is_some().then(|| charges.iter().map(Charged::of).collect());
        let jitter = self.options.headers.has_jitter();
        // Of all keys, as it is not known yet which policy will deny.
        let seed = if jitter { seed_of(charges) } else { 0 };
        (answer, charged, seed)
    }

    /// What the answer of the store means for the request.
    pub(super) fn rule(
        &self,
        answer: Result<Verdict, StoreError>,
        question: Question,
        method: &Method,
        headers: &HeaderMap,
    ) -> Ruling {
        let applied = bits(question.applied).map(|index| (index, &self.rules[index]));
        self.witness.tell(applied, &question.sight, &answer, self.store.name());
        // A change of state is news, a request is not.
        if answer.is_ok() && self.failing.load(Ordering::Relaxed) {
            self.failing.store(false, Ordering::Relaxed);
            tracing::warn!(target: "tollgate", "the store decides again");
        }
        match answer {
            Ok(verdict) if verdict.is_admitted() => {
                tracing::debug!(target: "tollgate", remaining = remaining(&verdict), "allow");
                let Question { applied, charged, .. } = question;
                self.trace_shadows(&verdict, applied);
                let delay = self.delay(&verdict, applied);
                Ruling::Admit { admitted: Admitted { verdict, applied }, delay, charged }
            }
            Ok(verdict) => {
                let admitted = Admitted { verdict, applied: question.applied };
                let dialect = Dialect::of(method, headers);
                Ruling::Refuse(Box::new(self.deny(&admitted, question.seed, dialect)))
            }
            Err(error) => self.without_verdict(&error, question.applied, method, headers),
        }
    }

    /// Adds the verdict to the response of the service.
    pub(super) fn tell<B>(&self, response: &mut Response<B>, admitted: &Admitted) {
        let Admitted { verdict, applied } = admitted;
        let rows = self.rows(verdict, *applied);
        self.options.headers.write(response.headers_mut(), verdict.decided_at(), rows);
    }

    fn deny(&self, denied: &Admitted, seed: u64, dialect: Dialect) -> Response<Bytes> {
        let Admitted { verdict, applied } = denied;
        let rows = || self.rows(verdict, *applied);
        let at = verdict.decided_at();
        let denial = Denial::of_verdict(at, rows(), &self.options.headers, seed);
        tracing::info!(
            target: "tollgate",
            policies = ?denial.policies(),
            reason = denial.reason().code(),
            retry_after = ?denial.retry_after(),
            "deny",
        );
        let mut response = denial.respond(dialect, &*self.options.response);
        self.options.headers.write(response.headers_mut(), at, rows());
        if self.options.expose_verdicts {
            super::Verdicts::push_outer(response.extensions_mut(), verdict.clone());
        }
        response
    }

    /// The store could not decide: a closed policy refuses, all others let pass. One
    /// that is to be decided locally should not come here, as
    /// [`Fallback`](crate::failure::Fallback) has decided it; without that it refuses.
    fn without_verdict(
        &self,
        error: &StoreError,
        applied: u64,
        method: &Method,
        headers: &HeaderMap,
    ) -> Ruling {
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "tollgate", %error, "the store cannot decide, policies fail");
        }
        let refuses = |rule: &&Rule| {
            rule.limit.enforce && rule.limit.policy.on_store_error() != OnStoreError::Open
        };
        let mut refusing = self.applied(applied).filter(refuses).peekable();
        if refusing.peek().is_none() {
            tracing::debug!(target: "tollgate", %error, "failed open");
            return Ruling::Pass;
        }
        tracing::debug!(target: "tollgate", %error, "failed closed");
        let probe = error.retry_after().unwrap_or(PROBE);
        let denial = Denial::store_unavailable(refusing.map(|rule| &rule.fields), probe);
        let dialect = Dialect::of(method, headers);
        Ruling::Refuse(Box::new(denial.respond(dialect, &*self.options.response)))
    }

    fn refuse(&self, head: &Head<'_>, denial: &Denial<'_>) -> Box<Response<Bytes>> {
        let dialect = Dialect::of(head.method, head.headers);
        Box::new(denial.respond(dialect, &*self.options.response))
    }

    fn applied(&self, applied: u64) -> impl Iterator<Item = &Rule> {
        bits(applied).map(|index| &self.rules[index])
    }

    /// The enforced policies and their decisions.
    fn rows<'a>(
        &'a self,
        verdict: &'a Verdict,
        applied: u64,
    ) -> impl Iterator<Item = (&'a PolicyFields, &'a Decision)> {
        let decided = self.applied(applied).zip(verdict.decisions());
        decided.filter(|(rule, _)| rule.limit.enforce).map(|(rule, d)| (&rule.fields, d))
    }

    /// How long the request is held back. That of the verdict would count the queue of a
    /// shadow policy as well, which only watches.
    fn delay(&self, verdict: &Verdict, applied: u64) -> Micros {
        if self.queue.is_none() {
            return Micros::ZERO;
        }
        let delays = self.rows(verdict, applied).map(|(_, decision)| decision.delay());
        delays.max().unwrap_or_default()
    }

    fn trace_shadows(&self, verdict: &Verdict, applied: u64) {
        for (rule, decision) in self.applied(applied).zip(verdict.decisions()) {
            if decision.denies() && !rule.limit.enforce {
                let policy = rule.limit.policy.name();
                tracing::info!(target: "tollgate", policy, "shadow deny");
            }
        }
    }
}

/// The numbers of the bits that are set.
#[inline]
fn bits(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros();
        // Without any it is none.
        bits &= bits.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as usize)
    })
}

/// The smallest remainder, for the event of an allowed request.
fn remaining(verdict: &Verdict) -> Option<u64> {
    let decided = verdict.decisions().iter().filter(|decision| decision.outcome != Outcome::Skip);
    decided.map(|decision| decision.remaining).min()
}

/// A preflight is sent by a browser on its own account, and one that is refused looks to
/// the page like a network that is down.
pub(super) fn is_preflight(head: &Head<'_>) -> bool {
    *head.method == Method::OPTIONS
        && head.headers.contains_key(ORIGIN)
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// A number that is the same for a client on all replicas (FNV-1a over its keys).
pub(super) fn seed_of(charges: &[Charge<'_>]) -> u64 {
    let step = |seed: u64, byte: &u8| (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let keys = charges.iter().map(|charge| charge.key.as_bytes());
    keys.fold(0xcbf2_9ce4_8422_2325, |seed, key| key.iter().fold(seed, step))
}
