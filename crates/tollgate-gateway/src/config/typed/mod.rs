//! The values of a section and their places in the file.
//!
//! [`section!`] declares sections. [`words!`] and [`texts!`] declare kinds of values; `kinds.rs` has
//! the general kinds.

mod declare;
mod kinds;

use std::ops::Deref;
use std::rc::Rc;

use super::files::NamedFile;
use super::form::join;
use super::problem::{Place, Problems, Span};
use super::spec::{self, Section, Shape};
use super::tree::{self, Node, Scalar};

pub(super) use self::declare::{camel_case, camel_case_len, section, texts, words};
pub(super) use self::kinds::{Either, Flag, Hidden, List, OneOrMore, Time, Whole, Written};

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
