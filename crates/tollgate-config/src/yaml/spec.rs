//! Tables of keys, from which the reader, the JSON Schema and the reference are generated.

use std::fmt;
use std::time::Duration;

#[derive(Debug)]
pub struct Section {
    pub name: &'static str,
    pub doc: &'static str,
    pub properties: &'static [Property],
    /// Mutually exclusive keys.
    pub either: &'static [&'static [&'static str]],
}

#[derive(Debug)]
pub enum Property {
    Key(Field),
    Group(fn() -> &'static Section),
    Others(Others),
}

#[derive(Debug)]
pub struct Others {
    pub key: Format,
    pub shape: Shape,
    pub doc: &'static str,
}

#[derive(Debug)]
pub struct Field {
    pub key: &'static str,
    pub shape: Shape,
    pub presence: Presence,
    pub doc: &'static str,
    /// Whether output must not show the value.
    pub secret: bool,
    pub needs: Option<Needs>,
}

/// A key that another key needs to have an effect.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub key: &'static str,
    /// The values with which the other key has an effect, or empty for all values.
    pub values: &'static [&'static str],
    pub why: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Required,
    Optional,
    /// If the key is missing, the reader uses this value.
    Default(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Flag,
    Whole { min: u64, max: u64 },
    Duration { bounds: Option<[Duration; 2]> },
    Word(&'static [(&'static str, &'static str)]),
    Text(Format),
    List(&'static Self),
    Section(fn() -> &'static Section),
    Either(&'static [Self]),
}

#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The format's name in messages, such as "an address with a port, such as 0.0.0.0:8080".
    pub what: &'static str,
    /// A regular expression for the JSON Schema, which may accept more than `check`.
    pub pattern: Option<&'static str>,
    /// Checks a text. The error message is the cure.
    pub check: fn(&str) -> Result<(), String>,
}

/// Formats a sentence for the documentation.
impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<_> =
            self.values.iter().map(|value| format!("{}: {value}", self.key)).collect();
        match &values[..] {
            [] => write!(f, "Only with `{}`.", self.key),
            values => write!(
                f,
                "Only with {}.",
                one_of(&values.iter().map(String::as_str).collect::<Vec<_>>())
            ),
        }
    }
}

impl Section {
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.properties.iter().flat_map(|property| -> Box<dyn Iterator<Item = &'static Field>> {
            match property {
                Property::Key(field) => Box::new(std::iter::once(field)),
                Property::Group(group) => Box::new(group().fields()),
                Property::Others(_) => Box::new(std::iter::empty()),
            }
        })
    }

    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.key == key)
    }

    /// Mutually exclusive keys, including those in groups.
    pub fn exclusive(&self) -> impl Iterator<Item = &'static [&'static str]> {
        let groups = self.properties.iter().filter_map(|property| match property {
            Property::Group(group) => Some(group().either),
            _ => None,
        });
        std::iter::once(self.either).chain(groups).flatten().copied()
    }

    pub fn others(&self) -> Option<&'static Others> {
        self.properties.iter().find_map(|property| match property {
            Property::Others(others) => Some(others),
            _ => None,
        })
    }
}

impl Shape {
    pub fn has_word(&self, text: &str) -> bool {
        matches!(self, Self::Word(words) if words.iter().any(|(word, _)| *word == text))
    }

    pub fn what(&self) -> String {
        match self {
            Self::Flag => "`true` or `false`".to_owned(),
            Self::Whole { min: 0, max: u64::MAX } => "a whole number".to_owned(),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Self::Duration { bounds: None } => "a duration such as 500ms, 60s, 5m or 1h".to_owned(),
            Self::Duration { bounds: Some(bounds) } => {
                let [min, max] = bounds.map(humantime::format_duration);
                format!("a duration from {min} to {max}")
            }
            Self::Word(words) => one_of(&words.iter().map(|(word, _)| *word).collect::<Vec<_>>()),
            Self::Text(format) => format.what.to_owned(),
            Self::List(of) => format!("a list, each {}", of.what()),
            Self::Section(section) => match section().fields().next() {
                Some(_) => format!("a section ({})", keys(section())),
                None => "a section".to_owned(),
            },
            Self::Either(shapes) => {
                let shapes: Vec<_> = shapes.iter().map(Self::what).collect();
                shapes.join("; or ")
            }
        }
    }
}

fn keys(section: &Section) -> String {
    let keys: Vec<_> = section.fields().take(3).map(|field| field.key).collect();
    let more = if section.fields().nth(3).is_some() { ", …" } else { "" };
    format!("{}{more}", keys.join(", "))
}

/// Formats "`a`, `b` or `c`".
pub(crate) fn one_of(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match &words[..] {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// The word that is probably meant, ignoring case and separators.
pub(crate) fn nearest<'w>(words: impl Iterator<Item = &'w str>, given: &str) -> Option<&'w str> {
    // No known word is similar to such a long text, and comparing takes time.
    if given.len() > 64 {
        return None;
    }
    let plain = |word: &str| word.replace(['_', '-', ' '], "").to_ascii_lowercase();
    let given = plain(given);
    let scored = words.map(|word| (strsim::jaro_winkler(&plain(word), &given), word));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= 0.84).then_some(best.1)
}
