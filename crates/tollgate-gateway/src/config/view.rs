//! A section whose form has been checked, read by key.

use std::rc::Rc;
use std::time::Duration;

use super::check::{fitting, flag, join, whole};
use super::format;
use super::problem::Place;
use super::spec::{Presence, Section, Shape};
use super::tree::{Entry, Node, Scalar, Value};

/// A value, where it stands, and what it has to be.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    node: &'a Node,
    shape: &'static Shape,
    path: String,
}

/// A section, where it stands, and its table.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    entries: &'a [Entry],
    section: &'static Section,
    place: Place,
}

impl<'a> Item<'a> {
    pub(super) fn new(node: &'a Node, shape: &'static Shape, path: String) -> Self {
        let shape = match shape {
            Shape::Either(shapes) => fitting(shapes, node).unwrap_or(shape),
            _ => shape,
        };
        Self { node, shape, path }
    }

    pub(super) fn place(&self) -> Place {
        Place { span: self.node.span.clone(), path: self.path.clone() }
    }

    /// The section that it is, if it is one.
    pub(super) fn view(&self) -> Option<View<'a>> {
        match (self.shape, &self.node.value) {
            (Shape::Section(section), Value::Map(entries)) => {
                Some(View { entries, section, place: self.place() })
            }
            _ => None,
        }
    }

    /// Its items if it is a list, else itself alone.
    pub(super) fn items(&self) -> Vec<Self> {
        match (self.shape, &self.node.value) {
            (Shape::List(of), Value::List(nodes)) => {
                let item = |(index, node): (usize, &'a Rc<Node>)| {
                    Self::new(node, of, format!("{}[{index}]", self.path))
                };
                nodes.iter().enumerate().map(item).collect()
            }
            _ => vec![self.clone()],
        }
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.scalar().map(|scalar| &*scalar.text)
    }

    /// Whether its text is not to be shown.
    pub(super) fn is_from_variable(&self) -> bool {
        self.scalar().is_some_and(|scalar| scalar.written.is_some())
    }

    /// Its text as a message may show it.
    pub(super) fn shown(&self) -> String {
        self.scalar().map_or_else(String::new, |scalar| scalar.shown().escape_debug().to_string())
    }

    fn scalar(&self) -> Option<&'a Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) if !scalar.broken => Some(scalar),
            _ => None,
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn place(&self) -> Place {
        self.place.clone()
    }

    /// The place of a key's value, or of the section where the key is not there.
    pub(super) fn place_of(&self, key: &str) -> Place {
        self.item(key).map_or_else(|| self.place(), |item| item.place())
    }

    /// The place of a key itself.
    pub(super) fn place_of_key(&self, key: &str) -> Place {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        let span = entry.map_or_else(|| self.place.span.clone(), |entry| entry.key_span.clone());
        Place { span, path: join(&self.place.path, key) }
    }

    /// The value of a key, if it is there.
    pub(super) fn item(&self, key: &str) -> Option<Item<'a>> {
        let field = self.section.field(key);
        debug_assert!(field.is_some(), "{} has no key {key}", self.section.name);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(Item::new(&entry.node, &field?.shape, join(&self.place.path, key)))
    }

    /// Whether such sections have this key.
    pub(super) fn knows(&self, key: &str) -> bool {
        self.section.field(key).is_some()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.item(key).is_some()
    }

    /// Whether there are keys that nobody knows, one of which may be meant to be another.
    pub(super) fn has_unknown(&self) -> bool {
        let known = |key: &str| {
            self.section.field(key).is_some()
                || self.section.others.is_some_and(|others| (others.key.check)(key).is_ok())
        };
        !self.entries.iter().all(|entry| known(&entry.key))
    }

    /// The items of a list, or the one value where that may stand for a list.
    pub(super) fn items(&self, key: &str) -> Vec<Item<'a>> {
        self.item(key).map_or_else(Vec::new, |item| item.items())
    }

    pub(super) fn view(&self, key: &str) -> Option<Self> {
        self.item(key)?.view()
    }

    /// Keys whose names are the file's own, with their values.
    pub(super) fn others(&self) -> Vec<(&'a str, Item<'a>)> {
        let Some(others) = self.section.others else { return Vec::new() };
        let own = |entry: &&Entry| {
            self.section.field(&entry.key).is_none() && (others.key.check)(&entry.key).is_ok()
        };
        let item = |entry: &'a Entry| {
            let path = join(&self.place.path, &entry.key);
            (&*entry.key, Item::new(&entry.node, &others.shape, path))
        };
        self.entries.iter().filter(own).map(item).collect()
    }

    /// The text of a key, or its default.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        match self.item(key) {
            Some(item) => item.text(),
            None => self.default(key),
        }
    }

    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        match self.item(key) {
            Some(item) => {
                let number = whole(item.scalar()?)?;
                match item.shape {
                    Shape::Whole { min, max } if !(*min..=*max).contains(&number) => None,
                    _ => Some(number),
                }
            }
            None => self.default(key)?.parse().ok(),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        match self.item(key) {
            Some(item) => flag(item.scalar()?),
            None => self.default(key)?.parse().ok(),
        }
    }

    pub(super) fn span(&self, key: &str) -> Option<Duration> {
        format::span(self.text(key)?).ok()
    }

    fn default(&self, key: &str) -> Option<&'static str> {
        default_of(self.section, key)
    }
}

/// What a key means where it is not there.
pub(super) fn default_of(section: &Section, key: &str) -> Option<&'static str> {
    match section.field(key)?.presence {
        Presence::Default(value) => Some(value),
        _ => None,
    }
}
