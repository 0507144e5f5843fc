//! The [`Store`] contract, as a suite of named checks.
//!
//! Implement [`Harness`] for your store, or for a wrapper around a store, and call
//! [`store_tests!`]. The macro generates one test per check, so every failure has a name. The
//! checks use only the [`Store`] trait.
//!
//! A check never passes without testing its subject. Checks that move the store's clock fail if
//! [`Harness::advance`] cannot move it, so `store_tests!(Harness, real time)` leaves them out. If
//! possible, run a store both ways: with a clock that the harness moves, because only then are the
//! effects of time checked to the microsecond, and with the clock that users have.
//!
//! The strongest check compares the store with [`reference::Reference`] on long random traces. The
//! reference is a thin layer over the core's pure functions, and every field in every verdict must
//! be equal. Each run uses different traces. A failed check prints the variable `TOLLGATE_SEED`
//! that reproduces it, and `TOLLGATE_LONG=1` makes the traces 150 times longer.
//!
//! For a wrapper, also call [`wrapper_returns_inner_store_properties`](checks::wrappers),
//! which covers the trait methods that have a default.
//!
//! ```
//! use tollgate_core::Micros;
//! use tollgate_memory::{ManualClock, MemoryStore};
//! use tollgate_store_tests::{Harness, store_tests};
//!
//! struct Memory(ManualClock);
//!
//! impl Harness for Memory {
//!     type Store = MemoryStore<ManualClock>;
//!
//!     async fn start() -> (Self, Self::Store) {
//!         let clock = ManualClock::default();
//!         (Self(clock.clone()), MemoryStore::builder().clock(clock).build())
//!     }
//!
//!     fn advance(&self, span: Micros) -> bool {
//!         self.0.advance(span);
//!         true
//!     }
//! }
//!
//! store_tests!(Memory);
//! # fn main() {}
//! ```

pub mod checks;
pub mod law;
mod random;
pub mod reference;
mod skip;

pub use self::random::{is_long, seed, seeds, vary};
pub use self::skip::skip;

use tollgate_core::{Micros, Store};

/// A store under test, and a way to move its time.
pub trait Harness: Sized + Send + Sync {
    /// The store.
    type Store: Store;

    /// Starts an empty store and everything that it needs. They run until `Self` is dropped.
    fn start() -> impl Future<Output = (Self, Self::Store)> + Send;

    /// Moves the store's time forward by `span`. A harness for a store that runs in real time
    /// cannot do this and returns `false`.
    fn advance(&self, span: Micros) -> bool {
        let _ = span;
        false
    }
}

/// Generates a `#[tokio::test]` for every check, using the given [`Harness`].
///
/// `store_tests!(Harness, real time)` leaves out the checks that move the store's clock.
///
/// A store with a server is slow to start. `store_tests!(Harness, one server)` and
/// `store_tests!(Harness, one server, real time)` run the checks in turn, in a few tests, so a
/// harness can start its server once and separate the checks' keys.
///
/// `store_tests!(Harness, several machines)` leaves out the checks that compare entire verdicts
/// with the reference, because a store that spans several machines guarantees a consistent snapshot
/// only per machine.
#[macro_export]
macro_rules! store_tests {
    ($harness:ty) => {
        $crate::store_tests!($harness, real time);
        $crate::store_tests!(@each $harness: traces::{
            settlements_and_resets_match_the_reference,
        });
        $crate::store_tests!(@moving each $harness);
    };
    ($harness:ty, real time) => {
        $crate::store_tests!(@list each $harness);
        $crate::store_tests!(@each $harness: traces::{
            verdicts_match_the_reference,
        });
    };
    ($harness:ty, one server) => {
        $crate::store_tests!($harness, one server, real time);
        $crate::store_tests!(@each $harness: traces::{
            settlements_and_resets_match_the_reference,
        });
        $crate::store_tests!(@moving moved_in_turn $harness);
    };
    ($harness:ty, one server, real time) => {
        $crate::store_tests!(@list in_turn $harness);
        $crate::store_tests!(@each $harness: traces::{
            verdicts_match_the_reference,
        });
    };
    ($harness:ty, several machines) => {
        $crate::store_tests!(@list in_turn $harness);
        $crate::store_tests!(@moving moved_in_turn $harness);
    };
    (@list $how:ident $harness:ty) => {
        $crate::store_tests!(@$how $harness:
            basics::{
                admits_exactly_the_limit,
                decisions_report_remaining_and_reset,
                cost_above_capacity_never_passes,
                zero_cost_changes_nothing,
                denials_change_nothing,
                keys_are_arbitrary_bytes,
                policies_are_separate_by_name,
                clones_share_state,
                reset_affects_one_key,
            },
            several::{
                charges_are_all_or_none,
                denied_request_reports_other_policies,
                charges_to_same_quota_are_summed,
                shadow_never_denies,
                shadow_counts_only_admitted_requests,
                shadow_changes_no_decision,
                request_can_have_ten_policies,
                conflicting_quotas_are_an_error,
                dry_charges_change_nothing,
                dry_charges_see_other_charges,
            },
            settle::{
                refunded_units_can_be_used_again,
                receipt_settles_once,
                debt_is_bounded_by_capacity,
                reset_invalidates_earlier_receipts,
                refunds_reach_versions_that_counted,
                old_receipt_does_not_reduce_new_debt,
                equivalent_quotas_share_state,
            },
            in_flight::{
                permit_counts_until_it_is_returned,
                renewed_permit_counts_once,
                renewal_charges_permit_again_after_reset,
                changed_limit_preserves_permits,
                returned_permit_restores_no_quota,
                only_permits_can_be_renewed,
                concurrency_never_exceeds_the_limit,
            },
            penalties::{
                third_denial_blocks,
                only_denials_of_the_same_key_strike,
                settling_upwards_adds_a_strike,
                concurrent_denials_cause_one_block,
                block_denies_until_its_end,
                late_blocks_change_nothing,
            },
            versions::{
                changed_quota_preserves_consumed_units,
                alternating_versions_obey_the_larger_limit,
                third_version_counts_the_units_of_the_second,
                changed_algorithm_preserves_consumed_units,
            },
            concurrency::{
                concurrent_tasks_share_one_limit,
                concurrent_tasks_obey_tightest_policy,
                mixed_costs_use_every_unit,
                concurrent_settlements_lose_no_units,
                queued_requests_depart_separately,
            },
            calendar::{
                denial_reports_period_end,
                refund_counts_in_current_period,
                changed_calendar_preserves_consumed_units,
                decision_uses_its_own_period,
            }
        );
    };
    (@moving $how:ident $harness:ty) => {
        $crate::store_tests!(@$how $harness:
            time::{
                denied_until_retry_after,
                key_is_unused_after_reset_after,
                queue_releases_requests_evenly,
            },
            settle::{
                expired_receipt_cannot_be_settled,
                other_window_changes_no_lifetime,
                only_last_queued_request_is_refunded,
            },
            in_flight::{
                unreturned_permit_expires,
                renewal_extends_a_permit,
                renewal_charges_lapsed_permit_again,
            },
            penalties::{
                blocks_grow_and_are_forgotten,
            },
            versions::{
                fifth_version_replaces_the_oldest,
            },
            calendar::{
                quota_renews_with_the_calendar,
                late_refund_does_not_reach_next_period,
            }
        );
    };
    (@each $harness:ty: $($module:ident::{$($check:ident),* $(,)?}),*) => {
        $($(
            #[$crate::tokio::test(crate = "tollgate_store_tests::tokio", flavor = "multi_thread", worker_threads = 4)]
            async fn $check() {
                let (harness, store) = <$harness as $crate::Harness>::start().await;
                $crate::checks::$module::$check(&harness, &store).await;
            }
        )*)*
    };
    (@in_turn $harness:ty: $($checks:tt)*) => {
        $crate::store_tests!(@one every_check $harness: $($checks)*);
    };
    (@moved_in_turn $harness:ty: $($checks:tt)*) => {
        $crate::store_tests!(@one every_check_with_time $harness: $($checks)*);
    };
    (@one $test:ident $harness:ty: $($module:ident::{$($check:ident),* $(,)?}),*) => {
        #[$crate::tokio::test(crate = "tollgate_store_tests::tokio", flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            $($(
                println!(concat!(stringify!($module), "::", stringify!($check)));
                let (harness, store) = <$harness as $crate::Harness>::start().await;
                $crate::checks::$module::$check(&harness, &store).await;
            )*)*
        }
    };
}

/// `tokio::test`, for [`store_tests!`].
#[doc(hidden)]
pub use tokio;
