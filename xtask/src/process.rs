//! Runs other programs: prints the command, and turns an unsuccessful exit into a [`Failure`].

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The reason why a task failed. The message contains the cause, the place and the cure.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something in the tree is wrong. Exit code 1.
    Broken(String),
    /// The machine lacks something, for example a program. Exit code 2.
    Unready(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Broken(message) | Self::Unready(message)) = self;
        f.write_str(message)
    }
}

/// A port in use or a missing program.
#[cfg(unix)]
impl From<tollgate_test_servers::Failure> for Failure {
    fn from(failure: tollgate_test_servers::Failure) -> Self {
        Self::Unready(failure.to_string())
    }
}

/// A cargo command with this task's toolchain, at the workspace's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// The workspace's root, which is the parent of this package's folder.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable when it runs the program. If the program is started by hand, use the
    // path from the build.
    let mut path: PathBuf = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    path.pop();
    path
}

/// Reads a file whose path is relative to the workspace's root.
pub(crate) fn read_file(path: impl AsRef<Path>) -> Result<String, Failure> {
    let path = path.as_ref();
    fs::read_to_string(root().join(path))
        .map_err(|error| Failure::Broken(format!("cannot read {}: {error}", path.display())))
}

/// Copies the files in Git's index to a folder.
pub(crate) fn export(to: &Path) -> Result<(), Failure> {
    let prefix = format!("--prefix={}/", to.display());
    let mut git = Command::new("git");
    run(git.current_dir(root()).args(["checkout-index", "--all", "--force", &prefix]))
}

/// Prints the command, runs it in this terminal, and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = status(command)?;
    if status.success() { Ok(()) } else { Err(ended_badly(command, status)) }
}

/// Prints the command, runs it in this terminal, and returns its exit status.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    println!("$ {}", describe(command));
    // Flush, so this line appears before the child's output. If the terminal is gone, the child
    // will fail too.
    let _ = io::stdout().flush();
    command.status().map_err(|error| cannot_start(command, &error))
}

/// Runs a command without printing it, and returns its output.
pub(crate) fn read(command: &mut Command) -> Result<String, Failure> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| cannot_start(command, &error))?;
    if !output.status.success() {
        return Err(ended_badly(command, output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as a user would type it: the program without its folder.
fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn cannot_start(command: &Command, error: &io::Error) -> Failure {
    Failure::Unready(format!("could not run `{}`: {error}", describe(command)))
}

fn ended_badly(command: &Command, status: ExitStatus) -> Failure {
    let command = describe(command);
    Failure::Broken(format!("`{command}` ended with {status}; see its output above"))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn commands_fail_with_their_reason() {
        let failure = run(&mut Command::new("no-such-program-of-ours")).unwrap_err();
        assert!(matches!(&failure, Failure::Unready(it) if it.contains("no-such-program-of-ours")));
        let failure = run(Command::new("/bin/sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(failure.to_string().starts_with("`sh -c exit 3` ended with exit status: 3"));
    }
}
