//! The keys for a policy in a shard.

use foldhash::fast::RandomState;
use tollgate_core::algorithm::{Rule, converted};
use tollgate_core::{Charge, Decision, Key, Policy, Timestamp};

use crate::entries::{Entries, Main, NEXT};

/// The keys for a policy in a shard.
///
/// The policy's quota may differ from key to key, for example from tenant to tenant. Each state is
/// read under the version of the policy under which it was written.
#[derive(Debug)]
pub(crate) struct Table<R: Rule> {
    /// The version of most keys.
    main: Policy,
    mains: Entries<R::State, Main>,
    /// Keys under other versions, and perhaps some under a version that has become the main version.
    others: Entries<R::State, Policy>,
}

/// A state, the version under which it was written, and the instant of its first receipt.
#[derive(Debug)]
pub(crate) struct Written<S> {
    pub(crate) policy: Policy,
    pub(crate) state: S,
    pub(crate) since: Timestamp,
}

/// A known key's place in a table, valid until the table changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    is_main: bool,
    bucket: usize,
}

/// Evaluates `$body` with a key's entry, which is under the main version or another one.
macro_rules! with_entry {
    ($table:expr, $find:ident($hash:expr, $key:expr), $entry:ident => $body:expr) => {
        match $table.mains.$find($hash, $key) {
            Some($entry) => Some($body),
            None => $table.others.$find($hash, $key).map(|$entry| $body),
        }
    };
}

impl<R: Rule> Table<R> {
    pub(crate) const fn new(main: Policy) -> Self {
        Self { main, mains: Entries::new(), others: Entries::new() }
    }

    /// The version of most keys.
    #[inline(always)]
    pub(crate) const fn main(&self) -> &Policy {
        &self.main
    }

    /// Decides a charge to a key that is known under this version, and makes the charge if it is
    /// allowed.
    #[inline(always)]
    pub(crate) fn decide(
        &mut self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<Decision> {
        let Self { main, mains, others } = self;
        if main.shares_state_with(charge.policy)
            && let Some(decision) = mains.decide::<R>(charge, hash, now)
        {
            return Some(decision);
        }
        others.decide::<R>(charge, hash, now)
    }

    /// Decides a charge to a key that is known under this version, without making it.
    #[inline(always)]
    pub(crate) fn assess(
        &self,
        charge: &Charge<'_>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(Place, Decision)> {
        let Self { main, mains, others } = self;
        if main.shares_state_with(charge.policy)
            && let Some((bucket, decision)) = mains.assess::<R>(charge, hash, now)
        {
            return Some((Place { is_main: true, bucket }, decision));
        }
        let (bucket, decision) = others.assess::<R>(charge, hash, now)?;
        Some((Place { is_main: false, bucket }, decision))
    }

    /// Makes a charge that was assessed as allowed.
    #[inline(always)]
    pub(crate) fn charge(&mut self, at: Place, charge: &Charge<'_>, now: Timestamp) {
        if at.is_main {
            self.mains.charge::<R>(at.bucket, charge, now);
        } else {
            self.others.charge::<R>(at.bucket, charge, now);
        }
    }

    /// Returns a key's state, if it was written under this version.
    pub(crate) fn find(&self, hash: u64, key: &Key, policy: &Policy) -> Option<&R::State> {
        with_entry!(self, find(hash, key), entry => {
            entry.version(&self.main).shares_state_with(policy).then_some(&entry.state)
        })?
    }

    /// Like [`find`](Self::find), mutably.
    pub(crate) fn find_mut(
        &mut self,
        hash: u64,
        key: &Key,
        policy: &Policy,
    ) -> Option<&mut R::State> {
        with_entry!(self, find_mut(hash, key), entry => {
            entry.version(&self.main).shares_state_with(policy).then_some(&mut entry.state)
        })?
    }

    /// Returns the version under which a key's state was written.
    pub(crate) fn version_of(&self, hash: u64, key: &Key) -> Option<&Policy> {
        with_entry!(self, find(hash, key), entry => entry.version(&self.main))
    }

    /// Returns a key's state, converted to `rule`, unless it is as good as unused.
    pub(crate) fn read_as<T: Rule>(
        &self,
        rule: &T,
        hash: u64,
        key: &Key,
        now: Timestamp,
    ) -> Option<T::State> {
        with_entry!(self, find(hash, key), entry => {
            let from = entry.rule::<R>(&self.main);
            (!from.is_fresh(&entry.state, now)).then(|| converted(rule, from, &entry.state))
        })?
    }

    /// Whether a charge made at `charged_at` can be told apart from other charges to the key.
    pub(crate) fn identifies(&self, hash: u64, key: &Key, charged_at: Timestamp) -> bool {
        with_entry!(self, find(hash, key), entry => entry.since <= charged_at).unwrap_or(false)
    }

    /// Whether a key's state equals an unused key's state.
    pub(crate) fn is_fresh(&self, hash: u64, key: &Key, now: Timestamp) -> bool {
        with_entry!(self, find(hash, key), entry => entry.is_fresh::<R>(&self.main, now))
            .unwrap_or(true)
    }

    /// Whether the table does not need the key any more.
    pub(crate) fn may_forget(&self, hash: u64, key: &Key, now: Timestamp) -> bool {
        with_entry!(self, find(hash, key), entry => entry.may_forget::<R>(&self.main, now))
            .unwrap_or(true)
    }

    /// Makes receipts for charges up to `now` void.
    pub(crate) fn void(&mut self, hash: u64, key: &Key, now: Timestamp) {
        with_entry!(self, find_mut(hash, key), entry => entry.since = entry.since.max(now + NEXT));
    }

    /// Forgets a key's charges, and makes their receipts void. The next sweep removes the key.
    pub(crate) fn reset(&mut self, hash: u64, key: &Key, now: Timestamp) {
        with_entry!(self, find_mut(hash, key), entry => {
            entry.since = entry.since.max(now + NEXT);
            entry.state = entry.rule::<R>(&self.main).fresh();
        });
    }

    /// Inserts a key that is not in the table yet.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: Key,
        written: Written<R::State>,
        now: Timestamp,
        hasher: &RandomState,
    ) {
        let Written { policy, state, since } = written;
        if self.mains.len() == 0 {
            self.main = policy.clone();
        }
        let Self { main, mains, others } = self;
        if main.shares_state_with(&policy) {
            mains.insert::<R>(hash, key, (state, since, Main), (main, now), hasher);
        } else {
            others.insert::<R>(hash, key, (state, since, policy), (main, now), hasher);
        }
    }

    /// Removes a key, and returns its state.
    pub(crate) fn take(&mut self, hash: u64, key: &Key) -> Option<Written<R::State>> {
        let Self { main, mains, others } = self;
        let main_entry = mains.take::<R>(hash, key, main);
        let entry = main_entry.map(|(state, since, Main)| (state, since, main.clone()));
        let (state, since, policy) = entry.or_else(|| others.take::<R>(hash, key, main))?;
        Some(Written { policy, state, since })
    }

    /// Checks the next buckets and removes keys that are as good as unused.
    pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
        self.mains.sweep::<R>(buckets, &self.main, now);
        self.others.sweep::<R>(buckets, &self.main, now);
    }

    /// Frees memory if the table is mostly empty.
    pub(crate) fn shrink(&mut self, hasher: &RandomState) {
        self.mains.shrink(hasher);
        self.others.shrink(hasher);
    }

    pub(crate) fn len(&self) -> usize {
        self.mains.len() + self.others.len()
    }

    /// Returns the bytes in use, plus the largest possible growth of the states.
    pub(crate) fn bytes(&self) -> usize {
        self.mains.bytes() + self.others.bytes()
    }

    /// Returns the bytes that another key would take after `reserved` other keys.
    pub(crate) fn bytes_of_one_more(&self, policy: &Policy, key: &Key, reserved: usize) -> usize {
        if self.mains.len() == 0 || self.main.shares_state_with(policy) {
            self.mains.bytes_of_one_more::<R>(policy, key, reserved)
        } else {
            self.others.bytes_of_one_more::<R>(policy, key, reserved)
        }
    }
}
