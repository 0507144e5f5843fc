//! The store's operations: turns charges, settlements and resets into requests.

use std::num::NonZeroU32;

use smallvec::SmallVec;
use tollgate_core::{
    BoxFuture, Charge, Cost, Key, Micros, Overrides, PenaltyBlock, Policy, Receipt, Reply,
    Settlement, Store, StoreError,
};

use crate::calls::combiner::Combiner;
use crate::calls::failure::STORE;
use crate::calls::future::RedisFuture;
use crate::calls::ticket::{Answer, NamedCharge, Request};
use crate::client::overrides::SharedOverrides;
use crate::client::roster::Roster;
use crate::store::RedisStore;

impl Store for RedisStore {
    type Future = RedisFuture;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        let is_leased = charges.iter().any(|charge| charge.policy.lease().is_some());
        // Only Redis knows the queue, and what remains for another cost.
        let is_plain = charges.iter().all(Charge::is_plain);
        if is_leased
            && is_plain
            && let Some(verdict) = self.0.leases.spend(charges)
        {
            self.0.combiner.counters.count_leased();
            return Reply::ready(Ok(verdict));
        }
        if is_plain
            && self.shares_server(charges)
            && let Some(verdict) = self.0.combiner.deny_cache.find(charges)
        {
            self.0.combiner.counters.count_deny_cache_hit();
            return Reply::ready(Ok(verdict));
        }
        if is_leased && is_plain {
            self.note_asked(charges);
        }
        let name = |charge: &Charge<'_>| self.0.names.state(charge.policy, charge.key);
        let charges = charges.iter().map(|charge| NamedCharge::new(name(charge), charge));
        let charges: SmallVec<[NamedCharge; 2]> = charges.collect();
        if !self.is_one_call(&charges) {
            return Reply::pending(self.decide_across_slots(charges));
        }
        Reply::pending(RedisFuture(self.submit(Request::Decide(charges))))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        // Exclude the policy before sending: refunded units may allow other requests. Denials by
        // concurrency limits are not remembered anyway.
        if !receipt.policy.is_concurrency() {
            self.0.combiner.deny_cache.exclude(receipt.policy.name(), receipt.lifetime());
        }
        let state = self.0.names.state(&receipt.policy, &receipt.key);
        let settled = self.0.names.receipt(&receipt.key, receipt.id);
        let receipt = receipt.clone();
        let answer = self.submit(Request::Settle { state, settled, receipt, actual });
        Reply::pending(answer.boxed(|it| match it {
            Answer::Settlement(settlement) => Some(settlement),
            _ => None,
        }))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        if !receipt.policy.is_concurrency() {
            let error = StoreError::not_renewable(STORE, &receipt.policy);
            return Reply::ready(Err(error));
        }
        let state = self.0.names.state(&receipt.policy, &receipt.key);
        let settled = self.0.names.receipt(&receipt.key, receipt.id);
        let receipt = receipt.clone();
        let answer = self.submit(Request::Renew { state, settled, receipt });
        Reply::pending(answer.boxed(|it| match it {
            Answer::Renewal(renewed) => Some(renewed),
            _ => None,
        }))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        let hash = self.0.combiner.deny_cache.hash(key, policy);
        self.0.combiner.deny_cache.forget_key(hash);
        let state = self.0.names.state(policy, key);
        let answer = self.submit(Request::Reset { state, hash });
        Reply::pending(answer.boxed(|it| match it {
            Answer::Reset => Some(()),
            _ => None,
        }))
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        if !policy.is_penalty() {
            return Reply::ready(Err(StoreError::not_blockable(STORE, policy)));
        }
        let (state, policy) = (self.0.names.state(policy, key), policy.clone());
        let answer = self.submit(Request::Block { state, policy, block });
        Reply::pending(answer.boxed(|it| match it {
            Answer::Blocked(blocked) => Some(blocked),
            _ => None,
        }))
    }

    fn name(&self) -> &'static str {
        "redis"
    }

    /// The first call joins the roster in Redis, which counts the stores in this namespace that
    /// have done so. A store renews its entry every second, and is counted for up to ten seconds
    /// after its last heartbeat.
    fn replicas(&self) -> Option<NonZeroU32> {
        let Combiner { topology, ids, runtime, .. } = &*self.0.combiner;
        let join = || Roster::join(topology, self.0.names.roster(), ids.process(), runtime);
        self.0.roster.get_or_init(join).count()
    }

    /// The first call starts to read the overrides in Redis about once a second. The stores in this
    /// namespace share them.
    ///
    /// The deny cache and leases need not forget a key: they belong to a quota, and an override is
    /// another quota.
    fn overrides(&self) -> Option<Overrides> {
        let Combiner { topology, ids, runtime, clock, .. } = &*self.0.combiner;
        let names = &self.0.names;
        let start = || SharedOverrides::start(topology, names, clock, ids.process(), runtime);
        Some(self.0.overrides.get_or_init(start).overrides.clone())
    }
}

impl RedisStore {
    /// Returns whether one call can decide all charges. Most requests have a single key, and all
    /// its policies share a slot.
    fn is_one_call(&self, charges: &[NamedCharge]) -> bool {
        let topology = &self.0.combiner.topology;
        let mut slots = charges.iter().map(|charge| topology.slot(&charge.state));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Whether the same server certainly decides all charges. Unlike [`is_one_call`], this does not
    /// hash the keys.
    ///
    /// [`is_one_call`]: Self::is_one_call
    fn shares_server(&self, charges: &[Charge<'_>]) -> bool {
        self.0.combiner.topology.is_single()
            || charges.iter().all(|charge| charge.key == charges[0].key)
    }
}
