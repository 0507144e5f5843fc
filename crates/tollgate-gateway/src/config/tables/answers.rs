use tollgate::denial::Members as Extra;

use super::super::{format, spec, typed};
use typed::{Flag, Named, Time, section, texts};

section! {
    /// Which fields tell clients where they stand. `Retry-After` is on every denial that waiting
    /// cures.
    Headers = "headers" {
        /// `RateLimit-Policy` and `RateLimit`.
        default rate_limit: Flag = "true",
        /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
        default x_rate_limit: Flag = "true",
        /// Adds a random time up to this value to `Retry-After`, so that clients denied together do
        /// not retry together.
        default retry_jitter: Time = "0s",
    }

    /// Further members of denials.
    Response = "response" {
        /// Members that the problem body has besides the usual ones.
        optional members: Members,
    }

    /// Names and texts.
    Members = "response.members" {
        /// The text of the member of this name.
        others texts: Named<MemberName, format::Text>,
    }
}

texts! {
    MemberName(text) -> String: "the name of a further member", r"^[A-Za-z][A-Za-z0-9_-]{2,}$" =>
        match Extra::new().with(text, "") {
            Ok(_) => Ok(text.to_owned()),
            Err(error) => Err(error.to_string()),
        };
}
