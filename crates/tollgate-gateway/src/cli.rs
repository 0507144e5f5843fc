//! What can be said on the command line.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tracing_subscriber::EnvFilter;

use crate::config::{self, Source, SourceError};
use crate::plan::Plan;
use crate::serve::explain::{Described, explain};
use crate::{check, schema, serve};

/// A rate limiter in front of any service: one YAML file, exact limits, true answers
///
/// Requests that the limits of the file allow are forwarded to the service; the others are
/// answered with 429 and the time to wait.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true, after_help = FIRST_STEPS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  tollgate init > limits.yaml            a commented file to start from
  tollgate check limits.yaml             what it would do, in words
  tollgate serve --config limits.yaml    does it";

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Forwards allowed requests to the target and answers the others
    ///
    /// The file is read again when it changes, and on SIGHUP. A file that is wrong leaves
    /// everything as it was. On SIGTERM no more connections are taken, and those at work
    /// have time to finish.
    Serve {
        /// The file with the limits; `-` reads it from stdin
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
    /// Says what is wrong with a file, or in words what it would do
    ///
    /// Tells everything that is wrong at once: where, what, and the cure. Nothing is started,
    /// and no file or server that the configuration names is looked at. The exit code is 0,
    /// or 2 if something stands in the way.
    #[command(after_help = "Environment variables in the file are filled in as `serve` would: \
                            set them, or give them defaults (`${NAME:-default}`).")]
    Check {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// Takes warnings for errors
        #[arg(long)]
        strict: bool,
    },
    /// Says which limits a described request meets, and what they would say to it now
    ///
    /// The store that the file names is asked, and charged nothing. What is kept in the memory
    /// of a process that serves, only that process knows.
    #[command(after_help = "Example: tollgate explain limits.yaml --method POST --path /api/x \
                            --ip 203.0.113.7 --header 'X-API-Key: k-7'")]
    Explain {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// What the request is like.
        #[command(flatten)]
        request: Box<Described>,
    },
    /// Prints the JSON Schema of the file, for editors
    ///
    /// A file whose first line is `# yaml-language-server: $schema=limits.schema.json`
    /// completes in editors that know YAML.
    #[command(after_help = "Example: tollgate schema > limits.schema.json")]
    Schema,
    /// Prints a commented file to start from
    #[command(after_help = "Example: tollgate init > limits.yaml")]
    Init,
    /// Prints a script that completes the command line in a shell
    #[command(after_help = "Example: source <(tollgate completions bash)")]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// What `tollgate init` prints.
pub const STARTER: &str = include_str!("init.yaml");

impl Cli {
    /// Does what was asked. The exit code is 2 where a configuration is wrong.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn run(&self) -> io::Result<ExitCode> {
        let mut out = io::stdout().lock();
        match &self.command {
            Command::Serve { config } => return Ok(serve(config)),
            Command::Check { config, strict } => match load(config, *strict) {
                Ok(plan) => out.write_all(check::in_words(&plan).as_bytes())?,
                Err(code) => return Ok(code),
            },
            Command::Explain { config, request } => {
                let plan = match load(config, false) {
                    Ok(plan) => plan,
                    Err(code) => return Ok(code),
                };
                match explain(&plan, request) {
                    Ok(words) => out.write_all(words.as_bytes())?,
                    Err(error) => {
                        eprintln!("error: {error}");
                        return Ok(ExitCode::FAILURE);
                    }
                }
            }
            Command::Schema => writeln!(out, "{:#}", schema::schema())?,
            Command::Init => out.write_all(STARTER.as_bytes())?,
            Command::Completions { shell } => {
                clap_complete::generate(*shell, &mut Self::command(), "tollgate", &mut out);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Serves what a file says, and what it will say when it changes.
fn serve(path: &Path) -> ExitCode {
    let source = match Source::read(path) {
        Ok(source) => source,
        Err(error) => return unreadable(&error),
    };
    // A person reads this; what a reload has to say goes to the log.
    if let Err(code) = plan(&source, false) {
        return code;
    }
    log();
    let load: serve::Load = if path == Path::new("-") {
        Arc::new(move || loaded(&source))
    } else {
        let path = path.to_owned();
        Arc::new(move || loaded(&Source::read(&path).map_err(|error| error.to_string())?))
    };
    let file = (path != Path::new("-")).then(|| path.to_owned());
    serve::run(serve::Source { file, load })
}

/// To standard error; `RUST_LOG` chooses what.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}

/// A plan, or what is wrong in a line each.
fn loaded(source: &Source) -> Result<serve::Loaded, String> {
    let config::Outcome { plan, report } = config::read_with_process_env(source);
    let Some(plan) = plan else { return Err(report.to_string()) };
    let words = check::in_words(&plan);
    for warning in report.to_string().lines() {
        tracing::warn!(target: "tollgate", "{warning}");
    }
    Ok(serve::Loaded { plan, words })
}

/// Reads a file and tells on standard error what is wrong with it. Without a plan there is
/// the code to exit with: 2.
///
/// # Errors
/// Something stands in the way; with `strict`, a warning does too.
pub fn load(path: &Path, strict: bool) -> Result<Plan, ExitCode> {
    match Source::read(path) {
        Ok(source) => plan(&source, strict),
        Err(error) => Err(unreadable(&error)),
    }
}

fn plan(source: &Source, strict: bool) -> Result<Plan, ExitCode> {
    let config::Outcome { plan, report } = config::read_with_process_env(source);
    eprint!("{}", report.render(io::stderr().is_terminal()));
    let (errors, warnings) = (report.errors(), report.warnings());
    if errors + warnings > 0 {
        eprintln!("{}: {}, {}", source.name, count(errors, "error"), count(warnings, "warning"));
    }
    let plan = plan.ok_or_else(|| ExitCode::from(WRONG))?;
    if strict && warnings > 0 {
        eprintln!("`--strict` takes warnings for errors");
        return Err(ExitCode::from(WRONG));
    }
    Ok(plan)
}

fn unreadable(error: &SourceError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(WRONG)
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The exit code of a configuration that is wrong.
const WRONG: u8 = 2;
