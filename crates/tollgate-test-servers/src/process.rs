//! A program that ends with its handle.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A running program. Dropping it kills the program; if the test is killed instead, the
/// leash does it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    leash: ChildStdin,
}

impl Process {
    /// Starts a program that works in `folder`, which goes with the program if the test is
    /// killed. What it prints is added to `log`.
    pub(crate) fn start(program: &str, args: &[&OsStr], folder: &Path, log: &Path) -> Self {
        require(program);
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let errors = log.try_clone().expect("a second handle");
        let mut child = Command::new("sh")
            .args(["-c", LEASH, "leash.sh"])
            .arg(folder)
            .arg(program)
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start sh, which starts {program}: {error}"));
        let leash = child.stdin.take().expect("asked for");
        Self { child, leash }
    }

    /// Whether it has ended, and how.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Halts it where it is: it keeps its connections and answers nobody.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        // A signal may reach it late. Its end would be news too, and waiting for ever none.
        let news = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), news).expect("a child of this process");
    }

    /// Lets it go on where it was stopped.
    pub(crate) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a child of this process");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself. Its number stays its own until it is waited for, so
        // the leash, which knows it by number, is let go before that.
        let _ = self.child.kill();
        let _ = self.leash.write_all(b"\n");
        let _ = self.child.wait();
    }
}

/// The shell would only say 127.
fn require(program: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    assert!(
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file()),
        "no {program} on PATH; run `cargo xtask test`, which installs it"
    );
}

const LEASH: &str = include_str!("leash.sh");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::until;

    fn sleep(folder: &Path) -> Process {
        Process::start("sleep", &["600".as_ref()], folder, &folder.join("log"))
    }

    #[test]
    #[should_panic(expected = "no tollgate-nobody on PATH; run `cargo xtask test`")]
    fn a_missing_program_is_named_with_the_cure() {
        let folder = tempfile::tempdir().expect("a folder");
        Process::start("tollgate-nobody", &[], folder.path(), &folder.path().join("log"));
    }

    #[test]
    fn a_program_and_its_folder_go_when_nobody_holds_the_leash() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = sleep(folder.path());
        // Started later, so that it would inherit the leash if that could be inherited.
        let elsewhere = tempfile::tempdir().expect("a folder");
        let mut other = sleep(elsewhere.path());
        drop(std::mem::replace(&mut process.leash, spare()));
        let status = until("the program is killed", LIMIT, || process.ended());
        assert!(!status.success());
        until("the folder is removed", LIMIT, || (!folder.path().exists()).then_some(()));
        assert_eq!(other.ended(), None);
    }

    #[test]
    fn a_stopped_program_can_still_be_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = sleep(folder.path());
        process.stop();
        assert_eq!(process.ended(), None);
        let path = format!("/proc/{}", process.child.id());
        assert!(!cfg!(target_os = "linux") || Path::new(&path).exists());
        drop(process);
        assert!(!Path::new(&path).exists());
        assert!(folder.path().exists());
    }

    fn spare() -> ChildStdin {
        let mut cat = Command::new("true").stdin(Stdio::piped()).spawn().expect("runs");
        let stdin = cat.stdin.take().expect("asked for");
        cat.wait().expect("a child");
        stdin
    }

    const LIMIT: Duration = Duration::from_secs(10);
}
