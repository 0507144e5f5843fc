//! A table for any algorithm.

use tollgate_core::algorithm::Rule;
use tollgate_core::algorithm::calendar_window_counter::CalendarWindowCounter;
use tollgate_core::algorithm::concurrent_requests::ConcurrentRequests;
use tollgate_core::algorithm::fixed_window_counter::FixedWindowCounter;
use tollgate_core::algorithm::leaky_bucket::LeakyBucket;
use tollgate_core::algorithm::penalty::Penalty;
use tollgate_core::algorithm::sliding_window_counter::SlidingWindowCounter;
use tollgate_core::algorithm::sliding_window_log::SlidingWindowLog;
use tollgate_core::algorithm::token_bucket::TokenBucket;
use tollgate_core::{AnyRule, Key, Policy};

use crate::table::{Table, Written};

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
                    $(AnyRule::$rule(_) => Self::$rule(Table::new(policy.clone()))),*
                }
            }

            /// The version of most keys.
            #[inline(always)]
            pub(crate) fn main(&self) -> &Policy {
                with_table!(self, table => table.main())
            }

            pub(crate) fn len(&self) -> usize {
                with_table!(self, table => table.len())
            }

            pub(crate) fn bytes(&self) -> usize {
                with_table!(self, table => table.bytes())
            }

            /// Removes a key, and returns its state.
            pub(crate) fn take(&mut self, hash: u64, key: &Key) -> Option<Written<AnyState>> {
                match self {
                    $(Self::$rule(table) => {
                        let Written { policy, state, since } = table.take(hash, key)?;
                        Some(Written { policy, state: AnyState::$rule(state), since })
                    })*
                }
            }

            /// Returns the version under which a key's state was written.
            pub(crate) fn version_of(&self, hash: u64, key: &Key) -> Option<&Policy> {
                with_table!(self, table => table.version_of(hash, key))
            }
        }

        /// A state for any algorithm.
        #[derive(Debug)]
        pub(crate) enum AnyState {
            $($rule(<$rule as Rule>::State)),*
        }

        $(impl StoredRule for $rule {
            #[inline]
            fn table(any: &AnyTable) -> Option<&Table<Self>> {
                if let AnyTable::$rule(table) = any { Some(table) } else { None }
            }

            #[inline]
            fn table_mut(any: &mut AnyTable) -> Option<&mut Table<Self>> {
                if let AnyTable::$rule(table) = any { Some(table) } else { None }
            }

            fn state<'a>(&self, any: &'a AnyState) -> Option<&'a Self::State> {
                if let AnyState::$rule(state) = any { Some(state) } else { None }
            }

            fn state_mut<'a>(&self, any: &'a mut AnyState) -> Option<&'a mut Self::State> {
                if let AnyState::$rule(state) = any { Some(state) } else { None }
            }

            fn wrap(&self, state: Self::State) -> AnyState {
                AnyState::$rule(state)
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

/// A rule with access to its variants of [`AnyTable`] and [`AnyState`].
pub(crate) trait StoredRule: Rule {
    fn table(any: &AnyTable) -> Option<&Table<Self>>;
    fn table_mut(any: &mut AnyTable) -> Option<&mut Table<Self>>;
    fn state<'a>(&self, any: &'a AnyState) -> Option<&'a Self::State>;
    fn state_mut<'a>(&self, any: &'a mut AnyState) -> Option<&'a mut Self::State>;
    fn wrap(&self, state: Self::State) -> AnyState;
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
