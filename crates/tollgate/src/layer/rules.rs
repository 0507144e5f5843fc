//! The layer's limits over one request: keys, costs, charges, and the question to the store.

use std::pin::Pin;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Method, Response};
use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Key, OnStoreError, Store, Verdict};

use super::excess::Answer;
use super::explain;
use super::in_flight::Keeper;
use super::options::Options;
use super::queued::Charged;
use super::room::WaitingRoom;
use super::ruling::Ruling;
use super::tiers::{Fields, InTier, Tiers};
use super::witness::{Sight, Waits, Witness};
use crate::denial::{Denial, Dialect};
use crate::key::KeyError;
use crate::limit::shared_key;
use crate::{Head, Limit, Listed, OnMissingKey, Subject, SubjectKind};

/// Everything that the services of a layer share.
pub(super) struct Rules<St> {
    pub(super) store: St,
    pub(super) rules: Box<[Rule]>,
    pub(super) options: Options,
    pub(super) witness: Witness,
    tiers: Option<Tiers>,
    /// The rule in whose queue a request may have to wait, and its charges to be given back.
    pub(super) queue: Option<usize>,
    /// Whether a charge may have to be corrected when the response is known.
    pub(super) settles: bool,
    /// Where requests wait that a limit denies, if one lets them.
    pub(super) room: Option<WaitingRoom>,
    /// Who keeps what requests hold, if a limit counts in flight.
    pub(super) keeper: Option<Keeper<St>>,
    /// Whether anything of a request is remembered besides what the store was asked.
    remembers: bool,
    /// Whether an admission leaves no trace but in events of level debug.
    pub(super) is_silent: bool,
    misconfigured: AtomicBool,
    /// Whether the last answer of the store was that it cannot decide.
    pub(super) failing: AtomicBool,
}

/// A limit and its header fields as far as they are the same in every response.
pub(super) struct Rule {
    pub(super) limit: Limit,
    pub(super) fields: Fields,
}

impl Rule {
    #[inline]
    fn charge<'a>(&'a self, key: &'a Key, cost: Cost, tier: InTier) -> Charge<'a> {
        let policy = self.fields.of(tier).policy();
        Charge { policy, ..self.limit.charge(key, cost) }
    }

    /// Whether no request passes that the store could not decide.
    pub(super) fn refuses_without_verdict(&self) -> bool {
        self.limit.enforce && self.limit.policy.on_store_error() != OnStoreError::Open
    }
}

/// Which rules a request was held against.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    /// A bit for each; one decision per bit, in their order.
    pub(super) rules: u64,
    pub(super) tier: InTier,
}

/// What a request takes by one rule, and from whom.
pub(super) struct Keyed {
    pub(super) index: usize,
    pub(super) subject: Subject,
    pub(super) cost: Cost,
}

/// The first step of a request.
pub(super) enum Step<St: Store> {
    /// The store will answer, or the line in front of it.
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
    /// Whether the request stands in line before the store answers.
    pub(super) const fn waits(&self) -> bool {
        matches!(self.answer, Answer::Line(_))
    }
}

/// What must be remembered of a request to understand the answer of the store.
pub(super) struct Question {
    pub(super) applied: Applied,
    /// What was charged, if it may have to be given back or corrected.
    pub(super) charged: Option<Box<[Charged]>>,
    /// Stands for the key in the jitter of `Retry-After`.
    pub(super) seed: u64,
    /// What the request takes while it waits, if it may.
    pub(super) bytes: usize,
    pub(super) sight: Sight,
}

impl<St: Store> Rules<St> {
    pub(super) fn new(store: St, limits: Vec<Limit>, options: Options) -> Self {
        let queue = limits.iter().position(|limit| limit.enforce && limit.policy.queues());
        let settles = limits.iter().any(|limit| limit.settling.settles());
        let waits = limits.iter().any(|limit| limit.patience().is_some());
        let room = waits.then(|| options.room.clone());
        let in_tiers = |limit| Limit::tiers(limit).map(|(_, policy)| policy);
        let policies = limits.iter().map(Limit::policy).chain(limits.iter().flat_map(in_tiers));
        let keeper = Keeper::of(&store, policies);
        let holds = keeper.is_some();
        let tiers = Tiers::new(options.tiers.as_ref(), &limits);
        let rule = |limit: Limit| Rule { fields: Fields::new(&limit, tiers.as_ref()), limit };
        let has_shadows = limits.iter().any(|limit| !limit.enforce);
        let rules: Box<[_]> = limits.into_iter().map(rule).collect();
        let tells =
            options.expose_verdicts || options.explain || options.headers.any() || settles || holds;
        let is_watched = cfg!(feature = "metrics") || has_shadows;
        Self {
            store,
            remembers: queue.is_some() || settles || waits || holds || options.headers.has_jitter(),
            is_silent: !(tells || is_watched || waits || queue.is_some()),
            witness: Witness::new(&rules, &options),
            rules,
            options,
            tiers,
            queue,
            settles,
            room,
            keeper,
            misconfigured: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }

    /// Whether a response says anything of an admission, or decides on a charge.
    pub(super) fn tells(&self) -> bool {
        self.options.expose_verdicts
            || self.options.explain
            || self.options.headers.any()
            || self.settles
            || self.keeper.is_some()
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

    /// The tier of a subject that an operator names.
    #[cfg(feature = "metrics")]
    pub(super) fn named_tier(&self, name: &crate::key::SubjectName) -> Option<crate::Tier> {
        self.tiers.as_ref()?.named(name)
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
                    let bytes = self.bytes_of(head);
                    let (answer, charged, seed) = self.put(&[charge], applied, bytes, &mut sight);
                    let sight = sight.keeping([keyed]);
                    let question = Question { applied, charged, seed, bytes, sight };
                    self.step(answer, question, head)
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
        let bytes = self.bytes_of(head);
        let (answer, charged, seed) = self.put(&charges, applied, bytes, &mut sight);
        drop(charges);
        let sight = sight.keeping(keyed);
        self.step(answer, Question { applied, charged, seed, bytes, sight }, head)
    }

    /// A store in memory has answered by now, and what it says is not carried about.
    #[inline]
    fn step(&self, mut answer: Answer<St>, question: Question, head: &Head<'_>) -> Step<St> {
        match Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => {
                Step::Follow(self.rule(answer, question, head.method, head.headers))
            }
            Poll::Pending => Step::Await(Asked { answer, question }),
        }
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
            (Some(error), _) => self.misconfigured(&error),
            (None, Some(OnMissingKey::Pass)) => return Ok(None),
            (None, Some(OnMissingKey::Share)) => return Ok(Some(shared_key())),
            (None, Some(OnMissingKey::Deny) | None) => {
                let (policy, shadow) = (limit.policy.name(), !limit.enforce);
                tracing::debug!(target: "tollgate", policy, shadow, "no key");
                Denial::missing_key()
            }
        };
        if limit.enforce { Err(self.refuse(head, &denial)) } else { Ok(None) }
    }

    /// The server is set up so that nobody can tell who is asking.
    fn misconfigured(&self, error: &KeyError) -> Denial<'static> {
        if !self.misconfigured.swap(true, Ordering::Relaxed) {
            tracing::error!(target: "tollgate", %error, "cannot tell who is asking");
        }
        Denial::misconfigured(match error {
            // Written by others, it may say what is no client's business.
            KeyError::Other(_) => "The key source failed; the server's log says why.".into(),
            ours => ours.to_string(),
        })
    }

    /// Asks the store, or stands in line for it, and notes what it takes to understand the
    /// answer.
    #[inline]
    fn put(
        &self,
        charges: &[Charge<'_>],
        applied: Applied,
        bytes: usize,
        sight: &mut Sight,
    ) -> (Answer<St>, Option<Box<[Charged]>>, u64) {
        if !self.remembers {
            return (Answer::Store(self.decide(charges)), None, 0);
        }
        let kept =
            self.queue.is_some() || self.settles || self.room.is_some() || self.keeper.is_some();
        let charged: Option<Box<[_]>> = kept.then(|| charges.iter().map(Charged::of).collect());
        let line = match (&self.room, &charged) {
            (Some(room), Some(charged)) => self.follow_line(room, applied, charged, bytes, sight),
            _ => None,
        };
        let answer = line.unwrap_or_else(|| {
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

    #[inline]
    fn decide(&self, charges: &[Charge<'_>]) -> St::Future<Verdict> {
        match self.options.explain {
            true => explain::decide(&self.store, charges),
            false => self.store.decide(charges),
        }
    }

    /// What the request takes while it waits, if it may.
    #[inline]
    fn bytes_of(&self, head: &Head<'_>) -> usize {
        self.room.as_ref().map_or(0, |room| room.bytes_of(head))
    }

    pub(super) fn refuse(&self, head: &Head<'_>, denial: &Denial<'_>) -> Box<Response<Bytes>> {
        let dialect = Dialect::of(head.method, head.headers);
        Box::new(denial.respond(dialect, &*self.options.response))
    }

    pub(super) fn applied(&self, applied: Applied) -> impl Iterator<Item = &Rule> + Clone {
        bits(applied.rules).map(|index| &self.rules[index])
    }
}

/// The numbers of the bits that are set.
#[inline]
pub(super) fn bits(mut bits: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros();
        // Without any it is none.
        bits &= bits.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as usize)
    })
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
