//! Tables of commands and their expected output, in `cases/`.
//!
//! A case starts with `##` and its name. It creates a folder and writes each file after `---` into
//! it. Then bash runs each command after `$` in this folder. A command after `%` prepares the folder
//! and must succeed. A failing command fails its pipeline. Each command line has a minute.
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
//! | `/member/0: 5` | stdout's JSON contains this value; `*text` and `^text` match strings that contain the text, or start with it |
//!
//! The same expectations with `!` check stderr, and `\n` is a line break. `edit FILE OLD NEW` fails
//! unless the file contains the old text. `$ROOT` is the workspace.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::support::{Folder, root};

macro_rules! tables {
    ($($name:ident)*) => {
        const TABLES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                check(include_str!(concat!("cases/", stringify!($name), ".txt")));
            }
        )*
    };
}

tables! { cli errors explain replay suggest tenants tests }

#[test]
fn every_table_is_checked() {
    let folder = root().join("crates/tollgate-cli/tests/commands/cases");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    // The folders contain files that several cases copy.
    let files = entries.filter(|entry| entry.path().is_file()).map(|entry| entry.file_name());
    let mut files: Vec<_> = files.map(|file| file.into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, TABLES.iter().map(|name| format!("{name}.txt")).collect::<Vec<_>>());
}

fn check(table: &str) {
    let mut wrong = Vec::new();
    let table = format!("\n{table}");
    let (head, cases) = table.split_once("\n## ").unwrap();
    assert_eq!(head.lines().find(is_expectation), None, "a line before the first case");
    for case in cases.split("\n## ") {
        let (name, case) = case.split_once('\n').unwrap();
        let folder = Folder::new();
        let (mut commands, mut checks) = (Vec::new(), 0);
        for (step, body) in steps(name, case) {
            assert!(step.starts_with('$') || commands.is_empty(), "{name}: {step} is late");
            let expected: Vec<_> = body.iter().copied().filter(is_expectation).collect();
            match step.split_once(' ').unwrap() {
                ("---", file) => folder.write(file, &format!("{}\n", body.join("\n").trim_end())),
                ("%", command) => {
                    assert!(expected.is_empty(), "{name}: {expected:?} after {step}");
                    let output = folder.bash(command);
                    assert!(output.status.success(), "{name}: {command}: {output:?}");
                }
                (_, command) => {
                    commands.push(command);
                    if expected.is_empty() {
                        continue;
                    }
                    for command in commands.drain(..) {
                        let output = folder.bash(command);
                        let unmet = Found::new(&output).unmet(&expected);
                        wrong
                            .extend(unmet.map(|it| format!("{name}: {command}\n{it}\n{output:?}")));
                        checks += 1;
                    }
                }
            }
        }
        assert!(commands.is_empty(), "{name}: nothing is expected of {commands:?}");
        assert!(checks > 0, "{name} checks nothing");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Whether a line is neither blank nor a comment.
fn is_expectation(line: &&str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

/// Returns each step with its file or expectations.
fn steps<'a>(name: &str, case: &'a str) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in case.lines() {
        if ["--- ", "% ", "$ "].iter().any(|start| line.starts_with(start)) {
            steps.push((line, Vec::new()));
        } else if let Some((_, body)) = steps.last_mut() {
            body.push(line);
        } else {
            assert!(!is_expectation(&line), "{name}: {line} belongs to no step");
        }
    }
    steps
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
    fn unmet<'a>(mut self, expected: &[&'a str]) -> impl Iterator<Item = &'a str> {
        let codes = expected.iter().filter(|line| line.starts_with('=')).count();
        let success = (codes == 0 && self.code != Some(0)).then_some("= 0");
        let errors = &self.streams[1];
        // Each problem in a file has its place. Other errors have no place, and occur once.
        let most = errors.lines().filter(|line| line.contains("--> ")).count().max(1);
        let is_repeated = |code: &str| errors.matches(code).count() > most;
        let codes = errors.match_indices("TG").filter_map(|(at, _)| errors.get(at..at + 6));
        let twice = codes.into_iter().any(is_repeated) || errors.contains("error: error");
        let twice = twice.then_some("a code twice");
        let unmet: Vec<_> = expected.iter().copied().filter(|line| !self.is_met(line)).collect();
        success.into_iter().chain(twice).chain(unmet)
    }

    fn is_met(&mut self, line: &str) -> bool {
        if let Some(code) = line.strip_prefix("= ") {
            return self.code == Some(code.parse().unwrap());
        }
        if line.starts_with('/') {
            let (place, value) = line.split_once(": ").unwrap();
            let report: Option<Value> = serde_json::from_str(&self.streams[0]).ok();
            let Some(found) = report.as_ref().and_then(|it| it.pointer(place)) else {
                return false;
            };
            let text = |is_so: &dyn Fn(&str) -> bool| found.as_str().is_some_and(is_so);
            return match (value.strip_prefix('*'), value.strip_prefix('^')) {
                (Some(part), _) => text(&|found| found.contains(part)),
                (_, Some(start)) => text(&|found| found.starts_with(start)),
                _ => *found == serde_json::from_str::<Value>(value).unwrap(),
            };
        }
        let index = usize::from(line.starts_with('!'));
        let text = &self.streams[index];
        let Some((kind, part)) = line.split_once(' ') else {
            assert!(["!", ">"].contains(&line), "{line} is no expectation");
            return text.is_empty();
        };
        assert!(kind.starts_with(['!', '>']) && !part.is_empty(), "{line} is no expectation");
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
