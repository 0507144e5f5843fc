//! What handlers and outer layers can read.

use http::Extensions;
use tollgate_core::Verdict;

/// The verdicts of the layers that a request went through, outermost first.
///
/// It is in the extensions of the request and of the response if the layers were
/// built with
/// [`expose_verdicts`](crate::layer::RateLimitLayerBuilder::expose_verdicts).
#[derive(Clone, Debug, Default)]
pub struct Verdicts(Vec<Verdict>);

impl Verdicts {
    /// The verdicts, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &Verdict> {
        self.0.iter()
    }

    /// Adds the verdict of a layer further in: a request meets the outer one first.
    pub(super) fn push(extensions: &mut Extensions, verdict: Verdict) {
        extensions.get_or_insert_default::<Self>().0.push(verdict);
    }

    /// Adds the verdict of a layer further out: a response meets the inner one first.
    pub(super) fn push_outer(extensions: &mut Extensions, verdict: Verdict) {
        extensions.get_or_insert_default::<Self>().0.insert(0, verdict);
    }
}
