use tollgate::denial::Members as Extra;

use crate::file::format;
use crate::yaml::typed::{Flag, Named, Time, section, texts};

section! {
    /// The rate limit headers in responses. A denial has `Retry-After` if waiting helps.
    values Headers = "headers" {
        /// `RateLimit-Policy` and `RateLimit`.
        default rate_limit: Flag = "true",
        /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
        default x_rate_limit: Flag = "true",
        /// Sends the `X-RateLimit` headers of every policy, with the policy name at the end:
        /// `X-RateLimit-Remaining-client`. The reset is a duration such as `6m0s`. It replaces
        /// `xRateLimit`.
        default per_policy: Flag = "false",
        /// Adds a random time up to this value to `Retry-After`. Denied clients then retry at
        /// different times.
        default retry_jitter: Time = "0s",
    }

    /// The content of denials.
    keys Response = "response" {
        /// Additional members of the problem body.
        optional members: Members,
    }

    /// Member names and their texts.
    keys Members = "response.members" {
        /// The text of this member.
        others texts: Named<MemberName, format::Text>,
    }
}

texts! {
    MemberName(text) -> String: "the name of an additional member", r"^[A-Za-z][A-Za-z0-9_-]{2,}$" =>
        match Extra::new().with(text, "") {
            Ok(_) => Ok(text.to_owned()),
            Err(error) => Err(error.to_string()),
        };
}
