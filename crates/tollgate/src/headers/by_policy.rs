//! `X-RateLimit` headers for each policy, like those in language model APIs.

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate_core::Micros;

use super::digits;

/// Returns a policy's own header names: limit, remaining and reset. See
/// [`HeaderOptions::x_ratelimit_by_policy`](super::HeaderOptions::x_ratelimit_by_policy). Returns
/// `None` if the name is too long for a header.
///
/// ```
/// let [limit, ..] = tollgate::headers::names_of("Chat tokens").unwrap();
/// assert_eq!(limit, "x-ratelimit-limit-chat-tokens");
/// ```
pub fn names_of(policy: &str) -> Option<[HeaderName; 3]> {
    let Names { limit, remaining, reset } = Names::of(policy)?;
    Some([limit, remaining, reset])
}

/// `x-ratelimit-limit-NAME`, `-remaining-NAME` and `-reset-NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

impl Names {
    /// Replaces characters that a header name cannot contain with `-`.
    pub(super) fn of(policy: &str) -> Option<Self> {
        let suffix: String = policy.chars().map(|c| if is_token(c) { c } else { '-' }).collect();
        let name = |field: &str| format!("x-ratelimit-{field}-{suffix}").parse().ok();
        Some(Self { limit: name("limit")?, remaining: name("remaining")?, reset: name("reset")? })
    }

    pub(super) fn write(
        &self,
        headers: &mut HeaderMap,
        limit: u64,
        remaining: u64,
        reset_after: Micros,
    ) {
        headers.insert(&self.limit, digits::integer(limit));
        headers.insert(&self.remaining, digits::integer(remaining));
        if let Ok(reset) = HeaderValue::try_from(duration(reset_after)) {
            headers.insert(&self.reset, reset);
        }
    }
}

/// Formats as `6m0s`, `1.5s` or `20ms`, rounded up to milliseconds.
fn duration(span: Micros) -> String {
    let millis = span.get().div_ceil(1_000);
    let (hours, minutes, rest) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    let (seconds, fraction) = (rest / 1_000, rest % 1_000);
    let mut seconds = match fraction {
        0 => seconds.to_string(),
        _ => format!("{seconds}.{fraction:03}").trim_end_matches('0').to_owned(),
    };
    seconds.push('s');
    match (hours, minutes) {
        (0, 0) if (1..1_000).contains(&millis) => format!("{millis}ms"),
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        _ => format!("{hours}h{minutes}m{seconds}"),
    }
}

const fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_use_suitable_units() {
        for (micros, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (20_000, "20ms"),
            (999_001, "1s"),
            (1_500_000, "1.5s"),
            (8_640_000, "8.64s"),
            (360_000_000, "6m0s"),
            (4_320_000_000, "1h12m0s"),
            (90_000_007_000, "25h0m0.007s"),
        ] {
            assert_eq!(duration(Micros::new(micros)), expected);
        }
    }

    #[test]
    fn invalid_characters_become_hyphens() {
        let names = Names::of(r#"Chat "a/b""#).unwrap();
        assert_eq!(names.reset, "x-ratelimit-reset-chat--a-b-");
    }
}
