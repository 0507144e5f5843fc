//! Test results as text, Markdown, JUnit's XML and JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_config::check::Count;
use tollgate_replay::html::{Escaped, document, table};
use tollgate_replay::scenario::Failed;

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

/// A test that cannot run.
pub(super) fn unfit(why: String) -> Failed {
    let (about, expected) = ("the test".to_owned(), "to fit the limits".to_owned());
    Failed { about, expected, got: why, rows: Vec::new(), may_be_shorter: false }
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
                let _ = write!(out, "{failed}");
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
                let _ = write!(out, "\n```text\n{failed}```\n");
            }
        }
        out + "\n"
    }

    pub(super) fn html(&self) -> String {
        let mut body = format!("<p class=\"sum\">{}</p>\n", Escaped(&self.summary()));
        for Tested { name, failures, .. } in &self.tested {
            failures.iter().for_each(|failed| failed.html(&mut body, name));
        }
        let row = |tested: &Tested| {
            let result = if tested.failures.is_empty() { "passed" } else { "failed" };
            let requests = Count(tested.requests as u64, "request").to_string();
            [result.to_owned(), tested.name.clone(), tested.file.clone(), requests]
        };
        let rows: Vec<_> = self.tested.iter().map(row).collect();
        table(
            &mut body,
            "All tests",
            &["result", "test", "file", "simulated"],
            Some("simulated"),
            &rows,
        );
        document("Tests of the limits", &body)
    }

    pub(super) fn junit(&self) -> String {
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuite name=\"tollgate test\" tests=\"{}\" failures=\"{}\">\n",
            self.tested.len(),
            self.failed()
        );
        for Tested { file, name, time, failures, .. } in &self.tested {
            let (file, name, time) = (Escaped(file), Escaped(name), time.as_secs_f64());
            let _ =
                write!(out, "  <testcase classname=\"{file}\" name=\"{name}\" time=\"{time:.6}\"");
            if failures.is_empty() {
                out.push_str("/>\n");
                continue;
            }
            out.push_str(">\n");
            for failed in failures {
                let message = format!("expected {}, got {}", failed.expected, failed.got);
                let text = failed.to_string();
                let (message, text) = (Escaped(&message), Escaped(&text));
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
                "failures": tested.failures,
            })
        });
        json!({
            "tests": self.tested.len(),
            "failed": self.failed(),
            "results": tested.collect::<Vec<_>>(),
        })
    }
}
