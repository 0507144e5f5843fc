//! What a configuration file may say, as data: the reader, the JSON Schema and the tables
//! of the documentation are all made from it.

/// A group of keys.
#[derive(Debug)]
pub struct Section {
    /// What it is called in the documentation.
    pub name: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys, in the order of the documentation.
    pub fields: &'static [Field],
    /// Keys that say the same in two ways, of which a file may use one.
    pub either: &'static [&'static [&'static str]],
    /// Keys that are not in the list: what they are, and what they hold.
    pub others: Option<&'static Others>,
}

/// Keys whose names are the file's own.
#[derive(Debug)]
pub struct Others {
    /// What a key has to look like.
    pub key: Format,
    /// What it holds.
    pub shape: Shape,
    /// What it means.
    pub doc: &'static str,
}

/// A key and what it holds.
#[derive(Debug)]
pub struct Field {
    /// The key.
    pub key: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// Whether it must be there.
    pub presence: Presence,
    /// What it means.
    pub doc: &'static str,
    /// Whether its value is never shown.
    pub secret: bool,
}

/// Whether a key must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It must.
    Required,
    /// Without it, what it is about does not exist.
    Optional,
    /// Without it, this is meant: read as if it stood in the file.
    Default(&'static str),
}

/// What a value can be.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Whole {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A span of time as `500ms`.
    Span,
    /// One of these words.
    Word(&'static [(&'static str, &'static str)]),
    /// A text that has to be of some form.
    Text(Format),
    /// A list.
    List(&'static Self),
    /// A group of keys.
    Section(&'static Section),
    /// One of these, told apart by being a value, a list or a section.
    Either(&'static [Self]),
}

/// What a text has to look like.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What it is, for messages: "an address with a port, as 0.0.0.0:8080".
    pub what: &'static str,
    /// As much of that as a regular expression says, for the JSON Schema.
    pub pattern: Option<&'static str>,
    /// What is wrong with a text, and the cure where that is not plain.
    pub check: fn(&str) -> Result<(), String>,
}

impl Section {
    /// The field of a key.
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key)
    }
}

impl Shape {
    /// What it is, for messages.
    pub fn what(&self) -> String {
        match self {
            Self::Flag => "`true` or `false`".to_owned(),
            Self::Whole { min: 0, max: u64::MAX } => "a whole number".to_owned(),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Self::Span => "a span of time, as 500ms, 60s, 5m or 1h".to_owned(),
            Self::Word(words) => {
                let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
                one_of(&words)
            }
            Self::Text(format) => format.what.to_owned(),
            Self::List(of) => format!("a list, each {}", of.what()),
            Self::Section(section) => format!("a section ({})", keys(section)),
            Self::Either(shapes) => {
                let shapes: Vec<_> = shapes.iter().map(Self::what).collect();
                shapes.join("; or ")
            }
        }
    }
}

fn keys(section: &Section) -> String {
    let keys: Vec<_> = section.fields.iter().take(3).map(|field| field.key).collect();
    let more = if section.fields.len() > 3 { ", …" } else { "" };
    format!("{}{more}", keys.join(", "))
}

/// "`a`, `b` or `c`".
pub(super) fn one_of(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

pub(super) const fn required(key: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field { key, shape, presence: Presence::Required, doc, secret: false }
}

pub(super) const fn optional(key: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field { key, shape, presence: Presence::Optional, doc, secret: false }
}

pub(super) const fn default(
    key: &'static str,
    shape: Shape,
    value: &'static str,
    doc: &'static str,
) -> Field {
    Field { key, shape, presence: Presence::Default(value), doc, secret: false }
}

impl Field {
    pub(super) const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}
