//! Test results as text, Markdown, JUnit's XML and JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::Policy;
use tollgate::store::Micros;
use tollgate_config::check::Count;
use tollgate_config::plan::Requests;
use tollgate_replay::scenario::{Outcome, START};

use super::simulation::{address, fill};

pub(super) struct Report {
    pub(super) tested: Vec<Tested>,
}

/// A test's result.
pub(super) struct Tested {
    pub(super) file: String,
    pub(super) name: String,
    /// The number of simulated requests.
    pub(super) requests: usize,
    pub(super) time: Duration,
    pub(super) failures: Vec<Failed>,
}

/// An expectation that is not met, with the shortest history that shows it.
pub(crate) struct Failed {
    pub(crate) about: String,
    pub(crate) expected: String,
    pub(crate) got: String,
    pub(crate) rows: Vec<Row>,
}

/// Similar requests one after another.
pub(crate) struct Row {
    pub(crate) at: String,
    pub(crate) requests: String,
    /// The last request's expected outcome.
    pub(crate) expected: String,
    pub(crate) got: String,
    pub(crate) policy: String,
    pub(crate) why: String,
}

impl Row {
    pub(super) fn of(history: &[Outcome], requests: &[Requests], expected: &str) -> Vec<Self> {
        let is_alike = |one: &Outcome, other: &Outcome| {
            let of = |it: &Outcome| (it.arrival.sender, it.arrival.client, got(it));
            of(one) == of(other) && name(one) == name(other)
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
        let Requests { method, path, client, user, header, .. } = requests;
        let number = first.arrival.client;
        let client = match (user, header.iter().flatten().next()) {
            (Some(user), _) => format!("user {}", fill(user, number)),
            (None, Some((name, value))) => format!("{name}: {}", fill(value, number)),
            (None, None) => address(*client, number).to_string(),
        };
        let request = format!("{method} {} of {client}", fill(path, number));
        let at = |outcome: &Outcome| time(outcome.arrival.at.since(START));
        let (from, to) = (at(first), at(last));
        Self {
            at: if from == to { from } else { format!("{from} to {to}") },
            requests: if alike.len() == 1 {
                request
            } else {
                format!("{} × {request}", alike.len())
            },
            expected: String::new(),
            got: got(last),
            policy: name(last).to_owned(),
            why: why(last),
        }
    }

    const fn cells(&self) -> [&String; 6] {
        let Self { at, requests, expected, got, policy, why } = self;
        [at, requests, expected, got, policy, why]
    }
}

const HEADING: [&str; 6] = ["time", "request", "expected", "got", "policy", "why"];

fn name(outcome: &Outcome) -> &str {
    outcome.policy.as_ref().map_or("–", Policy::name)
}

fn why(outcome: &Outcome) -> String {
    let Some(policy) = &outcome.policy else {
        return match (outcome.is_allowed, outcome.status) {
            (true, _) => "no limit decides".to_owned(),
            (false, 503) => "the store is lost".to_owned(),
            (false, _) => "answered before any limit".to_owned(),
        };
    };
    let left = outcome.remaining.unwrap_or_default();
    let left = format!("{left} of {} left", policy.capacity());
    match outcome.retry_after {
        Some(wait) => format!("{left}, free in {}", time(wait)),
        None if !outcome.is_allowed => format!("more than the quota of {}", policy.capacity()),
        None => left,
    }
}

/// A time in seconds, without unnecessary zeros.
pub(crate) fn time(time: Micros) -> String {
    let text = format!("{}.{:06}", time.get() / 1_000_000, time.get() % 1_000_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

impl Report {
    pub(super) fn has_passed(&self) -> bool {
        self.failed() == 0
    }

    fn failed(&self) -> usize {
        self.tested.iter().filter(|tested| !tested.failures.is_empty()).count()
    }

    fn summary(&self) -> String {
        let requests: usize = self.tested.iter().map(|tested| tested.requests).sum();
        let time: Duration = self.tested.iter().map(|tested| tested.time).sum();
        let (tests, failed) = (self.tested.len(), self.failed());
        format!(
            "{}: {} passed, {failed} failed; {} in {:.2} s",
            Count(tests as u64, "test"),
            tests - failed,
            Count(requests as u64, "request"),
            time.as_secs_f64()
        )
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for tested in &self.tested {
            let result = if tested.failures.is_empty() { "ok  " } else { "FAIL" };
            let _ = writeln!(out, "{result}  {}", tested.name);
            for failed in &tested.failures {
                out.push_str(&failed.text());
            }
        }
        let _ = writeln!(out, "\n{}", self.summary());
        out
    }

    pub(super) fn markdown(&self) -> String {
        let mut out = format!("### Tests of the limits\n\n{}\n", self.summary());
        for tested in self.tested.iter().filter(|tested| !tested.failures.is_empty()) {
            let _ = write!(out, "\n**{}** ({})\n", tested.name, tested.file);
            for failed in &tested.failures {
                let _ = write!(out, "\n```text\n{}```\n", failed.text());
            }
        }
        out + "\n"
    }

    pub(super) fn junit(&self) -> String {
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuite name=\"tollgate test\" tests=\"{}\" failures=\"{}\">\n",
            self.tested.len(),
            self.failed()
        );
        for Tested { file, name, time, failures, .. } in &self.tested {
            let (file, name, time) = (escaped(file), escaped(name), time.as_secs_f64());
            let _ =
                write!(out, "  <testcase classname=\"{file}\" name=\"{name}\" time=\"{time:.6}\"");
            if failures.is_empty() {
                out.push_str("/>\n");
                continue;
            }
            out.push_str(">\n");
            for failed in failures {
                let message = format!("expected {}, got {}", failed.expected, failed.got);
                let (message, text) = (escaped(&message), escaped(&failed.text()));
                let _ = writeln!(out, "    <failure message=\"{message}\">{text}</failure>");
            }
            out.push_str("  </testcase>\n");
        }
        out + "</testsuite>\n"
    }

    pub(super) fn json(&self) -> Value {
        let tested = self.tested.iter().map(|tested| {
            json!({
                "file": tested.file,
                "name": tested.name,
                "passed": tested.failures.is_empty(),
                "requests": tested.requests,
                "failures": tested.failures.iter().map(Failed::json).collect::<Vec<_>>(),
            })
        });
        json!({
            "tests": self.tested.len(),
            "failed": self.failed(),
            "results": tested.collect::<Vec<_>>(),
        })
    }
}

impl Failed {
    /// A test that cannot run.
    pub(super) fn unfit(why: String) -> Self {
        let (about, expected) = ("the test".to_owned(), "to fit the limits".to_owned());
        Self { about, expected, got: why, rows: Vec::new() }
    }

    fn text(&self) -> String {
        let Self { about, expected, got, rows } = self;
        let mut out = format!("      {about}: expected {expected}, got {got}\n");
        if rows.is_empty() {
            return out;
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
                let _ = write!(line, "{:width$}  ", row[*column]);
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    fn json(&self) -> Value {
        let Self { about, expected, got, rows } = self;
        let row = |row: &Row| -> Value {
            let cells = HEADING.into_iter().zip(row.cells());
            cells
                .map(|(name, cell)| (name.to_owned(), json!(cell)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let history: Vec<_> = rows.iter().map(row).collect();
        json!({ "about": about, "expected": expected, "got": got, "history": history })
    }
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// How a request ended, for a table.
pub(super) fn got(outcome: &Outcome) -> String {
    let mut got = outcome.status.to_string();
    if outcome.is_allowed && outcome.wait.get() > 0 {
        got = format!("{got} after {}", time(outcome.wait));
    }
    got
}
