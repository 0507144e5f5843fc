use http::HeaderName;
use http::header::RETRY_AFTER;

/// All headers that a layer sends, for `Access-Control-Expose-Headers`, without which scripts from
/// other origins cannot read them. Add the headers from
/// [`HeaderOptions::x_ratelimit_by_policy`](super::HeaderOptions::x_ratelimit_by_policy), which
/// [`names_of`](super::names_of) returns.
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

/// The header `X-Tollgate-Cost`: the request cost, which the service sends to the layer. See
/// [`Reserve::or_by_header`](crate::limit::Reserve::or_by_header). The layer removes it, so clients
/// never see it.
pub const COST: HeaderName = HeaderName::from_static("x-tollgate-cost");
/// The header `RateLimit-Policy`: each policy's quota.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The header `RateLimit`: each policy's remaining units, and the time for which they suffice.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The header `X-RateLimit-Limit`: a policy's limit.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// The header `X-RateLimit-Remaining`: a policy's remaining units.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// The header `X-RateLimit-Reset`: the time at which the quota is full again, in Unix seconds.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The header `X-RateLimit-Reason`: the store did not decide with the full quota. The value
/// `temporary-reduced-capacity` is a problem type from the RateLimit draft: the request was
/// rejected with 503, or a local store decided it.
pub const X_RATELIMIT_REASON: HeaderName = HeaderName::from_static("x-ratelimit-reason");
/// The header `X-RateLimit-Exceeded`: the soft limits that a request exceeds, as a list of strings
/// such as `"large-model"`. It is set on responses, and on requests from the gateway to its
/// targets. A layer gives handlers [`Verdicts`](crate::layer::Verdicts) instead.
pub const X_RATELIMIT_EXCEEDED: HeaderName = HeaderName::from_static("x-ratelimit-exceeded");
