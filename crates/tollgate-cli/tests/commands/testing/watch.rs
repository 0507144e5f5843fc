//! Tests that run again.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::LIMITS;
use crate::support::Folder;

/// A command that runs until the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn watch_runs_again_when_a_file_changes() {
    let tests = "limits: limits.yaml
tests:
  - name: after a reload
    requests: [{client: 198.51.100.1, path: /other, at: 2s, count: 10, expect: {status: 200}}]
    faults: [{at: 1s, reload: later.yaml}]
";
    let limits = [("limits.yaml", LIMITS), ("later.yaml", LIMITS), ("limits.test.yaml", tests)];
    let folder = Folder::with(&limits);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(["test", "--watch", "limits.test.yaml", "--html", "report.html"])
        .current_dir(folder.path());
    let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    // The summary is a report's last line.
    let mut summary =
        || lines.find_map(|line| Some(line.unwrap()).filter(|it| it.contains(" failed")));
    assert!(summary().unwrap().contains("0 failed"));
    assert!(folder.read("report.html").contains("0 failed"));
    folder.write("later.yaml", &LIMITS.replace("{limit: 100,", "{limit: 9,"));
    assert!(summary().unwrap().contains("1 failed"));
    assert!(folder.read("report.html").contains("1 failed"));
    folder.write("limits.test.yaml", &tests.replace("count: 10", "count: 9"));
    assert!(summary().unwrap().contains("0 failed"));
}
