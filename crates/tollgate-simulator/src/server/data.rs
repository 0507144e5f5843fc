//! A server's data: states, receipts and the roster.

use std::collections::BTreeMap;

use bytes::Bytes;
use tollgate_core::algorithm::Form;
use tollgate_core::{Key, Micros, Policy, Quota, ReceiptId, Timestamp};
use tollgate_redis::simulation;
use tollgate_store_tests::reference::Reference;

/// A key expires in the second that starts this many seconds after the second in which its state
/// becomes fresh.
const SLACK: u64 = 2;
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) reference: Reference,
    /// The processes that share the quotas, and when each was last seen.
    pub(super) roster: BTreeMap<Bytes, Timestamp>,
    /// When each key expires.
    expiries: BTreeMap<(String, Vec<u8>), Timestamp>,
    /// The version of the policy that last wrote each key.
    versions: BTreeMap<(String, Vec<u8>), Form>,
    /// The keys that mark receipts as settled.
    pub(super) receipts: BTreeMap<Bytes, ReceiptId>,
}

impl Data {
    /// Whether a key exists.
    pub(super) fn has(&self, name: &[u8], now: Timestamp) -> bool {
        self.receipts.contains_key(name)
            || self.expiries.get(&state_of(name)).is_some_and(|at| now < *at)
    }

    /// Returns a slot's key names.
    pub(super) fn names(&self, slot: u16) -> Vec<Bytes> {
        let states = self
            .expiries
            .keys()
            .map(|(policy, key)| Bytes::from([key.as_slice(), b":", policy.as_bytes()].concat()));
        let names = states.chain(self.receipts.keys().cloned());
        names.filter(|name| simulation::slot(name) == slot).collect()
    }

    /// Moves a key.
    pub(super) fn hand_over(&mut self, name: &Bytes, to: &mut Self) {
        if let Some(id) = self.receipts.remove(name) {
            to.receipts.insert(name.clone(), id);
            to.reference.mark_settled(id);
        }
        let state = state_of(name);
        if let Some(expires) = self.expiries.remove(&state) {
            let key = Key::new(&*state.1);
            self.reference.hand_over(&any_policy(&state.0), &key, &mut to.reference);
            to.expiries.insert(state, expires);
        }
    }

    /// Whether another version of the policy last wrote the key.
    pub(super) fn has_another_version(&self, policy: &Policy, key: &Key) -> bool {
        let name = (policy.name().to_owned(), key.as_bytes().to_vec());
        self.expiries.contains_key(&name)
            && self.versions.get(&name).is_some_and(|form| *form != policy.form())
    }

    /// Drops an expired key.
    pub(super) fn expire(&mut self, policy: &str, key: &Key, now: Timestamp) {
        let name = (policy.to_owned(), key.as_bytes().to_vec());
        if self.expiries.get(&name).is_some_and(|at| now >= *at) {
            self.expiries.remove(&name);
            self.reference.drop_state(&any_policy(policy), key);
        }
    }

    /// Sets the expiry if the key was written.
    pub(super) fn written(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        let name = (policy.name().to_owned(), key.as_bytes().to_vec());
        match self.reference.fresh_after(policy, key, now) {
            Micros::ZERO => {
                self.reference.drop_state(policy, key);
                self.expiries.remove(&name);
            }
            after => {
                let second = (now + after).as_micros() / 1_000_000 + SLACK;
                self.versions.insert(name.clone(), policy.form());
                self.expiries.insert(name, Timestamp::from_micros(second * 1_000_000));
            }
        }
    }
}

/// Returns the policy and subject in a state's name.
fn state_of(name: &[u8]) -> (String, Vec<u8>) {
    let end = name.iter().position(|byte| *byte == b'}').expect("a subject in braces");
    let (subject, policy) = name.split_at(end + 1);
    let policy = policy.get(1..).unwrap_or_default();
    (String::from_utf8_lossy(policy).into_owned(), subject.to_vec())
}

/// A policy with this name. States depend only on the name.
pub(super) fn any_policy(name: &str) -> Policy {
    Policy::fixed_window_counter(name, Quota::per_second(1))
        .expect("a policy that was built before")
}
