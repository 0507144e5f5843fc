//! Tables of commands and their expected output, in `cases/`.
//!
//! A case starts with `##` and its name. It creates a folder and writes each file after `---` into
//! it. Then bash runs each command after `$` in this folder. A command after `%` prepares the folder
//! and must succeed.
//!
//! ```text
//! ## costs_are_checked
//! --- limits.yaml
//! rateLimiter: {target: 'http://localhost:1'}
//! % edit limits.yaml :1 :2
//! $ tollgate check limits.yaml
//! $ tollgate serve limits.yaml
//! = 2
//! ! error[TG0001]:
//! ```
//!
//! Expectations follow their commands, so both commands of this example must exit with 2.
//!
//! | expectation | meaning |
//! |---|---|
//! | `= 2` | the exit code, by default 0 |
//! | `> text` | stdout contains this text after the previous `>` text |
//! | `>= line`, `>- text` | stdout contains this line, or does not contain this text |
//! | `>^ text`, `>$ text`, `>` | stdout starts or ends with this text, or is empty |
//! | `/member/0: 5` | stdout's JSON contains this value; `*text` matches a string that contains the text |
//!
//! The same expectations with `!` check stderr, and `\n` is a line break. `edit FILE OLD NEW` fails
//! unless the file contains the old text. `$ROOT` is the workspace.

use std::process::Output;

use serde_json::Value;

use crate::support::{Folder, root};

macro_rules! tables {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            check(include_str!(concat!("cases/", stringify!($name), ".txt")));
        }
    )* };
}

tables! { cli errors explain replay suggest tenants tests }

fn check(table: &str) {
    let mut wrong = Vec::new();
    for case in format!("\n{table}").split("\n## ").skip(1) {
        let (name, case) = case.split_once('\n').unwrap();
        let folder = Folder::new();
        let mut commands = Vec::new();
        for (step, body) in steps(case) {
            assert!(step.starts_with('$') || commands.is_empty(), "{name}: {step} is late");
            match step.split_once(' ').unwrap() {
                ("---", file) => folder.write(file, &format!("{}\n", body.join("\n").trim_end())),
                ("%", command) => {
                    let output = bash(&folder, command);
                    assert!(output.status.success(), "{name}: {command}: {output:?}");
                }
                (_, command) => commands.push(command),
            }
            let is_expected = |line: &&&str| !line.is_empty() && !line.starts_with('#');
            let expected: Vec<_> = body.iter().filter(is_expected).collect();
            if expected.is_empty() || !step.starts_with('$') {
                continue;
            }
            for command in commands.drain(..) {
                let output = bash(&folder, command);
                let met = Found::new(&output).unmet(&expected);
                wrong.extend(met.map(|it| format!("{name}: {command}\n{it}\n{output:?}")));
            }
        }
        assert!(commands.is_empty(), "{name}: nothing is expected of {commands:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Returns each step with its file or expectations.
fn steps(case: &str) -> Vec<(&str, Vec<&str>)> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in case.lines() {
        if ["--- ", "% ", "$ "].iter().any(|start| line.starts_with(start)) {
            steps.push((line, Vec::new()));
        } else if let Some((_, body)) = steps.last_mut() {
            body.push(line);
        }
    }
    steps
}

fn bash(folder: &Folder, command: &str) -> Output {
    const EDIT: &str = r#"edit() {
        local text; text=$(<"$1")
        [[ $text == *"$2"* ]] || { echo "$2 is not in $1" >&2; return 9; }
        printf '%s\n' "${text/"$2"/"$3"}" >"$1"
    }"#;
    let root = root().display().to_string();
    folder.run("bash", &["-c", &format!("{EDIT}\n{command}")], &[("ROOT", root)])
}

/// A command's exit code and output.
struct Found {
    code: Option<i32>,
    streams: [String; 2],
    /// Where the previous texts ended.
    ends: [usize; 2],
}

impl Found {
    fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let streams = [text(&output.stdout), text(&output.stderr)];
        Self { code: output.status.code(), streams, ends: [0; 2] }
    }

    /// Returns the expectations that are not met.
    fn unmet<'a>(mut self, expected: &'a [&&str]) -> impl Iterator<Item = &'a str> {
        let codes = expected.iter().filter(|line| line.starts_with('=')).count();
        let success = (codes == 0 && self.code != Some(0)).then_some("= 0");
        // A message has its code once.
        let twice = self.streams[1].lines().any(|line| {
            line.contains("error: error")
                || line.match_indices("TG").any(|(at, _)| {
                    line.get(at..at + 6).is_some_and(|code| line.matches(code).count() > 1)
                })
        });
        let twice = twice.then_some("a code twice");
        let unmet = expected.iter().filter(move |line| !self.is_met(line)).map(|line| **line);
        success.into_iter().chain(twice).chain(unmet)
    }

    fn is_met(&mut self, line: &str) -> bool {
        if let Some(code) = line.strip_prefix("= ") {
            return self.code == Some(code.parse().unwrap());
        }
        if line.starts_with('/') {
            let (place, value) = line.split_once(": ").unwrap();
            let report: Value = serde_json::from_str(&self.streams[0]).unwrap_or_default();
            let found = report.pointer(place).unwrap_or(&Value::Null);
            return match value.strip_prefix('*') {
                Some(part) => found.as_str().is_some_and(|found| found.contains(part)),
                None => *found == serde_json::from_str::<Value>(value).unwrap(),
            };
        }
        let index = usize::from(line.starts_with('!'));
        let text = &self.streams[index];
        let Some((kind, part)) = line.split_once(' ') else { return text.is_empty() };
        let part = part.replace("\\n", "\n");
        match &kind[1..] {
            "=" => text.lines().any(|line| line == part),
            "^" => text.starts_with(&part),
            "$" => text.trim_end_matches('\n').ends_with(&part),
            "-" => !text.contains(&part),
            "" => {
                let Some(at) = text[self.ends[index]..].find(&part) else { return false };
                self.ends[index] += at + part.len();
                true
            }
            _ => panic!("{line}"),
        }
    }
}
