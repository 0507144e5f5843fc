//! Reads what another service's response means for our own calls to it.
//!
//! When a service denies a call, all processes that share its quota should pause. They should also
//! know how many units remain. [`Feedback`] reads both from a response's status
//! and headers. It needs no store, runtime or clock.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use http::{HeaderMap, StatusCode};
//! use tollgate::feedback::Feedback;
//!
//! let mut headers = HeaderMap::new();
//! headers.insert("retry-after", "20".parse()?);
//! headers.insert("x-ratelimit-limit-requests", "60".parse()?);
//! headers.insert("x-ratelimit-remaining-requests", "0".parse()?);
//!
//! let feedback = Feedback::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::now());
//! assert!(feedback.is_denial());
//! assert_eq!(feedback.pause().map(|pause| pause.duration()), Some(Duration::from_secs(20)));
//! assert_eq!(feedback.quotas()[0].name(), "requests");
//! assert_eq!(feedback.quotas()[0].remaining(), Some(0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Denials
//!
//! | response | is a denial |
//! |---|---|
//! | 429, or a gRPC status 8 in the headers | always |
//! | 503, 529, or a gRPC status 14 in the headers | if a header contains a wait |
//! | 403 | if a header contains a wait, or if a quota is used up |
//! | 503 with `x-amz-request-id` | always, because Amazon S3 sends it as `SlowDown` |
//! | an error with a throttling code in `x-amzn-errortype` | always |
//!
//! # Pauses
//!
//! Sources in order of trust; a later source counts only if the earlier sources contain no wait:
//!
//! 1. On denials, the headers for this purpose: `Retry-After` in seconds or as a date,
//!    `Retry-After-Ms`, `X-MS-Retry-After-Ms`, `X-Amz-Retry-After`, `Grpc-Retry-Pushback-Ms`,
//!    `X-RateLimit-Retry-After` and `X-Rate-Limit-Time-Reset-Ms`. If there are several, the longest
//!    wait counts.
//! 2. The reset of quotas that are used up. If there are several, the latest reset counts. A quota
//!    that is used up also pauses after an allowed call, because the next call would be denied.
//!    Only quotas that refill continuously do not: their reset is the time until they are full.
//!
//! A pause is never longer than [`Feedback::MAX_PAUSE`], or the limit that the caller sets with
//! [`pause_at_most`](Feedback::pause_at_most). [`Pause::is_capped`] tells whether the service wanted
//! more, so `Retry-After: 999999999` cannot stop all clients.
//!
//! Use one key per quota of the service. For example, GitHub counts searches separately
//! (`X-RateLimit-Resource`), and Discord counts each bucket of routes (`X-RateLimit-Bucket`).
//!
//! # Quotas
//!
//! | service | headers | quota |
//! |---|---|---|
//! | Tollgate, Cloudflare, services after the current draft | `RateLimit`, `RateLimit-Policy` | each item, with its window |
//! | services after earlier drafts, Kong, Docker Hub, GitLab, Twitch | `RateLimit-Limit`, `-Remaining`, `-Reset` | `default`, or the name in `RateLimit-Name` |
//! | GitHub, Datadog, Discord, Reddit, Atlassian, Okta | `X-RateLimit-Limit`, `-Remaining`, `-Reset`, `-Period` | `default`, or the name in `-Resource`, `-Name` or `-Bucket` |
//! | X | `X-Rate-Limit-Limit`, `-Remaining`, `-Reset`; `X-App-Limit-24hour-…` | `default`; `app-24hour`, `user-24hour` |
//! | OpenAI, Azure OpenAI, Groq, Tollgate with headers by policy | `X-RateLimit-Remaining-Tokens` | `requests`, `tokens`, …; these refill |
//! | Anthropic | `Anthropic-RateLimit-Input-Tokens-Remaining` | `requests`, `input-tokens`, `output-tokens`, …; these refill |
//! | Linear, BigCommerce, HubSpot | `X-RateLimit-Requests-Remaining` | `requests`, `daily`, …; these refill |
//! | Shopify | `X-Shopify-Shop-Api-Call-Limit: 32/40` | `api-call`, which refills |
//!
//! A quota's name can also precede the word: `X-RateLimit-Daily-Remaining` and
//! `X-RateLimit-Limit-Daily` belong to the same quota, `daily`. If the current draft's headers are
//! there, the quota without a name in the older headers is ignored.
//!
//! A reset is a number, a duration such as `6m0s`, an RFC 3339 timestamp in UTC or an HTTP date. A
//! number below 10⁹ is a wait in seconds, a number below 10¹¹ Unix seconds and a larger number Unix
//! milliseconds. Dates and Unix times are relative to the response's `Date`, so the clocks may differ.
//!
//! # Invalid values
//!
//! Any service can send anything. Negative numbers, numbers with more than 15 digits, dates in the
//! past, dates in other formats and empty values are ignored. If a header is repeated, the most
//! careful value counts: the smallest limit and remainder, and the latest reset. A response has at
//! most 16 quotas, and names have at most 64 characters.
//!
//! Bodies are not read. So a wait only in a body, such as `retryDelay` of Google's APIs, is unknown,
//! and such a denial has no pause.
//!
//! # Our own layer
//!
//! A [`RateLimitLayer`](crate::RateLimitLayer) around a client also responds with 429 and
//! `Retry-After`, although the service has not seen the request. [`Feedback::of`] returns `None` for
//! such a response if it contains an [`OwnDenial`]. Layers from
//! [`for_client`](crate::RateLimitLayer::for_client) add it, as do layers with
//! [`mark_denials`](crate::layer::RateLimitLayerBuilder::mark_denials).

mod draft;
mod quotas;
mod status;
mod times;
mod x_ratelimit;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Response, StatusCode};

use self::quotas::Quotas;
pub use self::quotas::ServerQuota;
use self::times::ServerClock;
use crate::denial::OwnDenial;

/// What another service's response means for our calls to it. See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    is_denial: bool,
    wait: Option<(Duration, HeaderName)>,
    quotas: Vec<ServerQuota>,
    should_retry: Option<bool>,
    reason: Option<Box<str>>,
}

/// How long all callers with the same key should send no requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    duration: Duration,
    requested: Duration,
    header: HeaderName,
}

impl Feedback {
    /// The longest pause of [`pause`](Self::pause): 5 minutes.
    pub const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

    /// Reads a response, or returns `None` if a [layer](crate::RateLimitLayer) in this process
    /// denied the request before the service saw it.
    pub fn of<B>(response: &Response<B>, now: SystemTime) -> Option<Self> {
        let is_ours = response.extensions().get::<OwnDenial>().is_some();
        (!is_ours).then(|| Self::read(response.status(), response.headers(), now))
    }

    /// Reads a response's status and headers. `now` is used only if the response has no `Date`.
    pub fn read(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let clock = ServerClock::of(headers, now);
        let mut quotas = Quotas::default();
        draft::read(headers, &mut quotas);
        x_ratelimit::read(headers, clock, &mut quotas);
        draft::read_policies(headers, &mut quotas);
        let quotas = quotas.into_sorted();
        let explicit = times::longest_wait(headers, clock);
        let is_used_up = quotas.iter().any(ServerQuota::is_used_up);
        let is_denial = status::denies(status, headers, explicit.is_some(), is_used_up);
        let latest_reset = || {
            let used_up = quotas.iter().filter(|quota| quota.pauses(is_denial));
            used_up.filter_map(ServerQuota::reset).max_by_key(|reset| reset.0)
        };
        Self {
            is_denial,
            wait: explicit.filter(|_| is_denial).or_else(latest_reset),
            should_retry: status::should_retry(headers),
            reason: is_denial.then(|| status::reason(headers)).flatten(),
            quotas,
        }
    }

    /// Whether a limit of the service denied the request.
    pub const fn is_denial(&self) -> bool {
        self.is_denial
    }

    /// Returns how long all callers with the same key should pause, at most
    /// [`MAX_PAUSE`](Self::MAX_PAUSE). Returns `None` if no pause is necessary, or if the service
    /// denied the request without a wait. Then back off exponentially.
    pub fn pause(&self) -> Option<Pause> {
        self.pause_at_most(Self::MAX_PAUSE)
    }

    /// Like [`pause`](Self::pause), with another maximum.
    pub fn pause_at_most(&self, max: Duration) -> Option<Pause> {
        let (requested, header) = self.wait.clone()?;
        Some(Pause { duration: requested.min(max), requested, header })
    }

    /// Returns the service's quotas, sorted by name. The names come from the service, so they are
    /// not suitable as metric labels without a list of known names.
    pub fn quotas(&self) -> &[ServerQuota] {
        &self.quotas
    }

    /// Returns whether the same request may be repeated, according to
    /// `X-Should-Retry` or `Stripe-Should-Retry`.
    pub const fn should_retry(&self) -> Option<bool> {
        self.should_retry
    }

    /// Returns the denial's reason or scope as the service wrote it, for example `global-rate`
    /// from `Stripe-Rate-Limited-Reason` or `shared` from Discord's `X-RateLimit-Scope`.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl Pause {
    /// Returns the length of the pause.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// Whether the service requested a longer pause than the maximum.
    pub fn is_capped(&self) -> bool {
        self.requested > self.duration
    }

    /// Returns the length that the service requested.
    pub const fn requested(&self) -> Duration {
        self.requested
    }

    /// Returns the header that requested the pause.
    pub const fn header(&self) -> &HeaderName {
        &self.header
    }
}

/// Returns a header's value as text, or `None` if it is not visible ASCII.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
