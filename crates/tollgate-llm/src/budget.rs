//! Budgets of a key, or of a level of keys.

use tollgate::Policy;

use crate::{Model, Usage};

/// The budgets of a level, such as a team or an organisation. See
/// [`LlmBudgetBuilder::per`](crate::LlmBudgetBuilder::per).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Budget(pub(crate) Vec<(Unit, Policy)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Requests,
    Tokens,
    Money,
}

impl Budget {
    /// Makes a level without budgets.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Limits requests or concurrent requests. May be called several times.
    pub fn requests(self, policy: Policy) -> Self {
        self.with(Unit::Requests, policy)
    }

    /// Limits input and output tokens. May be called several times.
    pub fn tokens(self, policy: Policy) -> Self {
        self.with(Unit::Tokens, policy)
    }

    /// Limits the tokens' price, in the unit of the [prices](crate::Price). May be called several
    /// times. If the policy's name is [`Api::BUDGET`](crate::Api::BUDGET), or starts with it and
    /// `/`, its denials have OpenAI's code `insufficient_quota`.
    pub fn money(self, policy: Policy) -> Self {
        self.with(Unit::Money, policy)
    }

    fn with(mut self, unit: Unit, policy: Policy) -> Self {
        self.0.push((unit, policy));
        self
    }
}

impl Unit {
    /// The cost of this usage. `None` if a request costs 1.
    pub(crate) fn of(self, model: &Model, usage: &Usage) -> Option<u64> {
        match self {
            Self::Requests => None,
            Self::Tokens => Some(usage.total()),
            Self::Money => Some(model.price().of(usage)),
        }
    }
}
