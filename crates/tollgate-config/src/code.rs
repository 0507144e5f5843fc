//! The codes of problems. `docs/errors.md` explains each.

use std::fmt;

/// The name of a kind of mistake that has one cause and one cure. It never changes its meaning.
///
/// It displays as `TG0008`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u16);

/// A section of the page: a code, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    pub code: Code,
    /// For example "No such key".
    pub title: &'static str,
    /// Cause, cure and example, in Markdown.
    pub text: &'static str,
}

/// All codes with their meaning, in the order of the page.
pub fn explained() -> impl Iterator<Item = Explained> {
    PAGE.split("\n### ").skip(1).filter_map(|section| {
        let (code, rest) = section.split_once('\n')?;
        let (title, text) = rest.trim_start().strip_prefix("**")?.split_once(".**")?;
        // The next group starts with its own heading.
        let text = text.split("\n## ").next().unwrap_or(text);
        Some(Explained { code: Code::parse(code)?, title, text: text.trim() })
    })
}

/// Splits an error text of a library: it ends with its code, such as `… [TG0102]`.
pub fn split(text: &str) -> (&str, Option<Code>) {
    let coded = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
    match coded.and_then(|(rest, code)| Some((rest, Code::parse(code)?))) {
        Some((rest, code)) => (rest, Some(code)),
        None => (text, None),
    }
}

/// Writes an error text of a library as the program prints it: `error[TG0102]: …`.
pub fn titled(text: &str) -> String {
    match split(text) {
        (text, Some(code)) => format!("error[{code}]: {text}"),
        (text, None) => format!("error: {text}"),
    }
}

impl From<u16> for Code {
    fn from(number: u16) -> Self {
        Self(number)
    }
}

impl Code {
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Reads `TG0008`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("TG").filter(|it| it.len() == 4)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| is_number).map(Self)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TG{:04}", self.0)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `docs/errors.md`, through a link in this crate's folder.
const PAGE: &str = include_str!("../errors.md");

/// The codes that this crate reports.
macro_rules! codes {
    ($($name:ident = $number:literal,)+) => {
        $(pub(crate) const $name: Code = Code($number);)+

        /// For the test that compares them with the page.
        #[cfg(test)]
        const ALL: &[Code] = &[$($name),+];
    };
}

codes! {
    TOO_LARGE = 2,
    NOT_UTF8 = 3,
    EMPTY_FILE = 4,
    NOT_YAML = 5,
    UNSUPPORTED_YAML = 6,
    DUPLICATE_KEY = 7,
    UNKNOWN_KEY = 8,
    MISSING_KEY = 9,
    EXCLUSIVE_KEYS = 10,
    WRONG_SHAPE = 11,
    INVALID_VALUE = 12,
    EMPTY_LIST = 13,
    LISTED_TWICE = 14,
    NO_EFFECT = 15,
    UNSET_VARIABLE = 16,
    INVALID_REFERENCE = 17,
    UNREADABLE_FILE = 18,
    INVALID_FILE = 19,
    NO_QUOTA = 101,
    QUOTA_RANGE = 102,
    POLICY_NAME = 103,
    BURST = 105,
    CALENDAR = 106,
    COST_ABOVE_CAPACITY = 107,
    SAME_NAME = 108,
    SAME_HEADERS = 109,
    TWO_QUEUES = 110,
    NOT_QUEUED = 111,
    CLOSED_WHILE_WAITING = 112,
    PENALTY = 113,
    NO_STRIKES = 114,
    PENALTY_BESIDE_WAITING = 115,
    LEASE = 116,
    LEASE_SAVES_NOTHING = 117,
    SHARED_BY_ALL = 118,
    SETTLING = 119,
    PERMIT_TTL = 120,
    PATH = 121,
    SURPRISING_PATH = 122,
    UNREACHABLE = 123,
    NOTHING_LIMITED = 124,
    UNKNOWN_TIER = 125,
    NO_BASE_QUOTA = 126,
    TOO_MANY = 127,
    UNKNOWN_LEVEL = 128,
    EMPTY_LEVEL = 129,
    NEEDS_TARGET = 130,
    TENANT_SOURCE = 131,
    OTHER_RULES = 132,
    DESCRIPTOR = 133,
    FORGEABLE = 203,
    TOKEN_KEY = 208,
    TOKEN_KEYS_MISSING = 210,
    API_KEY_TWICE = 207,
    IDENTITY_SOURCE = 211,
    NEVER_MISSING = 213,
    LISTS = 214,
    CLEARTEXT = 216,
    NO_STORE = 301,
    REDIS_URL = 302,
    SENTINEL = 303,
    SLOTS = 317,
    ADMIN_ADDRESS = 402,
    ADMIN_TOKEN = 403,
    SAME_ADDRESS = 405,
    NO_TARGET = 406,
    ROUTE_NAME = 407,
    CERTIFICATE = 408,
    STRIP_PREFIX = 414,
    LLM_NO_LIMIT = 501,
    LLM_NO_PRICE = 502,
    LLM_MAX_OUTPUT = 503,
    LLM_COMPRESSION = 504,
    LLM_NO_KEY = 505,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_one_section() {
        let mut sections = BTreeSet::new();
        for Explained { code, title, text } in explained() {
            assert!(sections.insert(code), "{code} has two sections");
            assert!(!title.contains('\n') && title.len() < 80, "{code}: {title}");
            for part in ["Cause", "Cure", "Example"] {
                let has_part = text.lines().any(|line| line.starts_with(&format!("* {part}: ")));
                assert!(has_part, "{code} has no {part:?}\n{text}");
            }
        }
        for code in ALL {
            assert!(sections.contains(code), "{code} has no section in docs/errors.md");
        }
        let distinct: BTreeSet<_> = ALL.iter().collect();
        assert_eq!(distinct.len(), ALL.len());
        assert_eq!(sections.len(), PAGE.matches("\n### ").count(), "a section is not readable");
    }

    #[test]
    fn codes_are_split_from_texts() {
        assert_eq!(split("a bucket [TG0102]"), ("a bucket", Some(QUOTA_RANGE)));
        for text in ["a bucket", "a [TG12]", "a [TG+102]", "[TG0102]", "a [TG0102]; cure"] {
            assert_eq!(split(text), (text, None));
        }
        assert_eq!(titled("a bucket [TG0102]"), "error[TG0102]: a bucket");
        assert_eq!(titled("a bucket"), "error: a bucket");
    }
}
