//! The layer's limits over one request: keys, costs, charges, and what an answer means.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Extensions, HeaderMap, Method, Response};
use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, OnStoreError, Outcome, Store, StoreError, Verdict,
};

use super::excess::{Answer, Patient};
use super::queued::Charged;
use super::reservation::OpenCharges;
use super::room::{Arrival, LineKey, Room};
use super::tiers::{Fields, InTier, Tiers};
use super::verdicts::Verdicts;
use super::witness::{Sight, Waits, Witness};
use crate::denial::{Denial, DenialResponse, Dialect, Problem};
use crate::head::Condition;
use crate::headers::PolicyFields;
use crate::key::KeyError;
use crate::limit::shared_key;
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::tier::TierSource;
use crate::{Costs, Head, HeaderOptions, Limit, OnMissingKey, Subject, SubjectKind};

/// Everything that the services of a layer share.
pub(super) struct Rules<St> {
    store: St,
    rules: Box<[Rule]>,
    options: Options,
    witness: Witness,
    tiers: Option<Tiers>,
    /// The rule in whose queue a request may have to wait, and its charges to be given back.
    queue: Option<usize>,
    /// Whether a charge may have to be corrected when the response is known.
    settles: bool,
    /// Where requests wait that a limit denies, if one lets them.
    room: Option<Room>,
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
    pub(super) max_waiting: usize,
    pub(super) tiers: Option<Arc<dyn TierSource>>,
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
            max_waiting: 1_024,
            tiers: None,
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
    fields: Fields,
}

impl Rule {
    #[inline]
    fn charge<'a>(&'a self, key: &'a Key, cost: Cost, tier: InTier) -> Charge<'a> {
        let policy = self.fields.of(tier).policy();
        Charge { policy, ..self.limit.charge(key, cost) }
    }
}

/// Which rules a request was held against.
#[derive(Clone, Copy)]
struct Applied {
    /// A bit for each; one decision per bit, in their order.
    rules: u64,
    tier: InTier,
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
    Follow(Ruling<St>),
}

/// What the store is asked about a request.
pub(super) struct Asked<St: Store> {
    pub(super) answer: Answer<St>,
    pub(super) question: Question,
}

impl<St: Store> Asked<St> {
    /// Whether the request stands in line before the store answers.
    pub(super) const fn waits(&self) -> bool {
        matches!(self.answer, Answer::Line(_))
    }
}

/// What must be remembered of a request to understand the answer of the store.
pub(super) struct Question {
    applied: Applied,
    /// What was charged, if it may have to be given back or corrected.
    charged: Option<Box<[Charged]>>,
    /// Stands for the key in the jitter of `Retry-After`.
    seed: u64,
    sight: Sight,
}

/// What is to be done with a request.
pub(super) enum Ruling<St: Store> {
    /// It goes on to the service, without any trace.
    Pass,
    /// It goes on after `delay`; the response will tell of the verdict.
    Admit { admitted: Admitted, delay: Micros, charged: Option<Box<[Charged]>> },
    /// It stands in line.
    Wait(Asked<St>),
    /// It ends here.
    Refuse(Box<Response<Bytes>>),
}

/// A verdict on its way into the response.
pub(super) struct Admitted {
    pub(super) verdict: Verdict,
    applied: Applied,
    /// What the response or the handler will settle.
    open: Option<OpenCharges>,
}

/// A source is asked to come back so soon when the store does not know when it is back.
const PROBE: Micros = Micros::new(1_000_000);

impl<St: Store> Rules<St> {
    pub(super) fn new(store: St, limits: Vec<Limit>, options: Options) -> Self {
        let queue = limits.iter().position(|limit| limit.enforce && limit.policy.queues());
        let settles = limits.iter().any(|limit| limit.settling.settles());
        let waits = limits.iter().any(|limit| limit.patience().is_some());
        let room = waits.then(|| Room::new(options.max_waiting));
        let tiers = Tiers::new(options.tiers.as_ref(), &limits);
        let rule = |limit: Limit| Rule { fields: Fields::new(&limit, tiers.as_ref()), limit };
        let rules: Box<[_]> = limits.into_iter().map(rule).collect();
        Self {
            store,
            witness: Witness::new(&rules, &options),
            rules,
            options,
            tiers,
            queue,
            settles,
            room,
            misconfigured: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }

    /// Whether a response says anything of an admission, or decides on a charge.
    pub(super) fn tells(&self) -> bool {
        self.options.expose_verdicts || self.options.headers.any() || self.settles
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
        let tier = self.tiers.as_ref().map_or(InTier::NONE, |tiers| tiers.of(head));
        // Most layers have one limit, and then there is nothing to collect.
        if let [rule] = &*self.rules {
            return match self.keyed(&rule.limit, head) {
                Ok(Some((subject, cost))) => {
                    let keyed = Keyed { index: 0, subject, cost };
                    let mut sight = self.witness.look(&self.rules, slice::from_ref(&keyed), head);
                    let applied = Applied { rules: 1, tier };
                    let charge = rule.charge(&keyed.subject.key, cost, tier);
                    let (answer, charged, seed) = self.put(&[charge], applied, &mut sight);
                    let sight = sight.keeping([keyed]);
                    Step::Ask(Asked {
                        answer,
                        question: Question { applied, charged, seed, sight },
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
        let mut sight = self.witness.look(&self.rules, &keyed, head);
        let charges: SmallVec<[Charge<'_>; 4]> = keyed
            .iter()
            .map(|it| self.rules[it.index].charge(&it.subject.key, it.cost, tier))
            .collect();
        let rules = keyed.iter().fold(0, |bits, keyed| bits | 1 << keyed.index);
        let applied = Applied { rules, tier };
        let (answer, charged, seed) = self.put(&charges, applied, &mut sight);
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

    /// Asks the store, or stands in line for it, and notes what it takes to understand the
    /// answer.
    #[inline]
    fn put(
        &self,
        charges: &[Charge<'_>],
        applied: Applied,
        sight: &mut Sight,
    ) -> (Answer<St>, Option<Box<[Charged]>>, u64) {
        let kept = self.queue.is_some() || self.settles || self.room.is_some();
        let charged: Option<Box<[_]>> = kept.then(|| charges.iter().map(Charged::of).collect());
        let line = match (&self.room, &charged) {
            (Some(room), Some(charged)) => self.follow_line(room, applied, charged, sight),
            _ => None,
        };
        let answer = line.unwrap_or_else(|| Answer::Store(self.store.decide(charges)));
        let jitter = self.options.headers.has_jitter();
        // Of all keys, as it is not known yet which policy will deny.
        let seed = if jitter { seed_of(charges) } else { 0 };
        (answer, charged, seed)
    }

    /// The end of the line, if others wait for the same quotas.
    fn follow_line(
        &self,
        room: &Room,
        applied: Applied,
        charged: &[Charged],
        sight: &mut Sight,
    ) -> Option<Answer<St>> {
        let (patient, key) = self.patient(applied, charged)?;
        let waits = key.first().map(|(index, _)| *index);
        let answer: Answer<St> = match room.arrive(key) {
            Arrival::Free => return None,
            Arrival::Behind(place) => {
                Answer::Line(Box::pin(patient.wait(place, None, self.witness.waits(waits))))
            }
            Arrival::Full => Answer::Line(Box::pin(patient.refuse())),
        };
        sight.waits();
        Some(answer)
    }

    /// A place in line for a request that the store has denied, if it is worth waiting.
    fn line_up(
        &self,
        answer: &Result<Verdict, StoreError>,
        question: &mut Question,
    ) -> Option<Answer<St>> {
        let verdict = answer.as_ref().ok().filter(|verdict| !verdict.is_admitted())?;
        // Who has waited already is denied for good.
        let charged = question.charged.as_deref().filter(|_| !question.sight.has_waited())?;
        let (patient, key) = self.patient(question.applied, charged)?;
        patient.wait_after(verdict)?;
        let waits = key.first().map(|(index, _)| *index);
        let place = self.room.as_ref()?.enter(key)?;
        question.sight.waits();
        let waits = self.witness.waits(waits);
        Some(Answer::Line(Box::pin(patient.wait(place, Some(verdict.clone()), waits))))
    }

    /// How the request waits and for what, if one of its limits lets it.
    fn patient(&self, applied: Applied, charged: &[Charged]) -> Option<(Patient<St>, LineKey)> {
        let patience: Box<[_]> = self.applied(applied).map(|rule| rule.limit.patience()).collect();
        let charges = bits(applied.rules).zip(charged).zip(&patience);
        let waits = charges.filter(|((_, charged), patience)| {
            // What costs nothing passes at once.
            patience.is_some() && charged.charge().cost > Cost::ZERO
        });
        let key: LineKey =
            waits.map(|((index, charged), _)| (index, charged.charge().key.clone())).collect();
        (!key.is_empty()).then(|| (Patient::new(&self.store, charged, patience), key))
    }

    /// What the answer of the store means for the request.
    pub(super) fn rule(
        &self,
        answer: Result<Verdict, StoreError>,
        mut question: Question,
        method: &Method,
        headers: &HeaderMap,
    ) -> Ruling<St> {
        if self.room.is_some()
            && let Some(answer) = self.line_up(&answer, &mut question)
        {
            return Ruling::Wait(Asked { answer, question });
        }
        let applied = bits(question.applied.rules).map(|index| (index, &self.rules[index]));
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
                let open = self.open(&verdict, charged.as_deref(), applied);
                Ruling::Admit { admitted: Admitted { verdict, applied, open }, delay, charged }
            }
            Ok(verdict) => {
                let admitted = Admitted { verdict, applied: question.applied, open: None };
                let dialect = Dialect::of(method, headers);
                Ruling::Refuse(Box::new(self.deny(&admitted, question.seed, dialect)))
            }
            Err(error) => self.without_verdict(&error, question.applied, method, headers),
        }
    }

    /// What is still to be settled of the charges.
    fn open(
        &self,
        verdict: &Verdict,
        charged: Option<&[Charged]>,
        applied: Applied,
    ) -> Option<OpenCharges> {
        let charged = charged.filter(|_| self.settles)?;
        let limits = self.applied(applied).map(|rule| &rule.limit);
        OpenCharges::new(&self.store, verdict, charged, &limits)
    }

    /// Puts down what the handler may read.
    pub(super) fn show(&self, extensions: &mut Extensions, admitted: &Admitted) {
        if self.options.expose_verdicts {
            Verdicts::push(extensions, admitted.verdict.clone());
        }
        if let Some(open) = &admitted.open {
            open.hand_to(extensions);
        }
    }

    /// Settles what the response decides, and adds the verdict to it.
    pub(super) fn tell<B>(&self, response: &mut Response<B>, admitted: &Admitted) {
        let Admitted { verdict, applied, open } = admitted;
        let corrected = open.as_ref().and_then(|open| {
            open.settle_by(response, self.applied(*applied).map(|rule| &rule.limit));
            open.corrected(verdict)
        });
        let verdict = corrected.as_ref().unwrap_or(verdict);
        let rows = self.rows(verdict, *applied);
        self.options.headers.write(response.headers_mut(), verdict.decided_at(), rows);
    }

    fn deny(&self, denied: &Admitted, seed: u64, dialect: Dialect) -> Response<Bytes> {
        let Admitted { verdict, applied, .. } = denied;
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
            Verdicts::push_outer(response.extensions_mut(), verdict.clone());
        }
        response
    }

    /// The store could not decide: a closed policy refuses, all others let pass. One
    /// that is to be decided locally should not come here, as
    /// [`Fallback`](crate::failure::Fallback) has decided it; without that it refuses.
    fn without_verdict(
        &self,
        error: &StoreError,
        applied: Applied,
        method: &Method,
        headers: &HeaderMap,
    ) -> Ruling<St> {
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
        let denial =
            Denial::store_unavailable(refusing.map(|rule| rule.fields.of(applied.tier)), probe);
        let dialect = Dialect::of(method, headers);
        Ruling::Refuse(Box::new(denial.respond(dialect, &*self.options.response)))
    }

    fn refuse(&self, head: &Head<'_>, denial: &Denial<'_>) -> Box<Response<Bytes>> {
        let dialect = Dialect::of(head.method, head.headers);
        Box::new(denial.respond(dialect, &*self.options.response))
    }

    fn applied(&self, applied: Applied) -> impl Iterator<Item = &Rule> + Clone {
        bits(applied.rules).map(|index| &self.rules[index])
    }

    /// The enforced policies and their decisions.
    fn rows<'a>(
        &'a self,
        verdict: &'a Verdict,
        applied: Applied,
    ) -> impl Iterator<Item = (&'a PolicyFields, &'a Decision)> {
        let decided = self.applied(applied).zip(verdict.decisions());
        decided
            .filter(|(rule, _)| rule.limit.enforce)
            .map(move |(rule, decision)| (rule.fields.of(applied.tier), decision))
    }

    /// How long the request is held back. That of the verdict would count the queue of a
    /// shadow policy as well, which only watches.
    fn delay(&self, verdict: &Verdict, applied: Applied) -> Micros {
        if self.queue.is_none() {
            return Micros::ZERO;
        }
        let delays = self.rows(verdict, applied).map(|(_, decision)| decision.delay());
        delays.max().unwrap_or_default()
    }

    fn trace_shadows(&self, verdict: &Verdict, applied: Applied) {
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
fn bits(mut bits: u64) -> impl Iterator<Item = usize> + Clone {
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
