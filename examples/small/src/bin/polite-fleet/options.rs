//! The options of the example.

use std::str::FromStr;
use std::time::Duration;

use super::Fallible;

/// The options: `--kill` and `--halve` alone, and all others with a value.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// The third party's quota.
    pub(super) quota: u64,
    /// Its window, in seconds.
    pub(super) window: u64,
    pub(super) workers: usize,
    /// The tasks of each worker.
    pub(super) tasks: usize,
    /// How long the example runs, in seconds: by default for three windows and a half, or
    /// for five with `--halve`.
    pub(super) seconds: u64,
    /// Whether the third party halves its quota for one window, in the middle of the run.
    pub(super) halve: bool,
    /// Whether one of the workers is killed in the middle of the run.
    pub(super) kill: bool,
    pub(super) says: Says,
    /// The number of this process, if it is a worker.
    pub(super) worker: Option<usize>,
    pub(super) url: String,
}

const USAGE: &str = "the options are --quota N, --window SECONDS, --workers N, --tasks N, \
                     --for SECONDS, --halve, --kill, --says retry-after|ratelimit|nothing|lies";

/// What the third party says with a 429.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Says {
    RetryAfter,
    /// The headers of the RateLimit draft.
    RateLimit,
    Nothing,
    /// It always has units left, and a call may be repeated after 30 years.
    Lies,
}

impl Options {
    pub(super) fn parse(mut args: impl Iterator<Item = String>) -> Fallible<Self> {
        let mut options = Self {
            quota: 100,
            window: 60,
            workers: 8,
            tasks: 32,
            seconds: 0,
            halve: false,
            kill: false,
            says: Says::RetryAfter,
            worker: None,
            url: String::new(),
        };
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{name} needs a value"));
            match &*name {
                "--quota" => options.quota = value()?.parse()?,
                "--window" => options.window = value()?.parse()?,
                "--workers" => options.workers = value()?.parse()?,
                "--tasks" => options.tasks = value()?.parse()?,
                "--for" => options.seconds = value()?.parse()?,
                "--halve" => options.halve = true,
                "--kill" => options.kill = true,
                "--says" => options.says = value()?.parse()?,
                "--worker" => options.worker = Some(value()?.parse()?),
                "--url" => options.url = value()?,
                _ => return Err(format!("unknown option {name}; {USAGE}").into()),
            }
        }
        if options.seconds == 0 {
            options.seconds = options.window * if options.halve { 10 } else { 7 } / 2;
        }
        Ok(options)
    }

    pub(super) const fn window(&self) -> Duration {
        Duration::from_secs(self.window)
    }

    pub(super) const fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(super) fn middle(&self) -> Duration {
        self.length() / 2
    }
}

impl FromStr for Says {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "retry-after" => Self::RetryAfter,
            "ratelimit" => Self::RateLimit,
            "nothing" => Self::Nothing,
            "lies" => Self::Lies,
            _ => return Err("--says is retry-after, ratelimit, nothing or lies".to_owned()),
        })
    }
}
