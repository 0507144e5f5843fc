//! The laws of combinations: what holds when quotas change, while requests with receipts are open,
//! and several versions of a quota are used side by side.
//!
//! A [`Reference`](crate::reference::Reference) decides with the core's functions, so it shows that
//! two stores agree, but not that they are right. The laws instead keep a key's whole history, and
//! judge a store by what its algorithms promise for this history. Random histories contain all
//! features together, because most mistakes are made where two features meet.
//!
//! Implement [`Subject`] for your store, or wrap it in [`Timed`], and call
//! [`law_tests!`](crate::law_tests). A failed law prints the shortest history that it found, and
//! the variable `TOLLGATE_SEED` that repeats it. `TOLLGATE_LONG=1` checks each law with a million
//! steps.
//!
//! | law | see |
//! |---|---|
//! | a client that waits as long as it was told is allowed then | [`obeyed_waits_pass`] |
//! | each version of a quota admits no more than alone | [`versions_admit_no_more_than_alone`] |
//! | a version and a smaller one beside it admit no more than the larger one alone | [`smaller_versions_add_nothing`] |
//! | a refund never lets more requests pass than if its units had never been charged | [`refunds_never_admit_more`] |
//! | permits in flight never exceed the maximum of the version that admits | [`permits_stay_below_every_maximum`] |
//! | a refund never makes a client wait longer | [`refunds_never_lengthen_waits`] |
//! | denials, peeks and dry charges change no later answer | [`denials_change_nothing`] |
//! | shadow charges under other names change no answer | [`shadow_changes_nothing`] |
//! | requests that queue leave in order, as early as their quotas allow | [`queues_keep_order_and_quota`] |
//! | no unit is lost: neither at any instant, nor after all windows are over | [`fewer_is_bounded`] |

mod bounds;
mod definition;
mod generate;
mod history;
mod ledger;
mod play;
mod queues;
mod repeat;
pub mod scenes;
mod shrink;
mod subject;
mod waits;

pub use self::bounds::{
    fewer_is_bounded, permits_stay_below_every_maximum, refunds_never_admit_more,
    smaller_versions_add_nothing, versions_admit_no_more_than_alone,
};
pub use self::queues::queues_keep_order_and_quota;
pub use self::repeat::{denials_change_nothing, shadow_changes_nothing};
pub use self::subject::{Subject, Timed};
pub use self::waits::{obeyed_waits_pass, refunds_never_lengthen_waits};

/// Generates a `#[test]` for each law and scene. The argument is a function that returns a new
/// [`Subject`].
#[macro_export]
macro_rules! law_tests {
    ($make:expr) => {
        $crate::law_tests!(@each $make, law:{
            obeyed_waits_pass,
            versions_admit_no_more_than_alone,
            smaller_versions_add_nothing,
            refunds_never_admit_more,
            permits_stay_below_every_maximum,
            refunds_never_lengthen_waits,
            denials_change_nothing,
            shadow_changes_nothing,
            fewer_is_bounded,
            queues_keep_order_and_quota,
        });
        $crate::law_tests!(scenes $make);
    };
    (scenes $make:expr) => {
        $crate::law_tests!(@each $make, scenes:{
            day_becomes_minute,
            bucket_becomes_smaller,
            counter_becomes_shorter,
            logs_of_two_windows_take_turns,
            rolling_deployment_of_logs,
            refunds_share_the_refill,
            late_refund_keeps_later_charges,
            successes_are_not_counted,
            refund_keeps_the_interval,
            refund_keeps_the_next_version,
            shadow_denials_are_no_strikes,
            shorter_permits_count_longer_ones,
        });
    };
    (@each $make:expr, law:{$($law:ident),* $(,)?}) => {
        $(
            #[test]
            fn $law() {
                $crate::law::$law($make);
            }
        )*
    };
    (@each $make:expr, scenes:{$($scene:ident),* $(,)?}) => {
        $(
            #[test]
            fn $scene() {
                $crate::law::scenes::$scene($make);
            }
        )*
    };
}
