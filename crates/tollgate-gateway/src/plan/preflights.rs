use std::sync::Arc;

use super::LimitPlan;

/// The treatment of CORS preflights. Browsers send them without credentials, so only the address
/// tells clients apart.
#[derive(Clone, Debug)]
pub enum Preflights {
    /// They use no quota, and this limits them for each address.
    Limited(Arc<LimitPlan>),
    /// They are limited like other requests.
    Charged,
    Unlimited,
}

impl Preflights {
    /// The name of the policy in denials and metrics.
    pub const NAME: &str = "cors/preflights";

    pub const fn are_charged(&self) -> bool {
        matches!(self, Self::Charged)
    }
}
