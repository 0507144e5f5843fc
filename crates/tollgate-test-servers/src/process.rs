//! A program that is stopped when its handle is dropped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::{Failure, find};

/// A running program in its own process group: Ctrl-C reaches only this process and not the
/// program. The program is stopped when this value is dropped or this process is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// `leash.sh` waits until this pipe is closed.
    _leash: ChildStdin,
    log: PathBuf,
    /// The length of the log before this start, in bytes.
    start: usize,
}

impl Process {
    /// Starts `program` in `folder`. Its output is appended to `folder/name.log`.
    ///
    /// # Errors
    /// The program is missing, or the log cannot be written.
    pub fn start<Arg: AsRef<OsStr>>(
        name: &str,
        program: &str,
        args: impl IntoIterator<Item = Arg>,
        variables: &[(String, String)],
        folder: &Path,
    ) -> Result<Self, Failure> {
        let log = folder.join(format!("{name}.log"));
        let failed =
            |error: io::Error| Failure::new(format!("cannot start {name} ({program}): {error}"));
        let output = File::options().create(true).append(true).open(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let start = output.metadata().map_err(failed)?.len();
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let mut child = Command::new("sh")
            .args(["-c", LEASH, "leash.sh"])
            .arg(folder)
            .arg(find(program)?)
            .args(args)
            .current_dir(folder)
            // Apart from PATH, the program does not inherit the caller's environment.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        let leash = child.stdin.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { name: name.to_owned(), child, _leash: leash, log, start })
    }

    /// The name in errors and of the log file, for example `api1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, or `None` while the program runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The output since this start.
    #[must_use]
    pub fn output(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.start..).unwrap_or_default()).into_owned()
    }

    /// Waits until `ready` returns true.
    ///
    /// # Errors
    /// The program exits first, or is not ready within 20 s. The error contains its last line of
    /// output.
    pub(crate) fn until(&mut self, mut ready: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        // Check for an exit first because another server on the port could satisfy `ready`.
        let why = loop {
            if let Some(status) = self.ended() {
                break format!("ended with {status}");
            }
            if ready(self) {
                return Ok(());
            }
            if start.elapsed() > START {
                break format!("is not up after {} s", START.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        };
        let said = self.output();
        let said = said.lines().rev().find(|line| !line.trim().is_empty());
        let said = said.map(|line| line.trim().trim_start_matches("error: "));
        let said = said.map(|line| format!(": {line}")).unwrap_or_default();
        Err(Failure::new(format!("{} {why}{said}", self.name)))
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGSTOP and waits until the program is stopped. Its connections remain open, but it
    /// sends no responses.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // Waiting for an exit as well avoids a hang if the program exits first.
        let news = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = waitid(WaitId::Pid(Pid::from_child(&self.child)), news);
    }

    /// Sends SIGCONT: the program continues after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL to the program and to its child processes.
    pub fn kill(&mut self) {
        // `leash.sh` is still in the process group, so the group's id is not reused even if the
        // program has exited.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }

    /// Waits until the program exits, and kills it after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while self.ended().is_none() && start.elapsed() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        let ended = self.ended();
        self.kill();
        ended
    }

    fn signal(&self, signal: Signal) {
        // The program may have exited, but its process id is not reused before it is waited for.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM first, because nginx cannot stop its workers after SIGKILL.
        self.terminate();
        self.thaw();
        self.wait(PATIENCE);
    }
}

/// Long enough for a slow machine.
const START: Duration = Duration::from_secs(20);

/// Long enough for a program without requests in flight.
const PATIENCE: Duration = Duration::from_secs(2);

/// `sh leash.sh FOLDER PROGRAM ARGUMENT...` replaces itself with the program. Before that, it
/// starts a second process, which waits until standard input is closed. The owner holds the other
/// end of that pipe. If the owner is killed, the pipe closes, and the second process stops the
/// program, even if it is frozen, and removes the folder. Otherwise the second process is killed
/// together with the program.
const LEASH: &str = include_str!("leash.sh");
