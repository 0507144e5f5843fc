use std::sync::Arc;

use super::LimitPlan;

/// How CORS preflights are limited. Browsers send them without credentials, so the gateway knows
/// only the client's address.
#[derive(Clone, Debug)]
pub enum Preflights {
    /// They use no quota, but this policy limits each address.
    Limited(Arc<LimitPlan>),
    /// They are limited like other requests.
    Charged,
    Unlimited,
}

impl Preflights {
    /// The policy's name in denials and metrics.
    pub const NAME: &str = "cors/preflights";
}
