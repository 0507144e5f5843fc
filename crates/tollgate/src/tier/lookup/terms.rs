//! How a limit applies to a client.

use std::sync::Arc;

use tollgate_engine::{OwnPolicy, TierIndex};

/// How a limit applies to a client.
#[derive(Clone, Debug)]
pub(crate) enum Terms {
    Tier(TierIndex),
    Own(Arc<OwnPolicy>),
    /// The limit does not apply.
    Unlimited,
    Refused(Refusal),
}

/// Why a limit refuses a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    Unknown,
    LookUpFailed,
}
