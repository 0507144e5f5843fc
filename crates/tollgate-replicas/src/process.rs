//! A program that ends with its handle.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Failure, find};

/// A running program, which is in a process group of its own, so that Ctrl-C reaches only
/// whoever started it. Dropping it ends it; if its owner is killed, it ends as well.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// The end of this is what the leash waits for.
    _leash: ChildStdin,
    log: PathBuf,
    /// How long the log was before.
    start: usize,
}

impl Process {
    /// Starts `program`, which works in `folder` and writes what it has to say to
    /// `folder/name.log`.
    ///
    /// # Errors
    /// There is no such program, or the log cannot be written.
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
            // What stands in the environment of whoever starts this is no business of the
            // program, unless it is handed on.
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

    /// What it is called here, as `api1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// What it has written to its log since it was started.
    #[must_use]
    pub fn said(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.start..).unwrap_or_default()).into_owned()
    }

    /// Waits until it is `ready`.
    ///
    /// # Errors
    /// It ends before that, or takes longer than ten seconds; with its last words.
    pub(crate) fn until(&mut self, mut ready: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        // First, whether it has ended: another server may answer in its place.
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
        let said = self.said();
        let said = said.lines().rev().find(|line| !line.trim().is_empty());
        let said = said.map(|line| line.trim().trim_start_matches("error: "));
        let said = said.map(|line| format!("; it said: {line}")).unwrap_or_default();
        Err(Failure::new(format!("{} {why}{said}", self.name)))
    }

    /// Asks it to end in good order.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Halts it where it is: it keeps its connections and answers nobody.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on where it was halted.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it at once, and with it whatever it has started.
    pub fn kill(&mut self) {
        // The leash is of the group as well, so that the number of the group is not another's
        // even if the program has ended long ago.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }

    /// Waits for its end; kills it when that takes longer than `patience`.
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
        // It may have ended. Its number stays its own until it is waited for.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not killed at once, because nginx ends its workers only when it is asked.
        self.terminate();
        self.thaw();
        self.wait(PATIENCE);
    }
}

/// Enough for a slow machine.
const START: Duration = Duration::from_secs(10);

/// Enough for whatever has nothing in flight.
const PATIENCE: Duration = Duration::from_secs(2);

/// `sh leash.sh FOLDER PROGRAM ARGUMENT...` becomes the program, in the same process. A second
/// one waits for the end of standard input, of which the owner holds the other end: that it
/// comes means that the owner was killed, as otherwise this second process is killed with the
/// program. Then nobody else is left to end the program, which may be frozen, and to remove
/// the folder.
const LEASH: &str = include_str!("leash.sh");
