//! What clients are told.

use tollgate::denial::Members;

use super::super::spec::{Format, Others, Section, Shape, default, optional};
use super::TEXT;

pub(super) const HEADERS: Section = Section {
    name: "headers",
    doc: "Which fields tell clients where they stand. `Retry-After` is on every denial that waiting cures.",
    fields: &[
        default("rateLimit", Shape::Flag, "true", "`RateLimit-Policy` and `RateLimit`."),
        default(
            "xRateLimit",
            Shape::Flag,
            "true",
            "`X-RateLimit-Limit`, `-Remaining` and `-Reset`.",
        ),
        default(
            "retryJitter",
            Shape::Span,
            "0s",
            "Adds a random time up to this value to `Retry-After`, so that clients denied together do not retry together.",
        ),
    ],
    either: &[],
    others: None,
};

pub(super) const RESPONSE: Section = Section {
    name: "response",
    doc: "Further members of denials.",
    fields: &[optional(
        "members",
        Shape::Section(&MEMBERS),
        "Members that the problem body has besides the usual ones.",
    )],
    either: &[],
    others: None,
};

pub(super) const MEMBERS: Section = Section {
    name: "response.members",
    doc: "Names and texts.",
    fields: &[],
    either: &[],
    others: Some(&Others { key: MEMBER, shape: TEXT, doc: "The text of the member of this name." }),
};

pub(super) const MEMBER: Format = Format {
    pattern: Some(r"^[A-Za-z][A-Za-z0-9_-]{2,}$"),
    what: "the name of a further member",
    check: |text| match Members::new().with(text, "") {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    },
};
