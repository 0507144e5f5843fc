//! Child processes for measurements, and numbers about processes.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;

/// A running program, stopped on drop.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts a server, and waits until it listens on all ports.
    pub(crate) fn listening(command: &mut Command, ports: &[u16]) -> Result<Self, Failure> {
        let process = command.spawn().map_err(|error| format!("`{command:?}`: {error}"))?;
        let server = Self(process);
        let started = Instant::now();
        for port in ports {
            while TcpStream::connect(local(*port)).is_err() {
                if started.elapsed() > Duration::from_secs(10) {
                    return Err(format!("`{command:?}` does not listen").into());
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(server)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM, because with SIGKILL nginx would leave its workers running.
        let _ = Command::new("kill").arg(self.id().to_string()).status();
        let _ = self.0.wait();
    }
}

pub(crate) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    // All listeners are open at the same time, so their ports are different.
    let listeners: Result<Vec<_>, _> = (0..count).map(|_| TcpListener::bind(local(0))).collect();
    listeners?.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// The time after which a silent program counts as failed. It is several times the longest
/// measurement, and needed because one peer sometimes hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program that answers lines with numbers.
pub(crate) struct Answering {
    _process: Running,
    input: ChildStdin,
    answers: Receiver<io::Result<String>>,
}

impl Answering {
    pub(crate) fn start(program: &Path, args: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.ok_or("a process without pipes")?;
        let (sender, answers) = mpsc::channel();
        // The thread exits with the process, or when the receiver is dropped.
        thread::spawn(move || {
            BufReader::new(output).lines().try_for_each(|line| sender.send(line))
        });
        Ok(Self { _process: Running(process), input, answers })
    }

    /// Sends a line and waits for the numbers in the answer.
    pub(crate) fn say(&self, line: &str) -> Result<Vec<f64>, Failure> {
        writeln!(&self.input, "{line}")?;
        let answer = self.answers.recv_timeout(PATIENCE);
        parse(&answer.map_err(|error| format!("no answer to `{line}`: {error}"))??)
    }
}

fn parse(numbers: &str) -> Result<Vec<f64>, Failure> {
    Ok(numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Runs a measurement in its own process, and returns the numbers that it prints.
pub(crate) fn alone(what: &str) -> Result<Vec<f64>, Failure> {
    numbers(Command::new(std::env::current_exe()?).args(["alone", what]))
}

/// Runs the program that counts allocations; `None` if it was not built.
pub(crate) fn count(what: &str) -> Result<Option<f64>, Failure> {
    let program = std::env::current_exe()?.with_file_name("tollgate-bench-count");
    if !program.exists() {
        eprintln!("no {}: build all of tollgate-bench to count allocations", program.display());
        return Ok(None);
    }
    Ok(numbers(Command::new(program).args(what.split(' ')))?.first().copied())
}

/// Installs a missing program if no password is needed. Otherwise the error contains the command.
pub(crate) fn find(program: &str, package: &str) -> Result<(), Failure> {
    let there = || Command::new(program).arg("-v").output().is_ok();
    if !there() {
        let mut install = Command::new("apt-get");
        let _ = install.args(["install", "--yes", package]).stdout(Stdio::null()).status();
    }
    if there() {
        return Ok(());
    }
    Err(format!("{program} is missing: sudo apt-get install {package}").into())
}

fn numbers(command: &mut Command) -> Result<Vec<f64>, Failure> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("`{command:?}` ended with {}", output.status).into());
    }
    parse(&String::from_utf8(output.stdout)?)
}

/// A line from the process's status in bytes: `VmRSS`, or `VmHWM` for its maximum.
pub(crate) fn memory(pid: &str, line: &str) -> Result<f64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib = found.and_then(|text| text.trim().strip_suffix(" kB"));
    let kib: f64 = kib.ok_or_else(|| format!("/proc/{pid}/status has no {line}"))?.parse()?;
    Ok(kib * 1024.0)
}

/// Processor time that a process has used so far, in seconds.
pub(crate) fn processor_time(pid: u32) -> Result<f64, Failure> {
    // Fields 12 and 13 after the name are the times in user and kernel mode.
    times(&pid.to_string(), 11)
}

/// Processor time of all processes that this process started and waited for, in seconds.
pub(crate) fn processor_time_of_children() -> Result<f64, Failure> {
    times("self", 13)
}

/// The sum of two times in a process's stat file, in seconds. `skipped` fields precede them.
fn times(pid: &str, skipped: usize) -> Result<f64, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain any character. State and numbers follow it.
    let (_, after) = stat.rsplit_once(") ").ok_or("/proc/<pid>/stat has no name")?;
    let ticks = after.split(' ').skip(skipped).take(2).map(str::parse::<f64>);
    // /proc always has 100 ticks per second, even if the kernel uses another rate.
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// The total processor time for a process and its children, such as nginx and its workers.
pub(crate) fn family_time(pid: u32) -> Result<f64, Failure> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(|child| processor_time(child.parse()?));
    Ok(processor_time(pid)? + children.sum::<Result<f64, Failure>>()?)
}
