//! Overrides: temporary changes to a key's quota, made by an operator.

use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::{BoxFuture, Key, Micros, Policy, PolicyError, Quota, StoreError, Timestamp};

/// A temporary change to a key's quota under a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The policy's name.
    pub policy: String,
    /// The subject as operators see it. It need not be the key.
    pub subject: String,
    /// What applies instead of the policy.
    pub change: OverrideChange,
    /// The override's end, in the store's time.
    pub until: Timestamp,
}

/// The effect of an [`Override`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideChange {
    /// The key has another quota.
    Quota {
        /// The units per window.
        limit: u64,
        /// The window. By default the policy's.
        window: Option<Micros>,
        /// The burst, if the policy has one. By default it changes in proportion to the limit.
        burst: Option<u64>,
    },
    /// The key's requests are denied.
    Block,
}

/// Why a policy cannot be overridden.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// A penalty has no quota.
    #[doc(alias = "TG0606")]
    #[error(
        "policy `{0}` is a penalty and has no quota: override the policy that it protects [TG0606]"
    )]
    Penalty(String),
    /// Queued requests already have their places.
    #[doc(alias = "TG0606")]
    #[error(
        "policy `{0}` queues its requests, whose places depend on its quota: change the quota where \
         the policy is configured [TG0606]"
    )]
    Queue(String),
    /// The window of a calendar or of permits is not a time that can be set.
    #[doc(alias = "TG0606")]
    #[error("policy `{0}` has no window that can be changed: override only its limit [TG0606]")]
    Window(String),
    /// The quota is not valid for the policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

crate::debug_as_display!(OverrideError);

impl OverrideChange {
    /// Returns the policy that applies to the key instead of `policy`. A block changes no quota.
    ///
    /// # Errors
    /// The policy cannot be overridden like this.
    pub fn policy(&self, policy: &Policy) -> Result<Policy, OverrideError> {
        let name = || policy.name().to_owned();
        if policy.is_penalty() {
            return Err(OverrideError::Penalty(name()));
        }
        if policy.queues() {
            return Err(OverrideError::Queue(name()));
        }
        let Self::Quota { limit, window, burst } = *self else { return Ok(policy.clone()) };
        let base = policy.quota();
        let has_fixed_window = base.calendar().is_some() || policy.is_concurrency();
        if window.is_some() && has_fixed_window {
            return Err(OverrideError::Window(name()));
        }
        if base.calendar().is_some() {
            return Ok(policy.with_quota(base.with_limit(limit))?);
        }
        let quota = Quota::new(limit, window.map_or_else(|| base.window(), Duration::from));
        let in_proportion = |units: u64| {
            let units = u128::from(units) * u128::from(limit) / u128::from(base.limit().max(1));
            u64::try_from(units).unwrap_or(u64::MAX).max(1)
        };
        let burst = burst.or_else(|| base.burst_units().map(in_proportion));
        Ok(policy.with_quota(burst.map_or(quota, |burst| quota.burst(burst)))?)
    }
}

/// A store's overrides. Clones share them.
///
/// A store's overrides apply to all layers and limiters that use it. Reading them needs no call to
/// the store: a process has a copy of the list. [`is_any`](Self::is_any) is the only work for a
/// request while the list is empty.
///
/// # Clock
/// An override ends by the store's time.
///
/// # Memory
/// A store has at most [`MAX`](Self::MAX) overrides.
#[derive(Clone)]
pub struct Overrides(Arc<Inner>);

struct Inner {
    is_any: AtomicBool,
    /// The earliest end in the list, in microseconds.
    next_end: AtomicU64,
    /// Incremented by each change.
    version: AtomicU64,
    list: RwLock<OverrideList>,
    place: Box<dyn OverridePlace>,
}

/// Overrides by ID.
pub type OverrideList = BTreeMap<OverrideId, Override>;

/// Identifies a policy and key in a store, by a keyed hash.
pub type OverrideId = Box<[u8]>;

/// A place for a store's overrides.
pub trait OverridePlace: Send + Sync + 'static {
    /// Returns a key's ID under a policy.
    fn id(&self, policy: &str, key: &Key) -> OverrideId;

    /// Returns the store's current time.
    fn now(&self) -> Timestamp;

    /// Edits the list, for all processes. Returns whether the edited override existed.
    fn edit(&self, overrides: &Overrides, edit: OverrideEdit) -> BoxFuture<bool>;

    /// Brings this process's copy of the list up to date.
    fn refresh(&self, overrides: &Overrides) -> BoxFuture<()>;
}

/// A change to the list.
#[derive(Clone, Debug)]
pub enum OverrideEdit {
    /// Adds an override, or replaces the override with this ID.
    Set(OverrideId, Override),
    /// Removes an override.
    Remove(OverrideId),
}

impl OverrideEdit {
    /// Edits a list, and removes the overrides that have ended. Returns whether the edited override
    /// existed.
    ///
    /// # Errors
    /// The list is full, or the new override has already ended.
    pub fn apply(self, list: &mut OverrideList, now: Timestamp) -> Result<bool, StoreError> {
        list.retain(|_, it| it.until > now);
        match self {
            Self::Set(_, it) if it.until <= now => {
                Err(StoreError::invalid(NAME, "the end is not in the future"))
            }
            Self::Set(id, _) if list.len() >= Overrides::MAX && !list.contains_key(&id) => {
                let most = Overrides::MAX;
                let full = format!("there are {most} overrides, the maximum: remove one first");
                Err(StoreError::invalid(NAME, full))
            }
            Self::Set(id, it) => Ok(list.insert(id, it).is_some()),
            Self::Remove(id) => Ok(list.remove(&id).is_some()),
        }
    }
}

impl Overrides {
    /// The most overrides in a store.
    pub const MAX: usize = 10_000;

    /// Creates an empty list in this place.
    pub fn new(place: impl OverridePlace) -> Self {
        Self(Arc::new(Inner {
            is_any: AtomicBool::new(false),
            next_end: AtomicU64::new(u64::MAX),
            version: AtomicU64::new(0),
            list: RwLock::default(),
            place: Box::new(place),
        }))
    }

    /// Creates a list that exists only in this process, for a store with this clock.
    pub fn in_process(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::new(InProcess(now, Default::default()))
    }

    /// Returns whether there may be any override.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        self.0.is_any.load(Ordering::Relaxed)
    }

    /// Returns a key's override under the policy with this name.
    pub fn find(&self, policy: &str, key: &Key) -> Option<Override> {
        self.find_at(policy, key, self.now())
    }

    /// Like [`find`](Self::find), at this time. A program that looks for several keys reads the time
    /// once.
    #[cold]
    pub fn find_at(&self, policy: &str, key: &Key, now: Timestamp) -> Option<Override> {
        if now.as_micros() >= self.0.next_end.load(Ordering::Relaxed) {
            self.edit_copy(|list| list.retain(|_, it| it.until > now));
        }
        if !self.is_any() {
            return None;
        }
        let id = self.id(policy, key);
        let found = self.read(|list| list.get(&id).cloned())?;
        (found.until > now).then_some(found)
    }

    /// Returns the policy that applies to a key now, and how long the key is blocked.
    pub fn apply(&self, policy: &Policy, key: &Key) -> (Policy, Option<Micros>) {
        let found = self.is_any().then(|| self.find(policy.name(), key)).flatten();
        let applied = found.and_then(|it| Some((it.change.policy(policy).ok()?, it)));
        let Some((overridden, it)) = applied else { return (policy.clone(), None) };
        let is_block = it.change == OverrideChange::Block;
        (overridden, is_block.then(|| it.until.since(self.now())))
    }

    /// Returns all overrides, with their IDs.
    pub fn list(&self) -> Vec<(OverrideId, Override)> {
        let now = self.now();
        let all = |list: &OverrideList| -> Vec<_> {
            let current = list.iter().filter(|(_, it)| it.until > now);
            current.map(|(id, it)| (id.clone(), it.clone())).collect()
        };
        self.read(all)
    }

    /// Overrides a key's quota, for all processes over the store. The change applies in this process
    /// when the result is ready, and in other processes within two seconds.
    ///
    /// # Errors
    /// The end is not in the future, there are too many overrides, or the store is unavailable.
    pub fn set(&self, key: &Key, mut it: Override) -> BoxFuture<bool> {
        if it.subject.chars().nth(MAX_SUBJECT).is_some() {
            it.subject = it.subject.chars().take(MAX_SUBJECT - 1).chain(['…']).collect();
        }
        let id = self.id(&it.policy, key);
        self.0.place.edit(self, OverrideEdit::Set(id, it))
    }

    /// Removes a key's override. Returns whether there was one.
    ///
    /// # Errors
    /// The store is unavailable.
    pub fn remove(&self, policy: &str, key: &Key) -> BoxFuture<bool> {
        self.remove_id(self.id(policy, key))
    }

    /// Removes the override with this ID. Returns whether there was one.
    ///
    /// # Errors
    /// The store is unavailable.
    pub fn remove_id(&self, id: OverrideId) -> BoxFuture<bool> {
        self.0.place.edit(self, OverrideEdit::Remove(id))
    }

    /// Brings this process's copy of the list up to date, for programs that do not wait until it is.
    ///
    /// # Errors
    /// The store is unavailable.
    pub fn refresh(&self) -> BoxFuture<()> {
        self.0.place.refresh(self)
    }

    /// Returns the ID of a key's override under the policy with this name.
    pub fn id(&self, policy: &str, key: &Key) -> OverrideId {
        self.0.place.id(policy, key)
    }

    /// Returns the store's current time, by which overrides end.
    pub fn now(&self) -> Timestamp {
        self.0.place.now()
    }

    /// Returns a number that changes with each change of the list.
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Changes this process's copy of the list, for stores.
    pub fn edit_copy<T>(&self, edit: impl FnOnce(&mut OverrideList) -> T) -> T {
        let inner = &*self.0;
        let mut list = inner.list.write().unwrap_or_else(PoisonError::into_inner);
        let result = edit(&mut list);
        let ends = list.values().map(|it| it.until.as_micros());
        inner.next_end.store(ends.min().unwrap_or(u64::MAX), Ordering::Relaxed);
        inner.version.fetch_add(1, Ordering::Release);
        inner.is_any.store(!list.is_empty(), Ordering::Relaxed);
        result
    }

    /// Reads this process's copy of the list, for stores.
    pub fn read<T>(&self, read: impl FnOnce(&OverrideList) -> T) -> T {
        read(&self.0.list.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The most characters of a subject. The list must not use unbounded memory.
const MAX_SUBJECT: usize = 128;

/// This module's name in errors.
const NAME: &str = "overrides";

/// A clock, and the secrets of the IDs, which are shown and must not contain a masked key.
struct InProcess<F>(F, [RandomState; 2]);

impl<F: Fn() -> Timestamp + Send + Sync + 'static> OverridePlace for InProcess<F> {
    fn id(&self, policy: &str, key: &Key) -> OverrideId {
        let halves = self.1.each_ref().map(|half| half.hash_one((policy, key)).to_be_bytes());
        halves.as_flattened().into()
    }

    fn now(&self) -> Timestamp {
        (self.0)()
    }

    fn edit(&self, overrides: &Overrides, edit: OverrideEdit) -> BoxFuture<bool> {
        let edited = overrides.edit_copy(|list| edit.apply(list, self.now()));
        Box::pin(ready(edited))
    }

    fn refresh(&self, _: &Overrides) -> BoxFuture<()> {
        Box::pin(ready(Ok(())))
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.read(OverrideList::len);
        f.debug_struct("Overrides").field("count", &count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
