//! What can be said on the command line.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// A rate limiter in front of any service: one YAML file, exact limits, true answers
///
/// `tollgate init > limits.yaml` writes a file to start from, `tollgate check limits.yaml`
/// says in words what it would do, and `tollgate serve --config limits.yaml` does it.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Forwards allowed requests to the target and answers the others
    Serve {
        /// The file with the limits; `-` reads it from stdin
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
    /// Says what is wrong with a file, or in words what it would do
    Check {
        /// The file with the limits; `-` reads it from stdin
        #[arg(value_name = "FILE")]
        config: PathBuf,
        /// Takes warnings for errors
        #[arg(long)]
        strict: bool,
    },
    /// Prints the JSON Schema of the file, for editors
    Schema,
    /// Prints a commented file to start from
    Init,
    /// Prints a script that completes the command line in a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

impl Cli {
    /// Does what was asked. The exit code is 0, or 2 when a file is wrong.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Completions { shell } => {
                let mut command = Self::command();
                clap_complete::generate(shell, &mut command, "tollgate", &mut io::stdout());
                ExitCode::SUCCESS
            }
            other => {
                eprintln!("error: {other:?} is being built");
                ExitCode::from(2)
            }
        }
    }
}
