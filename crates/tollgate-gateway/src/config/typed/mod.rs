//! Sections as structs: [`section!`] makes of one declaration the table of a section and a struct
//! that holds its values and their places.
//!
//! ```text
//! section! {
//!     /// Where quotas are kept.
//!     Memory = "store.memory" {
//!         /// The most memory.
//!         default max_megabytes: Whole<8, 1_000_000> = "256",
//!     }
//! }
//! ```
//!
//! | a line begins with | meaning |
//! |---|---|
//! | `required`, `optional`, `default` | a key |
//! | `implied` | an optional section whose defaults hold without it |
//! | `group` | the keys of another section |
//! | `others` | keys whose names the file chooses |
//!
//! The key in the file is the name of the field in camel case, or what follows `as`. The doc
//! comments are the documentation.

use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use super::files::NamedFile;
use super::form::{flag, join, whole};
use super::format;
use super::problem::{Place, Problems, Span};
use super::spec::{self, Section, Shape};
use super::tree::{self, Node, Scalar};

/// The problem is already reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported;

/// A value, unless something in it is wrong.
pub(super) type Checked<T> = Result<T, Reported>;

pub(super) trait Kind {
    type Value;
    const SHAPE: Shape;
    const IS_SECRET: bool = false;

    /// Reads a node whose form has been checked.
    fn read(at: At<'_>) -> Checked<Self::Value>;
}

pub(super) trait Text {
    type Value;
    const FORMAT: spec::Format;

    /// The value of a text, or how to correct the text.
    fn parse(text: &str) -> Result<Self::Value, String>;
}

#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) node: &'a Node,
    pub(super) path: &'a str,
    pub(super) problems: &'a Rc<Problems>,
}

impl<'a> At<'a> {
    fn spot(self) -> Spot {
        let place = Place { span: self.node.span.clone(), path: self.path.to_owned() };
        Spot { place, problems: Rc::clone(self.problems) }
    }

    const fn part(self, node: &'a Node, path: &'a str) -> Self {
        At { node, path, problems: self.problems }
    }

    fn scalar(&self) -> Checked<&Scalar> {
        match &self.node.value {
            tree::Value::Scalar(scalar) if !scalar.broken => Ok(scalar),
            _ => Err(Reported),
        }
    }

    pub(super) fn text(&self) -> Checked<&str> {
        self.scalar().map(|scalar| &*scalar.text)
    }
}

#[derive(Clone)]
pub(super) struct Spot {
    pub(super) place: Place,
    problems: Rc<Problems>,
}

impl Spot {
    pub(super) fn error(&self, what: impl Into<String>, cure: impl Into<String>) -> Reported {
        self.problems.error(self.place.clone(), what, cure)
    }

    pub(super) fn warn(&self, what: impl Into<String>, cure: impl Into<String>) {
        self.problems.warn(self.place.clone(), what, cure);
    }

    pub(super) fn names(&self, file: NamedFile) {
        self.problems.names(file);
    }
}

pub(super) struct Key<T> {
    mark: Mark,
    value: Checked<T>,
}

impl<T> Key<T> {
    pub(super) fn get(&self) -> Checked<&T> {
        self.value.as_ref().map_err(|reported| *reported)
    }
}

impl<T: Clone> Key<T> {
    pub(super) fn value(&self) -> Checked<T> {
        self.value.clone()
    }
}

impl<T> Key<Option<T>> {
    /// The value, if it is in the file and right.
    pub(super) fn there(&self) -> Option<&T> {
        self.get().ok().and_then(Option::as_ref)
    }
}

impl<K: Kind> Key<Option<Vec<Item<K>>>> {
    /// The items; none without the key.
    pub(super) fn items(&self) -> Checked<&[Item<K>]> {
        Ok(self.get()?.as_deref().unwrap_or_default())
    }
}

impl<T> Deref for Key<T> {
    type Target = Mark;

    fn deref(&self) -> &Mark {
        &self.mark
    }
}

pub(super) struct Mark {
    pub(super) key: &'static str,
    section: Rc<Spot>,
    /// Those of key and value, if the key is there.
    spans: Option<(Span, Span)>,
}

impl Mark {
    pub(super) const fn is_set(&self) -> bool {
        self.spans.is_some()
    }

    /// The value, or the section without the key.
    pub(super) fn spot(&self) -> Spot {
        match &self.spans {
            Some((_, span)) => self.at(span),
            None => (*self.section).clone(),
        }
    }

    pub(super) fn name(&self) -> Spot {
        self.at(self.spans.as_ref().map_or(&self.section.place.span, |(key, _)| key))
    }

    fn at(&self, span: &Span) -> Spot {
        let place = Place { span: span.clone(), path: join(&self.section.place.path, self.key) };
        Spot { place, problems: Rc::clone(&self.section.problems) }
    }

    pub(super) fn error(&self, what: impl Into<String>, cure: impl Into<String>) -> Reported {
        self.spot().error(what, cure)
    }

    pub(super) fn warn(&self, what: impl Into<String>, cure: impl Into<String>) {
        self.spot().warn(what, cure);
    }
}

pub(super) struct Here {
    pub(super) spot: Rc<Spot>,
    /// Whether it has keys that do not exist. One may be meant to be another key.
    pub(super) has_unknown: bool,
}

pub(super) struct Entries<'a> {
    entries: &'a [tree::Entry],
    table: &'static Section,
    at: At<'a>,
    spot: Rc<Spot>,
}

impl<'a> Entries<'a> {
    pub(super) fn of(at: At<'a>, table: &'static Section) -> Checked<Self> {
        match &at.node.value {
            tree::Value::Map(entries) => Ok(Self { entries, table, at, spot: Rc::new(at.spot()) }),
            _ => Err(Reported),
        }
    }

    pub(super) fn here(&self) -> Here {
        let others = self.table.others();
        let is_known = |key: &str| {
            self.table.field(key).is_some()
                || others.is_some_and(|others| (others.key.check)(key).is_ok())
        };
        let has_unknown = !self.entries.iter().all(|entry| is_known(&entry.key));
        Here { spot: Rc::clone(&self.spot), has_unknown }
    }

    pub(super) fn required<K: Kind>(&self, key: &'static str) -> Key<K::Value> {
        self.key::<K, _>(key, |value| value.unwrap_or(Err(Reported)))
    }

    pub(super) fn optional<K: Kind>(&self, key: &'static str) -> Key<Option<K::Value>> {
        self.key::<K, _>(key, Option::transpose)
    }

    pub(super) fn default<K: Kind>(&self, key: &'static str, text: &str) -> Key<K::Value> {
        self.key::<K, _>(key, |value| {
            value.unwrap_or_else(|| K::read(self.at.part(&Node::plain(text), "")))
        })
    }

    /// A section whose defaults hold without the key.
    pub(super) fn implied<K: Kind>(&self, key: &'static str) -> Key<K::Value> {
        self.key::<K, _>(key, |value| {
            value.unwrap_or_else(|| K::read(self.at.part(&Node::empty(), "")))
        })
    }

    fn key<K: Kind, T>(
        &self,
        key: &'static str,
        value: impl FnOnce(Option<Checked<K::Value>>) -> Checked<T>,
    ) -> Key<T> {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        let section = Rc::clone(&self.spot);
        let spans = entry.map(|entry| (entry.key_span.clone(), entry.node.span.clone()));
        let read = entry.map(|entry| K::read(self.at.part(&entry.node, &join(self.at.path, key))));
        Key { mark: Mark { key, section, spans }, value: value(read) }
    }

    pub(super) fn others<N: Text, K: Kind>(&self) -> Named<N, K> {
        let own = self.entries.iter().filter(|entry| self.table.field(&entry.key).is_none());
        let item = |entry: &tree::Entry| {
            let name = N::parse(&entry.key).ok()?;
            Some((
                name,
                Item::<K>::read(self.at.part(&entry.node, &join(self.at.path, &entry.key))),
            ))
        };
        Named { all: own.filter_map(item).collect() }
    }
}

/// A section in which nothing is set.
pub(super) fn defaults<K: Kind>() -> Checked<K::Value> {
    K::read(At { node: &Node::empty(), path: "", problems: &Rc::default() })
}

pub(super) struct Item<K: Kind> {
    pub(super) spot: Spot,
    pub(super) value: Checked<K::Value>,
}

impl<K: Kind> Item<K> {
    fn read(at: At<'_>) -> Self {
        Self { spot: at.spot(), value: K::read(at) }
    }

    pub(super) fn get(&self) -> Checked<&K::Value> {
        self.value.as_ref().map_err(|reported| *reported)
    }
}

pub(super) struct Named<N: Text, K: Kind> {
    pub(super) all: Vec<(N::Value, Item<K>)>,
}

impl<N: Text, K: Kind> Named<N, K> {
    pub(super) const fn others(doc: &'static str) -> spec::Others {
        spec::Others { key: N::FORMAT, shape: K::SHAPE, doc }
    }
}

/// Reads all items, so that all problems are reported, also those after the first.
pub(super) fn all<T, U>(
    items: impl IntoIterator<Item = T>,
    read: impl FnMut(T) -> Checked<U>,
) -> Checked<Vec<U>> {
    let read: Vec<_> = items.into_iter().map(read).collect();
    read.into_iter().collect()
}

pub(super) fn values<K: Kind<Value: Clone>>(items: &[Item<K>]) -> Checked<Vec<K::Value>> {
    items.iter().map(|item| item.value.clone()).collect()
}

pub(super) struct Flag;

impl Kind for Flag {
    type Value = bool;
    const SHAPE: Shape = Shape::Flag;

    fn read(at: At<'_>) -> Checked<bool> {
        flag(at.scalar()?).ok_or(Reported)
    }
}

pub(super) struct Whole<const MIN: u64, const MAX: u64, T = u64>(PhantomData<T>);

impl<const MIN: u64, const MAX: u64, T: TryFrom<u64>> Kind for Whole<MIN, MAX, T> {
    type Value = T;
    const SHAPE: Shape = Shape::Whole { min: MIN, max: MAX };

    fn read(at: At<'_>) -> Checked<T> {
        let number = whole(at.scalar()?).filter(|number| (MIN..=MAX).contains(number));
        number.and_then(|number| number.try_into().ok()).ok_or(Reported)
    }
}

pub(super) struct Time;

impl Kind for Time {
    type Value = Duration;
    const SHAPE: Shape = Shape::Span;

    fn read(at: At<'_>) -> Checked<Duration> {
        format::span(at.text()?).map_err(|_| Reported)
    }
}

impl<T: Text> Kind for T {
    type Value = T::Value;
    const SHAPE: Shape = Shape::Text(T::FORMAT);

    fn read(at: At<'_>) -> Checked<T::Value> {
        T::parse(at.text()?).map_err(|_| Reported)
    }
}

pub(super) struct Hidden<K>(PhantomData<K>);

impl<K: Kind> Kind for Hidden<K> {
    type Value = K::Value;
    const SHAPE: Shape = K::SHAPE;
    const IS_SECRET: bool = true;

    fn read(at: At<'_>) -> Checked<K::Value> {
        K::read(at)
    }
}

/// A single value with its text as messages may show it.
pub(super) struct Written<T> {
    pub(super) value: T,
    pub(super) text: String,
    pub(super) shown: String,
    pub(super) is_from_variable: bool,
}

impl<K: Kind> Kind for Written<K> {
    type Value = Written<K::Value>;
    const SHAPE: Shape = K::SHAPE;

    fn read(at: At<'_>) -> Checked<Self::Value> {
        let scalar = at.scalar()?;
        Ok(Written {
            value: K::read(at)?,
            text: scalar.text.clone(),
            shown: scalar.shown().escape_debug().to_string(),
            is_from_variable: scalar.written.is_some(),
        })
    }
}

pub(super) struct List<K>(PhantomData<K>);

impl<K: Kind> Kind for List<K> {
    type Value = Vec<Item<K>>;
    const SHAPE: Shape = Shape::List(&K::SHAPE);

    fn read(at: At<'_>) -> Checked<Self::Value> {
        let tree::Value::List(nodes) = &at.node.value else { return Err(Reported) };
        let item = |(index, node): (usize, &Rc<Node>)| {
            Item::read(at.part(node, &format!("{}[{index}]", at.path)))
        };
        Ok(nodes.iter().enumerate().map(item).collect())
    }
}

pub(super) struct OneOrMore<K>(PhantomData<K>);

impl<K: Kind> Kind for OneOrMore<K> {
    type Value = Vec<Item<K>>;
    const SHAPE: Shape = Shape::Either(match K::SHAPE {
        Shape::Either([one, other]) => &[*one, *other, Shape::List(&K::SHAPE)],
        _ => &[K::SHAPE, Shape::List(&K::SHAPE)],
    });

    fn read(at: At<'_>) -> Checked<Self::Value> {
        match at.node.value {
            tree::Value::List(_) => List::<K>::read(at),
            _ => Ok(vec![Item::read(at)]),
        }
    }
}

/// One of two forms, told apart by being a single value, a list or a section.
pub(super) enum Either<A, B> {
    One(A),
    Other(B),
}

impl<A: Kind, B: Kind> Kind for Either<A, B> {
    type Value = Either<A::Value, B::Value>;
    const SHAPE: Shape = Shape::Either(&[A::SHAPE, B::SHAPE]);

    fn read(at: At<'_>) -> Checked<Self::Value> {
        if B::SHAPE.fits(at.node) {
            B::read(at).map(Either::Other)
        } else {
            A::read(at).map(Either::One)
        }
    }
}

pub(super) const fn camel_case<const N: usize>(name: &str) -> [u8; N] {
    let name = name.as_bytes();
    let (mut out, mut from, mut to) = ([0; N], 0, 0);
    while to < N {
        let begins_word = name[from] == b'_';
        from += begins_word as usize;
        out[to] = if begins_word { name[from].to_ascii_uppercase() } else { name[from] };
        from += 1;
        to += 1;
    }
    out
}

pub(super) const fn camel_case_len(name: &str) -> usize {
    let (mut len, mut at) = (0, 0);
    while at < name.len() {
        len += (name.as_bytes()[at] != b'_') as usize;
        at += 1;
    }
    len
}

macro_rules! section {
    (@key $field:ident) => {{
        const NAME: &str = stringify!($field);
        const KEY: [u8; typed::camel_case_len(NAME)] = typed::camel_case(NAME);
        match std::str::from_utf8(&KEY) {
            Ok(key) => key,
            Err(_) => NAME,
        }
    }};
    (@key $field:ident $key:literal) => { $key };

    (@type optional $kind:ty) => { typed::Key<Option<<$kind as typed::Kind>::Value>> };
    (@type group $kind:ty) => { $kind };
    (@type others $kind:ty) => { $kind };
    (@type $mode:ident $kind:ty) => { typed::Key<<$kind as typed::Kind>::Value> };

    (@entry group $kind:ty, $key:expr, $doc:expr,) => { spec::Entry::Group(<$kind>::table) };
    (@entry others $kind:ty, $key:expr, $doc:expr,) => {
        spec::Entry::Others(<$kind>::others($doc))
    };
    (@entry $mode:ident $kind:ty, $key:expr, $doc:expr, $($default:literal)?) => {
        spec::Entry::Key(spec::Field {
            key: $key,
            shape: <$kind as typed::Kind>::SHAPE,
            presence: section!(@presence $mode $($default)?),
            doc: $doc,
            secret: <$kind as typed::Kind>::IS_SECRET,
        })
    };
    (@presence required) => { spec::Presence::Required };
    (@presence optional) => { spec::Presence::Optional };
    (@presence implied) => { spec::Presence::Optional };
    (@presence default $default:literal) => { spec::Presence::Default($default) };

    (@read group $kind:ty, $entries:ident, $key:expr,) => { <$kind>::of($entries) };
    (@read others $kind:ty, $entries:ident, $key:expr,) => { $entries.others() };
    (@read default $kind:ty, $entries:ident, $key:expr, $default:literal) => {
        $entries.default::<$kind>($key, $default)
    };
    (@read $mode:ident $kind:ty, $entries:ident, $key:expr,) => { $entries.$mode::<$kind>($key) };

    ($(
        $(#[doc = $about:literal])*
        $name:ident = $title:literal $(either $([$($either:ident)*])*)? {
            $(
                $(#[doc = $doc:literal])*
                $mode:ident $field:ident $(as $key:literal)? : $kind:ty $(= $default:literal)?,
            )*
        }
    )*) => { $(
        $(#[doc = $about])*
        pub(in crate::config) struct $name {
            #[allow(dead_code, reason = "problems of a key need no more than its own place")]
            pub(in crate::config) here: typed::Here,
            $(
                $(#[doc = $doc])*
                pub(in crate::config) $field: section!(@type $mode $kind),
            )*
        }

        impl $name {
            pub(in crate::config) fn table() -> &'static spec::Section {
                static TABLE: spec::Section = spec::Section {
                    name: $title,
                    doc: concat!($($about),*).trim_ascii_start(),
                    entries: &[$(section!(
                        @entry $mode $kind,
                        section!(@key $field $($key)?),
                        concat!($($doc),*).trim_ascii_start(),
                        $($default)?
                    )),*],
                    either: &[$($(&[$(section!(@key $either)),*]),*)?],
                };
                &TABLE
            }

            pub(in crate::config) fn of(entries: &typed::Entries<'_>) -> Self {
                Self {
                    here: entries.here(),
                    $($field: section!(
                        @read $mode $kind, entries, section!(@key $field $($key)?), $($default)?
                    ),)*
                }
            }
        }

        impl typed::Kind for $name {
            type Value = Box<Self>;
            const SHAPE: spec::Shape = spec::Shape::Section(Self::table);

            fn read(at: typed::At<'_>) -> typed::Checked<Box<Self>> {
                Ok(Box::new(Self::of(&typed::Entries::of(at, Self::table())?)))
            }
        }
    )* };
}
pub(super) use section;

/// Words, each with its value and its meaning.
macro_rules! words {
    ($(
        $(#[doc = $about:literal])*
        $name:ident -> $value:ty {
            $($(#[doc = $doc:literal])* $word:literal => $of:expr,)*
        }
    )*) => { $(
        $(#[doc = $about])*
        pub(in crate::config) struct $name;

        impl typed::Kind for $name {
            type Value = $value;
            const SHAPE: spec::Shape = spec::Shape::Word(
                &[$(($word, concat!($($doc),*).trim_ascii_start())),*]
            );

            fn read(at: typed::At<'_>) -> typed::Checked<$value> {
                match at.text()? {
                    $($word => Ok($of),)*
                    _ => Err(typed::Reported),
                }
            }
        }
    )* };
}
pub(super) use words;

/// Texts of some form: what it is, a pattern for the JSON Schema, and how to read it.
macro_rules! texts {
    (@pattern) => { None };
    (@pattern $pattern:literal) => { Some($pattern) };
    ($(
        $(#[doc = $about:literal])*
        $name:ident($text:ident) -> $value:ty: $what:literal $(, $pattern:literal)? => $parse:expr;
    )*) => { $(
        $(#[doc = $about])*
        pub(in crate::config) struct $name;

        impl typed::Text for $name {
            type Value = $value;
            const FORMAT: spec::Format = spec::Format {
                what: $what,
                pattern: texts!(@pattern $($pattern)?),
                check: |text| <Self as typed::Text>::parse(text).map(drop),
            };

            fn parse($text: &str) -> Result<$value, String> {
                $parse
            }
        }
    )* };
}
pub(super) use texts;
