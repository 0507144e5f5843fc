//! Tables of keys. The reader, the JSON Schema and the reference are generated from them.

#[derive(Debug)]
pub struct Section {
    pub name: &'static str,
    pub doc: &'static str,
    pub entries: &'static [Entry],
    pub either: &'static [&'static [&'static str]],
}

#[derive(Debug)]
pub enum Entry {
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
    /// Whether no output shows the value.
    pub secret: bool,
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
    Span,
    Word(&'static [(&'static str, &'static str)]),
    Text(Format),
    List(&'static Self),
    Section(fn() -> &'static Section),
    Either(&'static [Self]),
}

#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name in messages: "an address with a port, such as 0.0.0.0:8080".
    pub what: &'static str,
    /// A regular expression for the JSON Schema, which may accept more than `check`.
    pub pattern: Option<&'static str>,
    /// Checks a text. The error message is the cure.
    pub check: fn(&str) -> Result<(), String>,
}

impl Section {
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.entries.iter().flat_map(|entry| -> Box<dyn Iterator<Item = &'static Field>> {
            match entry {
                Entry::Key(field) => Box::new(std::iter::once(field)),
                Entry::Group(group) => Box::new(group().fields()),
                Entry::Others(_) => Box::new(std::iter::empty()),
            }
        })
    }

    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.key == key)
    }

    pub fn others(&self) -> Option<&'static Others> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Others(others) => Some(others),
            _ => None,
        })
    }
}

impl Shape {
    pub fn what(&self) -> String {
        match self {
            Self::Flag => "`true` or `false`".to_owned(),
            Self::Whole { min: 0, max: u64::MAX } => "a whole number".to_owned(),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Self::Span => "a duration such as 500ms, 60s, 5m or 1h".to_owned(),
            Self::Word(words) => {
                let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
                one_of(&words)
            }
            Self::Text(format) => format.what.to_owned(),
            Self::List(of) => format!("a list, each {}", of.what()),
            Self::Section(section) => format!("a section ({})", keys(section())),
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

/// "`a`, `b` or `c`".
pub(super) fn one_of(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
