use http::Extensions;
use tollgate_core::Verdict;

/// The verdicts of the layers around a service, outermost first.
///
/// Requests and responses have it in their extensions if the layers were built with
/// [`expose_verdicts`](crate::layer::RateLimitLayerBuilder::expose_verdicts).
#[derive(Clone, Debug, Default)]
pub struct Verdicts(Vec<Verdict>);

impl Verdicts {
    /// Returns the verdicts of the layers, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &Verdict> {
        self.0.iter()
    }

    /// For a request, which meets the outer layer first.
    pub(super) fn push(extensions: &mut Extensions, verdict: Verdict) {
        extensions.get_or_insert_default::<Self>().0.push(verdict);
    }

    /// For a response, which meets the inner layer first.
    pub(super) fn push_outer(extensions: &mut Extensions, verdict: Verdict) {
        extensions.get_or_insert_default::<Self>().0.insert(0, verdict);
    }
}
