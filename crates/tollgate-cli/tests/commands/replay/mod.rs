//! Logs and files for `tollgate replay` and `tollgate suggest`. `cases/replay.txt` and
//! `cases/suggest.txt` check their reports.

mod logs;
mod suggest;

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Folder, root};

/// Limits and a log.
fn folder(log: &str) -> Folder {
    let limits = include_str!("../cases/replay/limits.yaml");
    Folder::with(&[("limits.yaml", limits), ("access.log", log)])
}

/// A log with every kind of request.
const LOG: &str = include_str!("../cases/replay/access.log");

fn line(second: u64, address: &str, path: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    let time = format!("22/Nov/2026:00:{minute:02}:{second:02} +0000");
    format!("{address} - - [{time}] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"curl\"\n")
}

fn counts(of: &Value) -> [u64; 4] {
    ["requests", "units", "allowed", "denied"].map(|name| of[name].as_u64().unwrap())
}

#[test]
fn closed_pipe_succeeds() {
    let folder = folder(LOG);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut replay = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    replay.args(["replay", "limits.yaml", "access.log"]).current_dir(folder.path());
    let replay = replay.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = replay.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn documented_examples_run() {
    let text = fs::read_to_string(root().join("docs/replay.md")).unwrap();
    let folder = folder(LOG);
    let mut commands = 0;
    for line in text.lines().filter(|line| line.starts_with("tollgate ")) {
        let words = line.split(" #").next().unwrap();
        let words =
            words.replace("other.yaml", "limits.yaml").replace("access.log.1.gz", "access.log");
        let output = folder.run("bash", &["-e", "-c", &words], &[]);
        assert!(output.status.success(), "{line}: {output:?}");
        commands += 1;
    }
    assert!(commands >= 5, "{commands}");
}
