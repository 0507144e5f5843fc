//! The program `tollgate`: a rate limiter for people who do not write Rust.

#![expect(missing_docs, reason = "a program: its library is public for tests")]

mod admin;
pub mod explain;
mod explain_error;
mod load;
mod log;
pub mod overrides;
pub mod replay;
pub mod signatures;
pub mod test;
pub mod worst;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use http::Uri;
use tollgate_config::plan::{LogFormat, LogPlan};
use tollgate_config::{self as config, Source};
use tollgate_config::{check, code, schema};
use tollgate_gateway::serve;
use tollgate_gateway::trace::{self, Tracing};

pub use crate::load::{Checks, load};

use crate::admin::Admin;
use crate::explain::{Described, explain};
use crate::explain_error::explain_error;
use crate::load::{WRONG, failed, plan, tell, wrong};
use crate::overrides::OverrideArgs;
use crate::replay::{ReplayArgs, SuggestArgs};
use crate::test::TestArgs;
use crate::worst::WorstArgs;

/// A rate limiter in front of any HTTP service, with its limits in a YAML file
///
/// The gateway forwards requests that the limits allow, and rejects other requests with 429 and
/// the time to wait.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true, after_help = FIRST_STEPS)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  tollgate init > limits.yaml            a commented file to start from
  tollgate check limits.yaml             describe its effect, or list all problems
  tollgate serve --config limits.yaml    start the gateway";

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Forward allowed requests to the target and deny the rest
    ///
    /// The gateway reloads the file when it changes, and on SIGHUP. An invalid file has no effect. On
    /// SIGTERM the gateway waits for `drainDelay`, closes its listeners, and lets requests in flight
    /// finish.
    Serve {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE", required_unless_present = "config", conflicts_with = "config")]
        file: Option<PathBuf>,
        /// The same as FILE
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The format of log lines; overrides the file
        #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_parser = log_format())]
        log_format: Option<LogFormat>,
    },
    /// List all problems in a file, or describe its effect
    ///
    /// Each problem names its location, cause and cure. The command opens the certificates and keys
    /// that the file names; relative paths start at the working directory. It does not listen and
    /// contacts no server. The exit code is 0, or 2 if the file is invalid.
    #[command(
        after_help = "As in `serve`, environment variables in the file need a value or a default \
                            (`${NAME:-default}`)."
    )]
    Check {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// Treat warnings as errors
        #[arg(long)]
        strict: bool,
        /// Do not open the files that the configuration names, for machines without these files
        #[arg(long)]
        without_files: bool,
    },
    /// Show which limits apply to a request, and their decisions
    ///
    /// The command reads the configured store and charges no quota. It cannot see quotas in a
    /// running gateway's memory.
    #[command(after_help = "Example: tollgate explain limits.yaml --method POST --path /api/x \
                            --ip 203.0.113.7 --header 'X-API-Key: k-7'")]
    Explain {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// The request.
        #[command(flatten)]
        request: Box<Described>,
    },
    /// Explain an error's or a warning's code, or list all codes
    ///
    /// Messages end with their code, or start with it, as in `error[TG0107]`. The command prints the
    /// cause, the cure and an example.
    #[command(after_help = "Example: tollgate explain-error TG0107")]
    ExplainError {
        /// The code
        code: Option<String>,
    },
    /// Show what a file would decide about the requests in an access log
    ///
    /// Each line passes through the same routes, identities, lists, tiers, costs and limits as in
    /// `serve`, on the log's clock. The command contacts no server. The exit code is 0, 1 if a
    /// condition of --fail-if is true, or 2 if the file or a log cannot be read.
    #[command(after_help = "Example: tollgate replay limits.yaml access.log access.log.1.gz")]
    Replay {
        /// The file with the limits
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// The options of a replay.
        #[command(flatten)]
        replay: Box<ReplayArgs>,
    },
    /// Suggest a file with limits that fit an access log
    ///
    /// For each route and for all routes together, the file contains the limits that would never
    /// have denied 99, 99.9 and 99.99 % of the clients. The log is then replayed against the file.
    #[command(after_help = "Example: tollgate suggest access.log > limits.yaml")]
    Suggest(Box<SuggestArgs>),
    /// Test a file with limits, with simulated requests
    ///
    /// Requests pass through the same routes, identities, limits and failure policies as in `serve`.
    /// Time is simulated, and random times follow from a seed, so each run gives the same result. A
    /// failure shows its shortest history. The exit code is 0, 1 if a test fails, or 2 if a file is
    /// invalid.
    #[command(after_help = "Example: tollgate init --test limits.yaml > limits.test.yaml; \
                            tollgate test limits.test.yaml")]
    Test(Box<TestArgs>),
    /// Show how many requests can pass within any window
    ///
    /// The report covers each policy, one client's requests, and all clients together. A search finds
    /// a schedule that gets many requests through. A proved number is the largest possible number.
    #[command(after_help = "Example: tollgate worst limits.yaml --replicas 5 --redis-down 10s")]
    Worst {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// The options of the search.
        #[command(flatten)]
        worst: Box<WorstArgs>,
    },
    /// Change one client's quota until an instant, or block the client
    ///
    /// The command sends the change to the admin address of a running gateway. It applies within two
    /// seconds in all gateways that share a Redis. Used units remain used.
    #[command(after_help = "Example: tollgate override set client ip:203.0.113.7 --limit 5000 \
                            --until tomorrow")]
    Override(Box<OverrideArgs>),
    /// Check a running gateway's health
    ///
    /// Container images without a shell use it for their health checks. The exit code is 0, or 1 if
    /// the gateway does not answer.
    #[command(after_help = "Example: tollgate healthcheck --admin http://127.0.0.1:8081")]
    Healthcheck {
        /// The gateway's admin address
        #[arg(
            long,
            env = "TOLLGATE_ADMIN_URL",
            value_name = "URL",
            default_value = "http://127.0.0.1:8081"
        )]
        admin: Uri,
    },
    /// Print the file's JSON Schema, for editors
    ///
    /// Editors with YAML support complete a file if its first line is
    /// `# yaml-language-server: $schema=limits.schema.json`.
    #[command(after_help = "Example: tollgate schema > limits.schema.json")]
    Schema {
        /// Print the schema of test files
        #[arg(long)]
        test: bool,
    },
    /// Print a commented file to start from
    #[command(after_help = "Example: tollgate init > limits.yaml")]
    Init {
        /// Print tests of this file instead
        #[arg(long, value_name = "FILE")]
        test: Option<PathBuf>,
        /// Send the tests' requests through a proxy with this address
        #[arg(long, value_name = "ADDRESS", requires = "test")]
        proxy: Option<IpAddr>,
    },
    /// Print a script that completes the command line in a shell
    #[command(after_help = "Example: source <(tollgate completions bash)")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a manual page for each command
    #[command(after_help = "Example: tollgate man /usr/local/share/man/man1")]
    Man {
        /// An existing folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    let words = [
        PossibleValue::new("text").help("One line of text"),
        PossibleValue::new("json").help("One JSON object per line"),
    ];
    PossibleValuesParser::new(words)
        .map(|word| if word == "json" { LogFormat::Json } else { LogFormat::Text })
}

/// The output of `tollgate init`.
pub const STARTER: &str = include_str!("init.yaml");

impl Cli {
    /// Runs the command. The exit code is 2 if a configuration is invalid.
    ///
    /// # Errors
    /// The output cannot be written, for example because the disk is full or a reader such as `head`
    /// has closed the pipe.
    pub fn run(&self) -> io::Result<ExitCode> {
        // Not locked while serving, because another thread writes the access log to stdout.
        match self.output() {
            Ok(text) => {
                let mut out = io::stdout();
                // Without the flush, an error at the exit would be lost.
                out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
                Ok(ExitCode::SUCCESS)
            }
            Err(code) => Ok(code),
        }
    }

    /// Runs the command and returns its output.
    ///
    /// # Errors
    /// The exit code of a failed command or a stopped server.
    fn output(&self) -> Result<String, ExitCode> {
        let read = |file: &PathBuf| load(file, Checks { strict: false, files: true });
        match &self.command {
            Command::Serve { file, config, log_format } => {
                // clap requires either.
                let file = file.as_ref().or(config.as_ref());
                Err(serve(file.map_or_else(|| Path::new("-"), PathBuf::as_path), *log_format))
            }
            Command::Explain { config, request } => {
                let mut words = String::new();
                explain(&read(config)?, request, &mut words).map_err(|error| {
                    // The explanation up to the error.
                    let exit = failed(&words);
                    eprintln!("{}", code::titled(&error));
                    exit
                })?;
                Ok(words)
            }
            Command::ExplainError { code } => {
                explain_error(code.as_deref()).map_err(|error| wrong(&error))
            }
            Command::Replay { config, replay } => {
                let plan = read(config)?;
                let other = replay.compare.as_ref().map(read).transpose()?;
                let (text, fails) =
                    replay::run(plan, other, replay).map_err(|error| wrong(&error))?;
                if fails { Err(failed(&text)) } else { Ok(text) }
            }
            Command::Test(args) => test::run(args),
            Command::Override(args) => overrides::run(args).map_err(|error| failure(&error)),
            Command::Healthcheck { admin } => Admin::new(admin, None)
                .and_then(|admin| admin.send("GET", "/healthz", ""))
                .map_err(|error| failure(&error))
                .map(|_| "the gateway runs\n".to_owned()),
            Command::Worst { config, worst } => {
                worst::run(&read(config)?, worst).map_err(|error| wrong(&error))
            }
            Command::Suggest(args) => replay::suggest(args).map_err(|error| wrong(&error)),
            Command::Check { config, strict, without_files } => {
                let source = Source::read(config).map_err(|error| wrong(&error))?;
                if config::is_rate_limits(&source) {
                    let (domains, report) = config::read_rate_limits(&source);
                    tell(&source, &report);
                    let domains = domains.filter(|_| !strict || report.warnings() == 0);
                    let domains = domains.ok_or_else(|| ExitCode::from(WRONG))?;
                    return Ok(domains.iter().map(check::rate_limits_in_words).collect());
                }
                let plan = plan(&source, Checks { strict: *strict, files: !without_files })?;
                Ok(check::in_words(&plan))
            }
            Command::Schema { test: false } => Ok(format!("{:#}\n", schema::schema())),
            Command::Schema { test: true } => Ok(format!("{:#}\n", schema::test_schema())),
            Command::Init { test: None, .. } => Ok(STARTER.to_owned()),
            Command::Init { test: Some(file), proxy } => {
                let plan = load(file, Checks { strict: false, files: false })?;
                test::generate(file, &plan, *proxy).map_err(|error| wrong(&error))
            }
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut Self::command(), "tollgate", &mut script);
                Ok(String::from_utf8_lossy(&script).into_owned())
            }
            Command::Man { folder } => clap_mangen::generate_to(Self::command(), folder)
                .map_err(|error| {
                    failure(&format!("cannot write to {}: {error} [TG0707]", folder.display()))
                })
                .map(|()| String::new()),
        }
    }
}

fn failure(error: &str) -> ExitCode {
    eprintln!("{}", code::titled(error));
    ExitCode::FAILURE
}

/// Serves a configuration file, and reloads the file when it changes.
fn serve(path: &Path, format: Option<LogFormat>) -> ExitCode {
    let source = match Source::read_again(path) {
        Ok(source) => source,
        Err(error) => return wrong(&error),
    };
    let outcome = config::read_with_process_env(&source).with_files();
    let given = outcome.plan.as_ref().map_or_else(LogPlan::default, |plan| plan.log.clone());
    let lines = LogPlan { format: format.unwrap_or(given.format), ..given };
    // Text is for people, so problems are written to stderr. Warnings during a reload, and all
    // warnings if the log is JSON, are logged.
    let is_told = outcome.plan.is_none() || lines.format == LogFormat::Text;
    if is_told {
        tell(&source, &outcome.report);
    }
    let Some(plan) = outcome.plan else { return ExitCode::from(WRONG) };
    let tracing = match Tracing::new(plan.tracing.as_ref()) {
        Ok(tracing) => tracing,
        Err(error) => return wrong(&error),
    };
    if let Err(error) = log::start(&lines, &tracing) {
        return wrong(&error);
    }
    // `run` loads the file again at startup. The flag prevents repeated warnings.
    let is_told = AtomicBool::new(is_told);
    let load = move |source: &Source| loaded(source, is_told.swap(false, Ordering::Relaxed));
    let load: serve::Load = if path == Path::new("-") {
        Arc::new(move || load(&source))
    } else {
        let path = path.to_owned();
        Arc::new(move || load(&Source::read_again(&path).map_err(|error| error.to_string())?))
    };
    let file = (path != Path::new("-")).then(|| path.to_owned());
    serve::run(serve::Loader { file, load }, &tracing).unwrap_or_else(|failure| {
        if lines.format == LogFormat::Json {
            tracing::error!(target: "tollgate", "{failure}");
            return ExitCode::from(failure.code);
        }
        eprintln!("{}", code::titled(&failure.to_string()));
        ExitCode::from(failure.code)
    })
}

/// Returns the plan, or its errors with one line each. Warnings are logged, unless `is_told` is set
/// because stderr already has them.
fn loaded(source: &Source, is_told: bool) -> Result<serve::Loaded, String> {
    let config::Outcome { plan, report, .. } = config::read_with_process_env(source);
    // The log appends fields to the message, so the message must not end with a line break.
    let Some(plan) = plan else { return Err(report.to_string().trim_end().to_owned()) };
    trace::is_possible(plan.tracing.as_ref()).map_err(|error| error.to_string())?;
    let words = check::in_words(&plan);
    if !is_told {
        for warning in report.to_string().lines() {
            tracing::warn!(target: "tollgate", "{warning}");
        }
    }
    Ok(serve::Loaded { plan, words })
}
