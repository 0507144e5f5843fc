//! Limiters from other projects. Limiters that take long to build are in the package `peers`, which
//! must be built by hand. If it is not built, their rows are omitted.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use fred::interfaces::ClientLike;
use fred::prelude::Client;
use fred::types::CustomCommand;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::Failure;
use crate::process::{Running, free_ports};
use crate::redis::load::{Ask, Round};
use crate::redis::queues;
use crate::redis::sides::address;

/// governor in memory: a decision without any sharing between processes.
pub(crate) struct Governor {
    limiter: DefaultKeyedRateLimiter<String>,
    keys: u64,
}

impl Governor {
    pub(crate) fn new(keys: u64) -> Result<Self, Failure> {
        // With two threads, governor denies a request if its clock reading is older than another's
        // by more than the burst. So the burst lasts a second.
        let quota = Quota::with_period(Duration::from_nanos(1)).ok_or("a period without length")?;
        let quota = quota.allow_burst(1_000_000_000.try_into()?);
        Ok(Self { limiter: RateLimiter::keyed(quota), keys })
    }
}

impl Ask for Governor {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        Ok(self.limiter.check_key(&address(number % self.keys)).is_ok())
    }
}

/// redis-cell, a Redis module in Rust, with a CL.THROTTLE call per request.
pub(crate) struct Cell {
    pub(crate) client: Client,
    pub(crate) keys: u64,
}

impl Ask for Cell {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let command = CustomCommand::new_static("CL.THROTTLE", None, false);
        let key = format!("cell:{}", address(number % self.keys));
        // One unit per second, with a burst of a million: larger values overflow its 64-bit sums.
        let args = vec![key.as_str(), "1000000", "1", "1"];
        let answer: Vec<i64> = self.client.custom(command, args).await?;
        Ok(answer.first() == Some(&0))
    }
}

/// The module redis-cell, if it was built.
pub(crate) fn module() -> Option<PathBuf> {
    Some(folder()?.join("build/release/libredis_cell.so")).filter(|path| path.is_file())
}

/// The time after which a silent peer counts as failed. It is several times the longest
/// measurement, and needed because one peer sometimes hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Peers that were not built.
pub(crate) fn missing() -> Vec<&'static str> {
    let found = [
        ("redis-cell", module().is_some()),
        ("limitador", program("tollgate-peers").is_some()),
        ("throttlecrab-server", program("throttlecrab-server").is_some()),
        ("Effect and bottleneck", queues::peers().is_some()),
    ];
    found.into_iter().filter(|(_, found)| !found).map(|(name, _)| name).collect()
}

/// A contender in its own process, which runs the program from the package `peers`.
pub(crate) struct Outside {
    _process: Running,
    input: ChildStdin,
    answers: Receiver<io::Result<String>>,
}

impl Outside {
    /// Starts the named limiter with `keys` keys at `url`. `None` if it was not built.
    pub(crate) fn start(name: &str, url: &str, keys: u64) -> Result<Option<Self>, Failure> {
        let Some(program) = program("tollgate-peers") else { return Ok(None) };
        let mut process = Command::new(program)
            .args([name, url, &keys.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.ok_or("a process without pipes")?;
        let (sender, answers) = mpsc::channel();
        // The thread exits with the process, or when the receiver is dropped.
        thread::spawn(move || {
            BufReader::new(output).lines().try_for_each(|line| sender.send(line))
        });
        Ok(Some(Self { _process: Running(process), input, answers }))
    }

    pub(crate) fn round(&self, tasks: usize) -> Result<Round, Failure> {
        let numbers = self.say(&format!("round {tasks}"))?;
        let &[decisions, admitted, rate, median, p99] = &numbers[..] else {
            return Err(
                format!("a peer's round has other numbers than expected: {numbers:?}").into()
            );
        };
        Ok(Round { decisions, admitted, rate, median, p99 })
    }

    /// The most that two replicas admitted in a window.
    pub(crate) fn worst(&self) -> Result<f64, Failure> {
        Ok(*self.say("worst")?.first().ok_or("a peer returned no number")?)
    }

    /// Sends a line and waits for the numbers in the answer.
    fn say(&self, line: &str) -> Result<Vec<f64>, Failure> {
        writeln!(&self.input, "{line}")?;
        let answer = self.answers.recv_timeout(PATIENCE);
        let answer = answer.map_err(|error| format!("a peer does not answer `{line}`: {error}"))?;
        Ok(answer?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }
}

/// throttlecrab-server, which uses the Redis protocol and stores its keys itself.
pub(crate) struct Throttlecrab {
    process: Running,
    port: u16,
}

impl Throttlecrab {
    /// `None` if it was not installed.
    pub(crate) fn start() -> Result<Option<Self>, Failure> {
        let Some(program) = program("throttlecrab-server") else { return Ok(None) };
        let port = free_ports(1)?[0];
        let mut command = Command::new(program);
        command
            .args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port.to_string()])
            .args(["--log-level", "error"])
            .stdout(Stdio::null());
        Ok(Some(Self { process: Running::listening(&mut command, &[port])?, port }))
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

/// A program that `peers/install` installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    Some(folder()?.join("bin").join(name)).filter(|path| path.is_file())
}

/// `target/peers`: this program is `target/release/tollgate-bench`.
pub(crate) fn folder() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.parent()?.join("peers"))
}
