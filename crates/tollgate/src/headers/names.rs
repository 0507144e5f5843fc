use http::HeaderName;
use http::header::RETRY_AFTER;

/// All headers that a layer sends, for `Access-Control-Expose-Headers`: scripts of other origins
/// need it. Add the headers of
/// [`HeaderOptions::x_ratelimit_by_policy`](super::HeaderOptions::x_ratelimit_by_policy) by their
/// names.
pub const EXPOSED: [HeaderName; 8] = [
    RATELIMIT_POLICY,
    RATELIMIT,
    X_RATELIMIT_LIMIT,
    X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
    X_RATELIMIT_REASON,
    X_RATELIMIT_EXCEEDED,
    RETRY_AFTER,
];

/// The header `X-Tollgate-Cost`: the cost of a request, from the service to the layer. See
/// [`Reserve::or_by_header`](crate::limit::Reserve::or_by_header). The layer removes it, so clients never
/// see it.
pub const COST: HeaderName = HeaderName::from_static("x-tollgate-cost");
/// The header `RateLimit-Policy`: the quota of each policy.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The header `RateLimit`: the units that are left, and the time for them.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The header `X-RateLimit-Limit`: the limit of one policy.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// The header `X-RateLimit-Remaining`: the units that are left.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// The header `X-RateLimit-Reset`: Unix seconds at which the quota is full again.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Marks a response that the store did not decide with the whole quota. The value
/// `temporary-reduced-capacity` is a problem type of the RateLimit draft: the request was rejected
/// with 503, or a local store decided it.
pub const X_RATELIMIT_REASON: HeaderName = HeaderName::from_static("x-ratelimit-reason");
/// The soft limits that a request exceeds, as a list of strings: `"large-model"`. Responses have it,
/// and requests from the gateway to its targets. A layer gives handlers
/// [`Verdicts`](crate::layer::Verdicts) instead.
pub const X_RATELIMIT_EXCEEDED: HeaderName = HeaderName::from_static("x-ratelimit-exceeded");
