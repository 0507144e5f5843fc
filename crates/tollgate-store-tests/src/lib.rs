//! The [`Store`] contract, as a suite of named checks.
//!
//! Implement [`Harness`] for your store, or for a wrapper around a store, and call
//! [`store_tests!`]. The macro generates one test per check, so every failure has a name. The
//! checks use only the [`Store`] trait.
//!
//! A check never passes without checking its subject. Checks that move the store's clock fail if
//! [`Harness::advance`] cannot move it, so `store_tests!(Harness, real time)` leaves them out. If
//! possible, run a store both ways: with a clock that the harness moves, because only then are the
//! effects of time checked to the microsecond, and with the clock that users have.
//!
//! The strongest check compares the store with [`reference::Reference`] on long random traces. The
//! reference is a thin layer over the core's pure functions, and every field in every verdict must
//! be equal. Each run uses different traces. A failed check prints the variable `TOLLGATE_SEED`
//! that reproduces it, and `TOLLGATE_LONG=1` makes the traces 150 times longer.
//!
//! For a wrapper, also call [`a_wrapper_passes_on_what_the_store_inside_is`](checks::wrappers),
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
mod random;
pub mod reference;
mod skip;

pub use self::random::{is_long, seed, seeds};
pub use self::skip::skip;

use tollgate_core::{Micros, Store};

/// A store under test, and a way to move its time.
pub trait Harness: Sized + Send + Sync {
    /// The store.
    type Store: Store;

    /// Starts an empty store, with everything that it needs to run, until `Self` is dropped.
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
/// A store that spans several machines is slow to start. For such a store,
/// `store_tests!(Harness, several machines)` and
/// `store_tests!(Harness, several machines, real time)` generate a single test. They leave out the
/// checks that compare entire verdicts with the reference, because the store guarantees a
/// consistent snapshot only per machine.
#[macro_export]
macro_rules! store_tests {
    ($harness:ty) => {
        $crate::store_tests!($harness, real time);
        $crate::store_tests!(@each $harness: traces::{
            settling_and_resetting_equal_those_of_the_reference,
        });
        $crate::store_tests!(@moving each $harness);
    };
    ($harness:ty, real time) => {
        $crate::store_tests!(@list each $harness);
        $crate::store_tests!(@each $harness: traces::{
            every_verdict_equals_that_of_the_reference,
        });
    };
    ($harness:ty, several machines) => {
        $crate::store_tests!($harness, several machines, real time);
        $crate::store_tests!(@moving moved_in_turn $harness);
    };
    ($harness:ty, several machines, real time) => {
        $crate::store_tests!(@list in_turn $harness);
    };
    (@list $how:ident $harness:ty) => {
        $crate::store_tests!(@$how $harness:
            basics::{
                admits_exactly_the_limit,
                says_what_is_left_and_when_it_is_whole,
                a_cost_above_the_capacity_can_never_pass,
                peeking_changes_nothing,
                a_denial_changes_nothing,
                keys_are_separate_whatever_their_bytes,
                policies_are_separate_by_name,
                clones_share_state,
                reset_forgets_one_key,
            },
            several::{
                all_or_none,
                the_others_report_what_is_left_of_them,
                charges_to_one_key_and_policy_add_up,
                a_shadow_never_blocks,
                a_shadow_is_charged_only_with_an_admitted_request,
                more_policies_than_fit_inline,
                one_policy_under_two_quotas_is_an_error,
                asking_at_several_costs_takes_nothing,
                what_only_asks_comes_after_what_is_charged,
            },
            settle::{
                what_is_given_back_can_be_used_again,
                a_receipt_settles_once,
                settling_upwards_leaves_a_debt_of_one_capacity_at_most,
                a_receipt_from_before_a_reset_gives_nothing_back,
                a_receipt_of_another_quota_gives_nothing_back,
                a_debt_is_owed_under_the_quota_that_holds,
                a_quota_stated_otherwise_is_the_same_quota,
            },
            in_flight::{
                what_is_in_flight_counts_until_it_is_given_back,
                a_renewed_permit_counts_once,
                a_renewed_permit_outlives_a_reset,
                a_changed_limit_keeps_what_is_in_flight,
                only_what_is_in_flight_is_renewed,
                never_more_than_the_limit_is_in_flight,
            },
            penalties::{
                the_third_denial_blocks,
                only_denials_of_the_same_key_strike,
                failures_that_are_settled_strike,
                many_denials_at_once_make_one_block,
            },
            versions::{
                a_changed_quota_keeps_what_was_consumed,
                two_versions_side_by_side_admit_no_more_than_the_larger,
                a_changed_algorithm_keeps_what_was_consumed,
            },
            concurrency::{
                many_tasks_on_one_key_admit_exactly_the_limit,
                many_tasks_on_pairs_of_policies_admit_exactly_the_tighter,
                mixed_costs_fill_the_limit_to_the_last_unit,
                settling_under_contention_loses_nothing,
                queued_requests_have_a_departure_each,
            },
            calendar::{
                a_denial_waits_for_the_end_of_the_period,
                a_refund_counts_in_the_current_period,
                a_changed_calendar_keeps_what_was_consumed,
                the_period_is_that_of_the_decision,
            }
        );
    };
    (@moving $how:ident $harness:ty) => {
        $crate::store_tests!(@$how $harness:
            time::{
                a_denial_passes_at_its_retry_after_and_not_before,
                a_key_is_whole_again_at_its_reset_after,
                a_queue_leaves_evenly,
            },
            settle::{
                a_receipt_lapses,
                a_place_in_a_queue_comes_back_only_from_its_end,
            },
            in_flight::{
                a_lease_that_nobody_gives_back_ends,
                a_renewed_lease_counts_from_then_on,
                a_lapsed_permit_is_charged_again,
            },
            penalties::{
                blocks_grow_and_are_forgotten,
            },
            calendar::{
                a_period_ends_when_the_calendar_says,
                what_is_given_back_counts_in_its_own_period,
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
        $crate::store_tests!(@one every_check_that_moves_the_clock $harness: $($checks)*);
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
