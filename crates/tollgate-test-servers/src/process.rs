//! A child process that is killed when its handle is dropped.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A running program. Dropping this value kills it, and `leash.sh` kills it if the test itself is
/// killed.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    leash: ChildStdin,
}

impl Process {
    /// Starts a program in `folder` and appends its output to `log`. If the test is killed,
    /// `leash.sh` removes the folder too.
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

    /// The exit status, or `None` while the program runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Sends SIGSTOP and waits until the program is stopped. Its connections stay open.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        // The signal takes effect asynchronously, so wait for it. Waiting for an exit as well
        // avoids a hang if the program dies first.
        let news = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), news).expect("a child of this process");
    }

    /// Sends SIGCONT to resume the program after [`stop`](Self::stop).
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
        // `leash.sh` kills by process id, and the system may reuse the id after `wait`, so tell it
        // to exit first. Errors are ignored because the program may have exited already.
        let _ = self.child.kill();
        let _ = self.leash.write_all(b"\n");
        let _ = self.child.wait();
    }
}

/// Panics if a program is not installed, because the shell's exit status 127 alone is hard to
/// interpret.
pub(crate) fn require(program: &str) {
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
    #[should_panic(expected = "no tollgate-missing on PATH; run `cargo xtask test`")]
    fn missing_program_error_names_install_command() {
        let folder = tempfile::tempdir().expect("a folder");
        Process::start("tollgate-missing", &[], folder.path(), &folder.path().join("log"));
    }

    #[test]
    fn closed_pipe_kills_program_and_removes_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = sleep(folder.path());
        // Started later, so it must not inherit the first program's pipe.
        let elsewhere = tempfile::tempdir().expect("a folder");
        let mut other = sleep(elsewhere.path());
        drop(std::mem::replace(&mut process.leash, spare()));
        let status = until("the program is killed", LIMIT, || process.ended());
        assert!(!status.success());
        until("the folder is removed", LIMIT, || (!folder.path().exists()).then_some(()));
        assert_eq!(other.ended(), None);
    }

    #[test]
    fn drop_kills_stopped_program() {
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
