//! docs/cli.md, generated from the help of the program.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use tollgate_cli::Cli;

use crate::support::{expect_beside, root};

#[test]
fn command_page_is_current() {
    let file = root().join("docs/cli.md");
    // Otherwise the help would include the values of this process's environment variables.
    let mut program =
        Cli::command().mut_subcommands(|it| it.mut_args(|arg| arg.hide_env_values(true)));
    let mut page = format!("{CLI_PAGE}```text\n{}```\n", trimmed(&program.render_long_help()));
    program.build();
    for command in program.get_subcommands_mut().filter(|it| it.get_name() != "help") {
        let name = command.get_name().to_owned();
        let help = trimmed(&command.render_long_help());
        let _ = write!(page, "\n## tollgate {name}\n\n```text\n{help}```\n");
    }
    expect_beside(&file, &page).unwrap();
}

const CLI_PAGE: &str = "\
<!-- Generated from the help of the program: `TOLLGATE_BLESS=1 cargo test -p tollgate-cli --test commands` -->
# The command line of the gateway

This page contains the help text of each command, for readers without the program at hand. `tollgate COMMAND --help` prints the same
text. A first file and a first run are in [the gateway](gateway.md).

| exit code | meaning |
|---|---|
| 0 | success |
| 2 | a wrong command line, or a configuration or log that is not valid |
| 1 | any other failure |

";

/// Strips trailing spaces from each line.
fn trimmed(help: &impl std::fmt::Display) -> String {
    help.to_string().lines().fold(String::new(), |out, line| out + line.trim_end() + "\n")
}
