//! The gateway's documentation: the examples have no problems, and the tables are true.

use std::collections::HashSet;
use std::fs;

use tollgate_config::spec::{Presence, Section, Shape};
use tollgate_config::tables;

use crate::support::{plan, read_text, root};

/// All YAML blocks in the documentation. Each is a complete file.
pub(crate) fn examples() -> Vec<(String, String)> {
    let mut examples = Vec::new();
    let mut pages = vec![root().join("README.md"), root().join("crates/tollgate-cli/README.md")];
    for folder in ["docs", "docs/how-to", "docs/ko"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            pages.push(entry.unwrap().path());
        }
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
fn examples_have_no_problems() {
    let mut examples = examples();
    let folders = ["examples/gateway", "examples/fronts"].map(|it| root().join(it));
    for entry in folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()) {
        let file = entry.unwrap().path();
        // Other proxies use YAML too.
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
fn path_table_matches_reader() {
    let page = "docs/configuration.md";
    let text = fs::read_to_string(root().join(page)).unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with("| pattern |"));
    let mut rows = table.take_while(|line| line.starts_with('|')).map(cells);
    let paths = rows.next().unwrap_or_else(|| panic!("{page} has no table of paths"));
    let mut checked = 0;
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
            checked += 1;
        }
    }
    assert!(checked >= 30, "{checked}");
}

/// A row's cells, without backticks.
fn cells(row: &str) -> Vec<String> {
    row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn defaults_fit_their_keys() {
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
                    // `meaning/file.rs` checks the values.
                    Shape::Duration { .. } => value.ends_with(['s', 'm', 'h']),
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

/// The sections of docs/errors.md about the file have examples with keys that exist.
#[test]
fn error_examples_have_known_keys() {
    fn visit(section: &'static Section, known: &mut HashSet<(bool, &'static str)>) {
        if known.insert((true, section.name)) {
            known.extend(section.fields().map(|field| (false, field.key)));
            section.fields().for_each(|field| visit_shape(&field.shape, known));
            section.others().into_iter().for_each(|others| visit_shape(&others.shape, known));
        }
    }
    fn visit_shape(shape: &Shape, known: &mut HashSet<(bool, &'static str)>) {
        match shape {
            Shape::Section(section) => visit(section(), known),
            Shape::List(of) => visit_shape(of, known),
            Shape::Either(shapes) => shapes.iter().for_each(|shape| visit_shape(shape, known)),
            _ => {}
        }
    }
    let mut known = HashSet::new();
    visit(tables::root(), &mut known);
    // Names that a file chooses, keys of other files, and wrong keys that a section explains.
    let own = ["gold", "team", "rate_limit", "unit", "requests_per_unit", "limits"];
    let mut unknown = Vec::new();
    for it in tollgate_config::code::explained().filter(|it| it.code.number() < 600) {
        let example = it.text.lines().skip_while(|line| !line.starts_with("* Example: "));
        for snippet in example.collect::<String>().split('`').skip(1).step_by(2) {
            let words = snippet.split(['{', ',', '[', ' ']).filter_map(|it| it.strip_suffix(':'));
            let keys =
                words.filter(|it| it.chars().all(|it| it.is_ascii_alphabetic() || it == '_'));
            unknown.extend(
                keys.filter(|it| !own.contains(it) && !known.contains(&(false, *it)))
                    .map(|key| (it.code, key.to_owned())),
            );
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
}
