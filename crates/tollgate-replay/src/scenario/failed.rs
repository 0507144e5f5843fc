//! A failed expectation as a table.

use std::fmt::{self, Write as _};

use serde::Serialize;
use tollgate_core::Micros;

use super::{Caller, Outcome, Requests, START};
use crate::html;

/// An expectation that is not met, with the shortest history that shows it. It is displayed as a
/// table.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// What the expectation is about.
    pub about: String,
    /// The expected outcome.
    pub expected: String,
    /// What happened instead.
    pub got: String,
    /// The history.
    #[serde(rename = "history")]
    pub rows: Vec<Row>,
    /// Whether the search for the shortest history was aborted, so a shorter one may exist.
    #[serde(skip)]
    pub may_be_shorter: bool,
}

/// Similar requests one after another.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// When they arrived.
    #[serde(rename = "time")]
    pub at: String,
    /// The requests.
    #[serde(rename = "request")]
    pub requests: String,
    /// The last request's expected outcome.
    pub expected: String,
    /// What happened to the last request.
    pub got: String,
    /// The policy that its answer shows.
    pub policy: String,
    /// How the policy decided.
    pub why: String,
}

/// A time in seconds, without unnecessary zeros.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Micros);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0.get() / 1_000_000, self.0.get() % 1_000_000);
        write!(f, "{} s", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Row {
    pub(super) fn of(history: &[Outcome], requests: &[Requests], expected: &str) -> Vec<Self> {
        let is_alike = |one: &Outcome, other: &Outcome| {
            let of = |it: &Outcome| (it.arrival.sender, it.arrival.client, got(it));
            of(one) == of(other) && one.policy_name() == other.policy_name()
        };
        let mut rows: Vec<_> =
            history.chunk_by(is_alike).map(|alike| Self::new(alike, requests)).collect();
        if let Some(last) = rows.last_mut() {
            expected.clone_into(&mut last.expected);
        }
        rows
    }

    fn new(alike: &[Outcome], requests: &[Requests]) -> Self {
        let (first, last) = (&alike[0], &alike[alike.len() - 1]);
        let requests = &requests[first.arrival.sender as usize];
        let number = first.arrival.client;
        let client = match (requests.caller(number), requests.headers.first()) {
            // A log's headers may contain credentials.
            (Caller::Address(_), Some((name, value))) if !requests.is_recorded => {
                format!("{name}: {}", requests.for_client(value, number))
            }
            (caller, _) => caller.to_string(),
        };
        let path = requests.for_client(&requests.path, number);
        let request = format!("{} {path} of {client}", requests.method);
        let at = |outcome: &Outcome| Seconds(outcome.arrival.at.since(START)).to_string();
        let (from, to) = (at(first), at(last));
        Self {
            at: if from == to { from } else { format!("{from} to {to}") },
            requests: match alike.len() {
                1 => request,
                several => format!("{several} × {request}"),
            },
            expected: String::new(),
            got: got(last),
            policy: last.policy_name().unwrap_or("–").to_owned(),
            why: why(last),
        }
    }

    const fn cells(&self) -> [&String; 6] {
        let Self { at, requests, expected, got, policy, why } = self;
        [at, requests, expected, got, policy, why]
    }
}

const HEADING: [&str; 6] = ["time", "request", "expected", "got", "policy", "why"];

/// How a request ended.
fn got(outcome: &Outcome) -> String {
    let mut got = outcome.status.to_string();
    if outcome.is_allowed && outcome.wait > Micros::ZERO {
        let _ = write!(got, " after {}", Seconds(outcome.wait));
    }
    got
}

fn why(outcome: &Outcome) -> String {
    let Some(policy) = &outcome.policy else {
        if !outcome.sees_limits {
            return String::new();
        }
        return match (outcome.is_allowed, outcome.status) {
            (true, _) => "no limit decides".to_owned(),
            (false, 503) => "the store is lost".to_owned(),
            (false, _) => "answered before any limit".to_owned(),
        };
    };
    let left = format!("{} of {} left", policy.remaining, policy.limit);
    match outcome.retry_after {
        Some(wait) => format!("{left}, free in {}", Seconds(wait)),
        None if !outcome.is_allowed => format!("more than the quota of {}", policy.limit),
        None => left,
    }
}

impl Failed {
    /// Adds the failure to an HTML page. `name` is the test's name.
    pub fn html(&self, out: &mut String, name: &str) {
        let Self { about, expected, got, rows, may_be_shorter } = self;
        let title = format!("{name}: {about}: expected {expected}, got {got}");
        let rows: Vec<_> = rows.iter().map(|row| row.cells().map(String::clone)).collect();
        html::table(out, &title, &HEADING, None, &rows);
        if *may_be_shorter {
            let _ = writeln!(out, "<p>{LONGER}</p>");
        }
    }
}

/// For an aborted search.
const LONGER: &str = "The search took too long, so a shorter history may show this, too.";

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, expected, got, rows, may_be_shorter } = self;
        writeln!(f, "      {about}: expected {expected}, got {got}")?;
        if rows.is_empty() {
            return Ok(());
        }
        let cells: Vec<_> = rows.iter().map(|row| row.cells().map(String::as_str)).collect();
        let all = || [HEADING].into_iter().chain(cells.iter().copied());
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        // Bursts of `worst` have no policy and no reason.
        let columns = (0..6).filter(|column| cells.iter().any(|row| !row[*column].is_empty()));
        let columns: Vec<_> = columns.map(|column| (column, width(column))).collect();
        for row in all() {
            let mut line = String::from("      ");
            for (column, width) in &columns {
                write!(line, "{:width$}  ", row[*column])?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if *may_be_shorter {
            writeln!(f, "      {LONGER}")?;
        }
        Ok(())
    }
}
