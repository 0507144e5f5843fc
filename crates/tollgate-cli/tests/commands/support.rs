//! Helpers for the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// The workspace root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Compares text with a file, or overwrites the file if `TOLLGATE_BLESS` is set.
pub(crate) fn expect_beside(file: &Path, found: &str) -> Result<(), String> {
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(file, found).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    if found == expected {
        return Ok(());
    }
    Err(format!("{}: expected\n{expected}\nfound\n{found}", file.display()))
}

/// A folder in which the program runs.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// A folder with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    /// Runs a program with `tollgate` in its `PATH`.
    pub(crate) fn run(
        &self,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, String)],
    ) -> Output {
        let tollgate = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
        let path = format!("{}:{}", tollgate.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).env("PATH", path);
        for variable in ["RUST_LOG", "TARGET", "TOLLGATE_LOG_FORMAT"] {
            command.env_remove(variable);
        }
        command.envs(variables.iter().map(|(name, value)| (name, value))).output().unwrap()
    }

    /// Runs a command line, for at most a minute: a gateway may start by mistake.
    pub(crate) fn bash(&self, command: &str) -> Output {
        const BEFORE: &str = r#"set -o pipefail
        edit() {
            local text; text=$(<"$1")
            [[ $text == *"$2"* ]] || { echo "$2 is not in $1" >&2; return 9; }
            printf '%s\n' "${text/"$2"/"$3"}" >"$1"
        }"#;
        let root = root().display().to_string();
        let script = format!("{BEFORE}\n{command}");
        let arguments = ["--kill-after=10", "60", "bash", "-c", &script];
        self.run("timeout", &arguments, &[("ROOT", root)])
    }

    /// Runs `tollgate` with these arguments.
    pub(crate) fn tollgate(&self, arguments: &[&str]) -> Output {
        self.run("tollgate", arguments, &[])
    }

    /// Runs a command that succeeds, and returns its output.
    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        let output = self.tollgate(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The report of `tollgate replay limits.yaml access.log`, with further arguments.
    pub(crate) fn replay(&self, arguments: &[&str]) -> Value {
        let all = ["replay", "limits.yaml", "access.log", "--format", "json"];
        serde_json::from_str(&self.output(&[&all, arguments].concat())).unwrap()
    }
}
