//! A table for any algorithm.

use foldhash::fast::RandomState;
use tollgate_core::algorithm::Rule;
use tollgate_core::algorithm::calendar_window_counter::CalendarWindowCounter;
use tollgate_core::algorithm::concurrent_requests::ConcurrentRequests;
use tollgate_core::algorithm::fixed_window_counter::FixedWindowCounter;
use tollgate_core::algorithm::leaky_bucket::LeakyBucket;
use tollgate_core::algorithm::penalty::Penalty;
use tollgate_core::algorithm::sliding_window_counter::SlidingWindowCounter;
use tollgate_core::algorithm::sliding_window_log::SlidingWindowLog;
use tollgate_core::algorithm::token_bucket::TokenBucket;
use tollgate_core::{AnyRule, Key, Policy, Timestamp};

use crate::table::Table;

/// Generates the enum of tables and its methods from a single list of variants.
macro_rules! any_table {
    ($($rule:ident),*) => {
        /// A table for any algorithm.
        #[derive(Debug)]
        pub(crate) enum AnyTable {
            $($rule(Table<$rule>)),*
        }

        impl AnyTable {
            pub(crate) fn new(policy: &Policy) -> Self {
                match policy.rule() {
                    $(AnyRule::$rule(rule) => Self::$rule(Table::new(policy.clone(), rule.clone()))),*
                }
            }

            pub(crate) fn policy(&self) -> &Policy {
                with_table!(self, table => &table.policy)
            }

            /// Whether this is the table of the policy, or of another version of it.
            pub(crate) fn is_version_of(&self, policy: &Policy) -> bool {
                let own = self.policy();
                own.name_hash() == policy.name_hash() && own.name() == policy.name()
            }

            pub(crate) fn len(&self) -> usize {
                with_table!(self, table => table.len())
            }

            pub(crate) fn bytes(&self) -> usize {
                with_table!(self, table => table.bytes())
            }

            pub(crate) fn remove(&mut self, hash: u64, key: &Key) {
                with_table!(self, table => table.remove(hash, key));
            }

            pub(crate) fn contains(&self, hash: u64, key: &Key) -> bool {
                with_table!(self, table => table.find(hash, key).is_some())
            }

            pub(crate) fn is_fresh(&self, hash: u64, key: &Key, now: Timestamp) -> bool {
                with_table!(self, table => {
                    table.find(hash, key).is_none_or(|state| table.rule.is_fresh(state, now))
                })
            }

            pub(crate) fn shrink(&mut self, hasher: &RandomState) {
                with_table!(self, table => table.shrink(hasher));
            }

            pub(crate) fn sweep(&mut self, buckets: usize, now: Timestamp) {
                with_table!(self, table => table.sweep(buckets, now));
            }

            /// The state of `key` at `now`, converted to `rule`.
            pub(crate) fn read_as<R: Kind>(
                &self,
                rule: &R,
                hash: u64,
                key: &Key,
                now: Timestamp,
            ) -> Option<R::State> {
                if let Some(table) = R::table(self) {
                    let state = table.find(hash, key)?;
                    let same = table.rule == *rule;
                    return Some(if same { state.clone() } else { rule.convert(&table.rule, state, now) });
                }
                with_table!(self, table => {
                    let state = table.find(hash, key)?;
                    Some(rule.resume(table.rule.consumed(state, now), now))
                })
            }
        }

        $(impl Kind for $rule {
            #[inline]
            fn table(any: &AnyTable) -> Option<&Table<Self>> {
                if let AnyTable::$rule(table) = any { Some(table) } else { None }
            }

            #[inline]
            fn table_mut(any: &mut AnyTable) -> Option<&mut Table<Self>> {
                if let AnyTable::$rule(table) = any { Some(table) } else { None }
            }
        })*
    };
}

/// Evaluates `$body` with `$table` bound to the table inside an [`AnyTable`].
macro_rules! with_table {
    ($any:expr, $table:ident => $body:expr) => {
        match $any {
            $crate::any_table::AnyTable::FixedWindowCounter($table) => $body,
            $crate::any_table::AnyTable::SlidingWindowLog($table) => $body,
            $crate::any_table::AnyTable::SlidingWindowCounter($table) => $body,
            $crate::any_table::AnyTable::TokenBucket($table) => $body,
            $crate::any_table::AnyTable::LeakyBucket($table) => $body,
            $crate::any_table::AnyTable::ConcurrentRequests($table) => $body,
            $crate::any_table::AnyTable::CalendarWindowCounter($table) => $body,
            $crate::any_table::AnyTable::Penalty($table) => $body,
        }
    };
}
pub(crate) use with_table;

/// A rule with access to its variant of [`AnyTable`].
pub(crate) trait Kind: Rule {
    fn table(any: &AnyTable) -> Option<&Table<Self>>;
    fn table_mut(any: &mut AnyTable) -> Option<&mut Table<Self>>;
}

any_table!(
    FixedWindowCounter,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
    LeakyBucket,
    ConcurrentRequests,
    CalendarWindowCounter,
    Penalty
);
