//! Charges that are corrected when the response is known.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use tollgate::policy::Cost;
use tollgate_llm::{Model, Usage};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservePlan {
    pub settle: SettleBy,
    pub lapse: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleBy {
    Header,
    /// The same field in the body's trailers.
    Trailer,
    /// The length of the body: one unit for each block with this many bytes.
    Bytes(u64),
    /// The tokens that a language model reports. The request estimates them.
    Tokens,
    /// The price of these tokens.
    Money,
}

impl SettleBy {
    /// Whether the cost is in the bodies of request and response.
    pub const fn is_usage(self) -> bool {
        matches!(self, Self::Tokens | Self::Money)
    }

    /// The cost of a usage, in tokens or in money.
    pub fn cost_of(self, model: &Model, usage: &Usage) -> Option<Cost> {
        match self {
            Self::Tokens => Some(Cost::new(usage.total())),
            Self::Money => Some(Cost::new(model.price().of(usage))),
            Self::Header | Self::Trailer | Self::Bytes(_) => None,
        }
    }
}

/// One status, or all with the same first digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statuses {
    One(u16),
    Class(u16),
}

impl Statuses {
    pub fn contain(self, status: StatusCode) -> bool {
        match self {
            Self::One(one) => status.as_u16() == one,
            Self::Class(class) => status.as_u16() / 100 == class,
        }
    }

    /// Whether any of these contains the status.
    pub fn any(these: &[Self], status: StatusCode) -> bool {
        these.iter().any(|it| it.contain(status))
    }
}

/// Parses `401` or `2xx`.
impl FromStr for Statuses {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (digits, class) = match text.strip_suffix("xx") {
            Some(digit) => (digit, true),
            None => (text, false),
        };
        // `parse` would accept a sign.
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(());
        }
        match (digits.parse().map_err(drop)?, class) {
            (class @ 1..=5, true) => Ok(Self::Class(class)),
            (one @ 100..=599, false) => Ok(Self::One(one)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => write!(f, "{one}"),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_statuses_and_classes() {
        let contain = |text: &str, status: u16| {
            let statuses: Statuses = text.parse().unwrap();
            assert_eq!(statuses.to_string(), text);
            statuses.contain(StatusCode::from_u16(status).unwrap())
        };
        assert!(contain("401", 401) && !contain("401", 400));
        assert!(contain("2xx", 200) && contain("2xx", 299) && !contain("2xx", 300));
        for text in ["", "xx", "6xx", "0xx", "2x", "99", "600", "+401", "-1", "2XX", "4 01"] {
            assert_eq!(text.parse::<Statuses>(), Err(()), "{text}");
        }
    }
}
