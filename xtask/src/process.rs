//! Runs other programs: prints the command, and turns an unsuccessful exit into a [`Failure`].

use std::env;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

/// The reason why a task failed. The message contains the cause, the place and the cure.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something in the tree is wrong. Exit code 1.
    Broken(String),
    /// The machine lacks something that its owner can supply. Exit code 2.
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
impl From<tollgate_replicas::Failure> for Failure {
    fn from(failure: tollgate_replicas::Failure) -> Self {
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

/// Prints the command, runs it with our terminal, and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = status(command)?;
    expect_success(command, status)
}

/// Prints the command, runs it with our terminal, and returns its exit status.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    let shown = announce(command);
    command.status().map_err(|error| cannot_start(&shown, &error))
}

/// Like [`status`], but also passes every line on stdout to `watch`.
pub(crate) fn status_watching(
    command: &mut Command,
    mut watch: impl FnMut(&str),
) -> Result<ExitStatus, Failure> {
    let shown = announce(command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| cannot_start(&shown, &error))?;
    if let Some(output) = child.stdout.take() {
        let mut lines = BufReader::new(output);
        let mut line = Vec::new();
        // Read bytes, because a test may print invalid UTF-8. If reading or printing fails, the
        // loop stops, but the exit status below still counts.
        while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if io::stdout().write_all(&line).is_err() {
                break;
            }
            watch(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }
    child.wait().map_err(|error| cannot_start(&shown, &error))
}

/// Turns an unsuccessful exit status into a failure.
pub(crate) fn expect_success(command: &Command, status: ExitStatus) -> Result<(), Failure> {
    if status.success() { Ok(()) } else { Err(ended_badly(&describe(command), status)) }
}

/// Runs a command without printing it, and returns its output.
pub(crate) fn read(command: &mut Command) -> Result<String, Failure> {
    let shown = describe(command);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| cannot_start(&shown, &error))?;
    if !output.status.success() {
        return Err(ended_badly(&shown, output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn announce(command: &Command) -> String {
    let shown = describe(command);
    println!("$ {shown}");
    // Flush, so this line appears before the child's output. If the terminal is gone, the child
    // will fail too.
    let _ = io::stdout().flush();
    shown
}

/// The command as a user would type it: the program without its folder.
fn describe(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let mut shown =
        program.file_name().unwrap_or_else(|| command.get_program()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        shown.push(' ');
        shown.push_str(&arg.to_string_lossy());
    }
    shown
}

fn cannot_start(shown: &str, error: &io::Error) -> Failure {
    Failure::Unready(format!("could not run `{shown}`: {error}"))
}

fn ended_badly(shown: &str, status: ExitStatus) -> Failure {
    Failure::Broken(format!("`{shown}` ended with {status}; its own output above says why"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_commands_omit_the_folder() {
        let mut command = Command::new("/opt/rust/bin/cargo");
        command.args(["test", "--workspace"]);
        assert_eq!(describe(&command), "cargo test --workspace");
    }

    #[test]
    fn missing_program_is_named() {
        let failure = run(&mut Command::new("no-such-program-of-ours")).unwrap_err();
        assert!(matches!(failure, Failure::Unready(_)));
        assert!(failure.to_string().contains("no-such-program-of-ours"));
    }

    #[cfg(unix)]
    #[test]
    fn lines_are_watched_and_failures_reported() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two; exit 3"]);
        let status = status_watching(&mut command, |line| seen.push(line.trim().to_owned()));
        assert_eq!(seen, ["one", "two"]);
        let failure = expect_success(&command, status.unwrap()).unwrap_err();
        assert!(failure.to_string().contains("exit status: 3"));
    }
}
