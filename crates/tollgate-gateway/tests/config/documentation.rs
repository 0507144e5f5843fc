//! The documentation is true: its table is that of the reader, and its examples run.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;

use clap::CommandFactory as _;
use tollgate_gateway::cli::Cli;
use tollgate_gateway::config::spec::{Field, Presence, Section, Shape};
use tollgate_gateway::config::tables;

use crate::support::{expect_beside, plan, read_text, root};

const BEGIN: &str = "<!-- The table is made from the reader's own: `TOLLGATE_BLESS=1 cargo test -p tollgate-gateway --test config` -->\n";
const END: &str = "<!-- end of the table -->\n";

#[test]
fn the_table_of_keys_is_the_one_of_the_reader() {
    let file = root().join("docs/configuration.md");
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let fresh = format!("{before}{BEGIN}\n{}\n{END}{after}", table());
    expect_beside(&file, &fresh).unwrap();
}

/// All keys in one table. Sections are in the order of their first mention.
fn table() -> String {
    let mut out = "| key | holds | default | meaning |\n|---|---|---|---|\n".to_owned();
    let mut seen = HashSet::new();
    write_section(&mut out, tables::root(), &mut seen);
    out
}

fn write_section(out: &mut String, section: &'static Section, seen: &mut HashSet<&'static str>) {
    if !seen.insert(section.name) {
        return;
    }
    let prefix = match section.name {
        "The file" => String::new(),
        name => format!("{name}."),
    };
    let _ = writeln!(out, "| **{}** | | | {} |", section.name, cell(section.doc));
    for field in section.fields() {
        let default = match field.presence {
            Presence::Required => "*required*".to_owned(),
            Presence::Optional => "–".to_owned(),
            Presence::Default(value) => format!("`{value}`"),
        };
        let meaning = meaning(field);
        let holds = holds(&field.shape);
        let _ = writeln!(out, "| `{prefix}{}` | {holds} | {default} | {meaning} |", field.key);
    }
    if let Some(others) = section.others() {
        let _ = writeln!(
            out,
            "| `{prefix}…` | {} | – | {} The key is {}. |",
            holds(&others.shape),
            cell(others.doc),
            cell(others.key.what)
        );
    }
    for shape in section.fields().map(|it| &it.shape).chain(section.others().map(|it| &it.shape)) {
        write_sections_in(out, shape, seen);
    }
}

fn write_sections_in(out: &mut String, shape: &Shape, seen: &mut HashSet<&'static str>) {
    match shape {
        Shape::Section(section) => write_section(out, section(), seen),
        Shape::List(of) => write_sections_in(out, of, seen),
        Shape::Either(shapes) => shapes.iter().for_each(|it| write_sections_in(out, it, seen)),
        _ => {}
    }
}

fn meaning(field: &Field) -> String {
    let mut meaning = cell(field.doc);
    let shapes = match &field.shape {
        Shape::Either(shapes) => shapes,
        shape => std::slice::from_ref(shape),
    };
    for shape in shapes {
        let Shape::Word(words) = shape else { continue };
        for (word, doc) in *words {
            let _ = write!(meaning, " `{word}`: {}", cell(doc));
        }
    }
    if field.secret {
        meaning.push_str(" Never shown.");
    }
    meaning
}

fn holds(shape: &Shape) -> String {
    match shape {
        Shape::Word(_) => "a word".to_owned(),
        Shape::Section(section) => format!("a section `{}`", section().name),
        Shape::List(of @ Shape::Either(_)) => format!("a list, each ({})", holds(of)),
        Shape::List(of) => format!("a list, each {}", holds(of)),
        Shape::Either(shapes) => {
            let shapes: Vec<_> = shapes.iter().map(holds).collect();
            shapes.join("; or ")
        }
        other => cell(&other.what()),
    }
}

/// A bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_page_of_commands_is_the_help_of_the_program() {
    let file = root().join("docs/cli.md");
    // The value of a variable of this process would be in the help.
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
<!-- Generated from the help of the program: `TOLLGATE_BLESS=1 cargo test -p tollgate-gateway --test config` -->
# The command line of the gateway

`tollgate COMMAND --help` prints the same text. The exit code is 0 for success, 2 for a configuration that is not valid, and 1
for any other failure.

";

/// Without spaces at the end of lines.
fn trimmed(help: &impl std::fmt::Display) -> String {
    help.to_string().lines().fold(String::new(), |out, line| out + line.trim_end() + "\n")
}

/// The YAML blocks of all documentation; each is a whole file.
pub(crate) fn examples() -> Vec<(String, String)> {
    let mut examples = Vec::new();
    let mut pages =
        vec![root().join("README.md"), root().join("crates/tollgate-gateway/README.md")];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        pages.push(entry.unwrap().path());
    }
    for page in pages.iter().filter(|page| page.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(page).unwrap();
        for (index, block) in text.split("```yaml\n").skip(1).enumerate() {
            let (block, _) = block.split_once("```").unwrap();
            examples.push((format!("{}, example {}", page.display(), index + 1), block.to_owned()));
        }
    }
    examples
}

#[test]
fn every_example_runs_and_draws_no_warning() {
    let mut examples = examples();
    let folders = ["examples/gateway", "examples/fronts"].map(|it| root().join(it));
    for entry in folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()) {
        let file = entry.unwrap().path();
        // Files of other proxies are YAML too.
        let others = [
            "envoy.yaml",
            "envoy-ratelimit.yaml",
            "envoy-tokens.yaml",
            "ratelimit.yaml",
            "traefik.yaml",
        ];
        let is_ours = !others.iter().any(|other| file.ends_with(other));
        if is_ours && file.extension().is_some_and(|it| it == "yaml") {
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.lines().count() <= 100, "{} is too long", file.display());
            examples.push((file.display().to_string(), text));
        }
    }
    assert!(examples.len() >= 15, "{}", examples.len());
    for (name, text) in examples {
        let report = read_text(&name, &text).report;
        assert!(report.problems().is_empty(), "{report}");
    }
}

#[test]
fn the_tables_of_paths_say_what_matches() {
    let mut said = 0;
    for page in ["docs/configuration.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let table = text.lines().skip_while(|line| !line.starts_with("| written |"));
        let mut rows = table.take_while(|line| line.starts_with('|')).map(cells);
        let paths = rows.next().unwrap_or_else(|| panic!("{page} has no table of paths"));
        for row in rows.skip(1) {
            let name = format!("{page}: {}", row[0]);
            let file = format!(
                "rateLimiter:\n  target: http://localhost:3000\n  apis:\n  \
                 - {{identifier: a, limit: 1, windowSeconds: 1, {}}}\n",
                row[0]
            );
            let plan = plan(&file);
            let api = &plan.routes[0].limits.apis[0];
            for (path, cell) in paths.iter().zip(&row).skip(1) {
                let expected = if api.path.matches(path) { "yes" } else { "no" };
                assert_eq!(cell, expected, "{name}, {path}");
                said += 1;
            }
        }
    }
    assert!(said >= 30, "{said}");
}

/// The cells of a row, without the marks of code.
fn cells(row: &str) -> Vec<String> {
    row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn every_default_is_what_its_key_may_hold() {
    fn visit(section: &'static Section, seen: &mut HashSet<&'static str>) {
        if !seen.insert(section.name) {
            return;
        }
        for field in section.fields() {
            if let Presence::Default(value) = field.presence {
                let fits = |shape: &Shape| match shape {
                    Shape::Flag => value.parse::<bool>().is_ok(),
                    Shape::Whole { min, max } => {
                        value.parse().is_ok_and(|number| (*min..=*max).contains(&number))
                    }
                    Shape::Word(words) => words.iter().any(|(word, _)| *word == value),
                    Shape::Text(format) => (format.check)(value).is_ok(),
                    // `meaning/file.rs` reads them all.
                    Shape::Span => value.ends_with(['s', 'm', 'h']),
                    Shape::List(_) | Shape::Section(_) | Shape::Either(_) => false,
                };
                let fits = match field.shape {
                    Shape::Either(shapes) => shapes.iter().any(fits),
                    shape => fits(&shape),
                };
                assert!(fits, "{}.{}: {value}", section.name, field.key);
            }
            visit_shape(&field.shape, seen);
        }
        section.others().into_iter().for_each(|others| visit_shape(&others.shape, seen));
    }
    fn visit_shape(shape: &Shape, seen: &mut HashSet<&'static str>) {
        match shape {
            Shape::Section(section) => visit(section(), seen),
            Shape::List(of) => visit_shape(of, seen),
            Shape::Either(shapes) => shapes.iter().for_each(|shape| visit_shape(shape, seen)),
            _ => {}
        }
    }
    let mut seen = HashSet::new();
    visit(tables::root(), &mut seen);
    assert!(seen.len() > 15, "{seen:?}");
}
