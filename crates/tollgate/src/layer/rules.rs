//! What all services of a layer share: its limits, and what follows from them.

use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::{Charge, Cost, Key, OnStoreError, Store, StoreError};

use super::in_flight::Keeper;
use super::options::Options;
use super::outage::Outage;
use super::room::WaitingRoom;
use super::tiers::{Fields, InTier, Tiers};
use super::witness::{Waits, Witness};
use crate::Limit;

/// Everything that the services of a layer share.
pub(super) struct Rules<St> {
    pub(super) store: St,
    pub(super) rules: Box<[Rule]>,
    pub(super) options: Options,
    pub(super) witness: Witness,
    pub(super) tiers: Option<Tiers>,
    /// The rule in whose queue a request may have to wait, and its charges to be given back.
    pub(super) queue: Option<usize>,
    /// Whether a charge may have to be corrected when the response is known.
    pub(super) settles: bool,
    /// The headers that state a cost to the layer: no response keeps them.
    pub(super) cost_headers: Box<[HeaderName]>,
    /// The wait queue, if a limit lets requests wait.
    pub(super) room: Option<WaitingRoom>,
    /// Who keeps what requests hold, if a limit counts in flight.
    pub(super) keeper: Option<Keeper<St>>,
    /// Whether anything of a request is remembered besides what the store was asked.
    pub(super) remembers: bool,
    /// Whether of an admission there is nothing to be told but in events of level debug.
    pub(super) is_silent: bool,
    /// When the log last said that a key source cannot work.
    pub(super) misconfigured: Mutex<Option<Instant>>,
    /// Counts requests that the store could not decide, for the log.
    pub(super) outage: Outage,
}

/// A limit and its header fields as far as they are the same in every response.
pub(super) struct Rule {
    pub(super) limit: Limit,
    pub(super) fields: Fields,
}

impl Rule {
    #[inline]
    pub(super) fn charge<'a>(&'a self, key: &'a Key, cost: Cost, tier: InTier) -> Charge<'a> {
        let policy = self.fields.of(tier).policy();
        Charge { policy, ..self.limit.charge(key, cost) }
    }

    /// Whether no request passes that the store could not decide for this reason.
    pub(super) fn refuses_after(&self, error: &StoreError) -> bool {
        self.limit.enforce && self.on_error(error) != OnStoreError::Open
    }

    pub(super) fn on_error(&self, error: &StoreError) -> OnStoreError {
        self.limit.policy.on_error(error).unwrap_or_default()
    }
}

/// Which rules a request was held against.
#[derive(Clone, Copy)]
pub(super) struct Applied {
    /// A bit for each; one decision per bit, in their order.
    pub(super) rules: u64,
    pub(super) tier: InTier,
}

impl<St: Store> Rules<St> {
    pub(super) fn new(store: St, limits: Vec<Limit>, options: Options) -> Self {
        let queue = limits.iter().position(|limit| limit.enforce && limit.policy.queues());
        let settles = limits.iter().any(|limit| limit.settling.settles());
        let reserves = limits.iter().filter_map(|limit| limit.settling.reserve.as_ref());
        let cost_headers = reserves.filter_map(|reserve| reserve.header.clone()).collect();
        let waits = limits.iter().any(|limit| limit.patience().is_some());
        let room = waits.then(|| options.room.clone());
        let in_tiers = |limit| Limit::tiers(limit).map(|(_, policy)| policy);
        let policies = limits.iter().map(Limit::policy).chain(limits.iter().flat_map(in_tiers));
        let keeper = Keeper::of(&store, policies);
        let holds = keeper.is_some();
        let tiers = Tiers::new(options.tiers.as_ref(), &limits);
        let rule = |limit: Limit| Rule { fields: Fields::new(&limit, tiers.as_ref()), limit };
        let rules: Box<[_]> = limits.into_iter().map(rule).collect();
        let tells =
            options.expose_verdicts || options.explain || options.headers.any() || settles || holds;
        Self {
            store,
            remembers: queue.is_some() || settles || waits || holds || options.headers.has_jitter(),
            is_silent: !(tells || waits || queue.is_some()),
            witness: Witness::new(&rules, &options),
            rules,
            options,
            tiers,
            queue,
            settles,
            cost_headers,
            room,
            keeper,
            misconfigured: Mutex::new(None),
            outage: Outage::default(),
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

    /// Removes the headers that state a cost to the layer.
    pub(super) fn remove_costs(&self, headers: &mut HeaderMap) {
        for name in &self.cost_headers {
            headers.remove(name);
        }
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
