//! Tables of keys. The reader, the JSON Schema and the documentation are made from them.

/// A group of keys.
#[derive(Debug)]
pub struct Section {
    /// The name in the documentation.
    pub name: &'static str,
    /// The purpose.
    pub doc: &'static str,
    /// The keys, in the order of the documentation.
    pub entries: &'static [Entry],
    /// Keys that exclude each other.
    pub either: &'static [&'static [&'static str]],
}

/// One line of a declaration.
#[derive(Debug)]
pub enum Entry {
    /// A key.
    Key(Field),
    /// The keys that several sections have.
    Group(fn() -> &'static Section),
    /// Keys whose names the file chooses.
    Others(Others),
}

/// Keys whose names the file chooses.
#[derive(Debug)]
pub struct Others {
    /// The form of such a name.
    pub key: Format,
    /// The form of the value.
    pub shape: Shape,
    /// The meaning.
    pub doc: &'static str,
}

/// A key and its value.
#[derive(Debug)]
pub struct Field {
    /// The key.
    pub key: &'static str,
    /// The form of the value.
    pub shape: Shape,
    /// Whether the key is required.
    pub presence: Presence,
    /// The meaning.
    pub doc: &'static str,
    /// Whether its value is never shown.
    pub secret: bool,
}

/// Whether a key is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    Required,
    /// It is not, and it has no default.
    Optional,
    /// Without the key, this value is read as if it were in the file.
    Default(&'static str),
}

/// The form of a value.
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
    Section(fn() -> &'static Section),
    /// One of these, told apart by being a value, a list or a section.
    Either(&'static [Self]),
}

/// The form of a text.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name in messages: "an address with a port, as 0.0.0.0:8080".
    pub what: &'static str,
    /// As much of that as a regular expression says, for the JSON Schema.
    pub pattern: Option<&'static str>,
    /// Checks a text. The error is the cure.
    pub check: fn(&str) -> Result<(), String>,
}

impl Section {
    /// The keys, those of groups included.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.entries.iter().flat_map(|entry| -> Box<dyn Iterator<Item = &'static Field>> {
            match entry {
                Entry::Key(field) => Box::new(std::iter::once(field)),
                Entry::Group(group) => Box::new(group().fields()),
                Entry::Others(_) => Box::new(std::iter::empty()),
            }
        })
    }

    /// The field of a key.
    pub fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.key == key)
    }

    /// The keys whose names the file chooses, if it may.
    pub fn others(&self) -> Option<&'static Others> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Others(others) => Some(others),
            _ => None,
        })
    }
}

impl Shape {
    /// Its name in messages.
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
