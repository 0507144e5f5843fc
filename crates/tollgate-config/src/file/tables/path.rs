use crate::file::format;
use crate::yaml::typed::{Either, Written, section, words};

/// A path, or a section with the kind of pattern.
pub(crate) type Path = Either<Written<format::Path>, PathSection>;

section! {
    /// A path pattern. A plain text such as `/login` matches exactly this path. With `/*` at its
    /// end it matches the path and everything below: `/static/*` matches `/static`, `/static/` and
    /// `/static/a`. Patterns match the normalized path without the query.
    keys PathSection = "path" {
        /// How to interpret `value`.
        default expression: PathForm = "plain",
        /// The path or the regular expression.
        required value: Written<format::Text>,
    }
}

words! {
    PathForm -> bool {
        /// Matches exactly this path.
        "plain" => false,
        /// Matches a regular expression. It may match in the middle of the path, so write `^` and
        /// `$` where needed.
        "regex" => true,
    }
}
