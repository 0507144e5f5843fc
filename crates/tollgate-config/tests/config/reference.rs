//! docs/configuration-reference.md, generated from the key declarations.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use tollgate_config::spec::{Field, Presence, Property, Section, Shape};
use tollgate_config::tables;

use crate::support::{expect_beside, root};

const PAGE: &str = "\
<!-- Generated from crates/tollgate-config/src/file/tables: `TOLLGATE_BLESS=1 cargo test -p tollgate-config --test config` -->
# Configuration reference

This page lists every key of the gateway's file with its default. To write a first file, start with
[the guide](configuration.md), which also explains durations and variables.

A key marked *required* is required if its section is present. A default `–` means that the feature is off, or that the meaning
describes the default. Keys of `global`, `client`, `apis` and `tiers` that are the same everywhere are in
[Shared keys: window](#shared-keys-window) and [Shared keys: policy](#shared-keys-policy).
";

#[test]
fn reference_is_current() {
    let mut page = Page { text: PAGE.to_owned(), ..Page::default() };
    page.section(tables::root());
    page.section(tables::tenants_file());
    page.section(tables::test_file());
    expect_beside(&root().join("docs/configuration-reference.md"), &page.text).unwrap();
}

#[derive(Default)]
struct Page {
    text: String,
    sections: HashSet<&'static str>,
    /// The section and key that already describe a set of keywords.
    keywords: HashMap<&'static [(&'static str, &'static str)], (&'static str, &'static str)>,
}

impl Page {
    /// Writes a section and the sections it mentions.
    fn section(&mut self, section: &'static Section) {
        self.write(section, &title(section.name));
    }

    fn write(&mut self, section: &'static Section, title: &str) {
        if !self.sections.insert(section.name) {
            return;
        }
        let _ = write!(self.text, "\n## {title}\n\n{}", section.doc);
        let groups: Vec<_> = section.properties.iter().filter_map(as_group).collect();
        if !groups.is_empty() {
            let links: Vec<_> = groups.iter().map(|group| shared_link(group)).collect();
            let _ = write!(self.text, " It also has the keys in {}.", links.join(" and "));
        }
        self.text.push_str("\n\n| key | value | default | meaning |\n|---|---|---|---|\n");
        for property in section.properties {
            match property {
                Property::Key(field) => self.row(section.name, field),
                Property::Others(others) => {
                    let (value, doc) = (value(&others.shape), cell(others.doc));
                    let key = noun(others.key.what);
                    let _ = writeln!(self.text, "| *{key}* | {value} | – | {doc} |");
                }
                Property::Group(_) => {}
            }
        }
        if !section.either.is_empty() {
            let sets: Vec<_> = section.either.iter().map(|keys| exclusive(keys)).collect();
            let _ = write!(self.text, "\nMutually exclusive: {}.\n", sets.join("; "));
        }
        for property in section.properties {
            match property {
                Property::Key(field) => self.sections_in(&field.shape),
                Property::Others(others) => self.sections_in(&others.shape),
                Property::Group(_) => {}
            }
        }
        for group in groups {
            self.write(group, &format!("Shared keys: {}", group.name));
            group.fields().for_each(|field| self.sections_in(&field.shape));
        }
    }

    fn row(&mut self, section: &'static str, field: &'static Field) {
        let default = match field.presence {
            Presence::Required => "*required*".to_owned(),
            Presence::Optional => "–".to_owned(),
            Presence::Default(value) => format!("`{value}`"),
        };
        let (value, meaning) = (value(&field.shape), self.meaning(section, field));
        let _ = writeln!(self.text, "| `{}` | {value} | {default} | {meaning} |", field.key);
    }

    fn meaning(&mut self, section: &'static str, field: &'static Field) -> String {
        let mut meaning = cell(field.doc);
        if let Some(needs) = field.needs {
            let _ = write!(meaning, " {needs}");
        }
        let shapes = match &field.shape {
            Shape::Either(shapes) => shapes,
            shape => std::slice::from_ref(shape),
        };
        for shape in shapes {
            let Shape::Word(words) = shape else { continue };
            let here = (section, field.key);
            let (other, key) = *self.keywords.entry(*words).or_insert(here);
            if (other, key) != here {
                let _ = write!(meaning, " Keywords: see [`{key}`](#{}).", anchor(other));
                continue;
            }
            for (word, doc) in *words {
                let _ = write!(meaning, " `{word}`: {}", cell(doc));
            }
        }
        if field.secret {
            meaning.push_str(" No output shows it.");
        }
        meaning
    }

    fn sections_in(&mut self, shape: &'static Shape) {
        match shape {
            Shape::Section(section) => self.section(section()),
            Shape::List(of) => self.sections_in(of),
            Shape::Either(shapes) => shapes.iter().for_each(|it| self.sections_in(it)),
            _ => {}
        }
    }
}

fn as_group(property: &Property) -> Option<&'static Section> {
    match property {
        Property::Group(group) => Some(group()),
        _ => None,
    }
}

fn value(shape: &Shape) -> String {
    match shape {
        Shape::Flag => "`true`, `false`".to_owned(),
        Shape::Whole { min: 0, max: u64::MAX } => "integer".to_owned(),
        Shape::Whole { min, max } => format!("integer, {min} to {max}"),
        Shape::Duration { bounds: None } => "duration".to_owned(),
        Shape::Duration { bounds: Some(_) } => noun(&shape.what()),
        Shape::Word([(word, _)]) => format!("`{word}`"),
        Shape::Word(_) => "keyword".to_owned(),
        Shape::Text(format) => noun(format.what),
        Shape::List(of @ Shape::Section(_)) => format!("list of {}", value(of)),
        Shape::List(of) => format!("list: {}", value(of)),
        Shape::Section(section) => format!("section {}", link(section().name)),
        Shape::Either(shapes) => either(shapes),
    }
}

fn either(shapes: &[Shape]) -> String {
    let join = |shapes: &[Shape]| shapes.iter().map(value).collect::<Vec<_>>().join("; or ");
    match shapes {
        [items @ .., Shape::List(of)] if value(of) == join(items) => {
            format!("{}; or a list", join(items))
        }
        shapes => join(shapes),
    }
}

/// A description without its article.
fn noun(what: &str) -> String {
    let articles = ["a ", "an ", "the "];
    let noun = articles.iter().find_map(|article| what.strip_prefix(article)).unwrap_or(what);
    cell(noun)
}

fn exclusive(keys: &[&str]) -> String {
    let keys: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
    let (last, rest) = keys.split_last().unwrap();
    format!("{} and {last}", rest.join(", "))
}

fn title(name: &str) -> String {
    match name {
        "The file" => name.to_owned(),
        name => format!("`{name}`"),
    }
}

fn link(name: &str) -> String {
    format!("[`{name}`](#{})", anchor(name))
}

fn shared_link(group: &Section) -> String {
    let title = format!("Shared keys: {}", group.name);
    format!("[{title}](#{})", anchor(&title))
}

/// The anchor that GitHub and similar sites generate for a heading.
fn anchor(title: &str) -> String {
    let title = title.to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Escapes bars, which would otherwise close the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
