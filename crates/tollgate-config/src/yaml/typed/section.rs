//! Reads the keys of a section.

use std::rc::Rc;

use super::{Input, Key, Location, SectionInfo, Setting, Text, ValueType};
use crate::code;
use crate::yaml::place::{Place, join};
use crate::yaml::problem::{Checked, Problems, Reported};
use crate::yaml::secrets::looks_secret;
use crate::yaml::spec::{Others, Presence, Section, Shape, nearest};
use crate::yaml::tree::{Node, Pair, Value};

pub(crate) struct SectionInput<'a> {
    pairs: &'a [Pair],
    table: &'static Section,
    input: Input<'a>,
    location: Rc<Location>,
    /// Known keys that the file's unknown keys probably mean.
    meant: Vec<&'static str>,
    has_unknown: bool,
    /// The only key, if the input is this key's value.
    short: Option<&'static str>,
}

impl<'a> SectionInput<'a> {
    /// Reports unknown keys, and keys that do not fit together.
    pub(crate) fn of(input: Input<'a>, table: fn() -> &'static Section) -> Checked<Self> {
        let Value::Map(pairs) = &input.node.value else {
            return Err(input.unexpected(&Shape::Section(table)));
        };
        let mut section = Self::new(input, pairs, table(), None);
        section.check_unknown();
        section.check_exclusive();
        section.check_needs();
        Ok(section)
    }

    /// A section with a single key, which has this value.
    pub(crate) fn short(input: Input<'a>, table: &'static Section, key: &'static str) -> Self {
        Self::new(input, &[], table, Some(key))
    }

    fn new(
        input: Input<'a>,
        pairs: &'a [Pair],
        table: &'static Section,
        short: Option<&'static str>,
    ) -> Self {
        let location = Rc::new(input.location());
        Self { pairs, table, input, location, meant: Vec::new(), has_unknown: false, short }
    }

    pub(crate) fn info(&self) -> SectionInfo {
        let location = Rc::clone(&self.location);
        let is_set = |key: &&str| self.pair(key).is_some();
        let keys = self.table.fields().map(|field| field.key).filter(is_set);
        let keys = keys.map(|key| (key, self.setting(key).name())).collect();
        SectionInfo { location, has_unknown: self.has_unknown, keys }
    }

    fn pair(&self, key: &str) -> Option<&'a Pair> {
        self.pairs.iter().find(|pair| pair.key == key)
    }

    fn place_of(&self, pair: &Pair) -> Place {
        Place { span: pair.key_span.clone(), path: join(self.input.path, &pair.key) }
    }

    fn problems(&self) -> &'a Problems {
        self.input.problems
    }

    fn check_unknown(&mut self) {
        let table = self.table;
        for pair in self.pairs {
            let others = table.others();
            let is_other = others.is_some_and(|others| (others.key.check)(&pair.key).is_ok());
            if is_other || table.field(&pair.key).is_some() {
                continue;
            }
            self.has_unknown = true;
            let meant = nearest(table.fields().map(|field| field.key), &pair.key);
            self.meant.extend(meant);
            let is_secret = match meant.and_then(|meant| table.field(meant)) {
                Some(field) => field.secret,
                None => table.fields().any(|field| field.secret),
            };
            if is_secret || looks_secret(&pair.key) {
                self.problems().hide(pair.node.span.clone());
            }
            let shown: String = pair.key.chars().take(60).collect();
            let what = format!("there is no key `{}` here", shown.escape_debug());
            let cure = unknown_key_cure(table, others, &pair.key, meant);
            self.problems().error(code::UNKNOWN_KEY, self.place_of(pair), what, cure);
        }
    }

    fn check_exclusive(&self) {
        for keys in self.table.exclusive() {
            let mut found = keys.iter().filter_map(|key| self.pair(key));
            if let (Some(first), Some(second)) = (found.next(), found.next()) {
                self.problems().error(
                    code::EXCLUSIVE_KEYS,
                    self.place_of(second),
                    format!("`{}` and `{}` exclude each other", first.key, second.key),
                    "keep one of the two",
                );
            }
        }
    }

    /// Warns about keys that have no effect because another key is missing or has the wrong value.
    fn check_needs(&self) {
        for field in self.table.fields() {
            let (Some(needs), Some(pair)) = (field.needs, self.pair(field.key)) else { continue };
            let Some(other) = self.table.field(needs.key) else { continue };
            let found = match (self.pair(needs.key).map(|pair| &pair.node.value), other.presence) {
                (Some(Value::Scalar(scalar)), _) => Some(&*scalar.text),
                (Some(_), _) => continue,
                (None, Presence::Default(value)) => Some(value),
                (None, _) => None,
            };
            let context = match found {
                Some(_) if needs.values.is_empty() => continue,
                Some(value) if needs.values.contains(&value) || !other.shape.has_word(value) => {
                    continue;
                }
                Some(value) => format!("with `{}: {value}`", needs.key),
                None => format!("without `{}`", needs.key),
            };
            let what = format!("`{}` has no effect {context}", field.key);
            let cure = match needs.values {
                [value] => format!("write `{}: {value}`, or remove it: {}", needs.key, needs.why),
                _ => format!("remove it: {}", needs.why),
            };
            self.problems().warn(code::NO_EFFECT, self.place_of(pair), what, cure);
        }
    }

    pub(crate) fn required<V: ValueType>(&self, key: &'static str) -> Key<V::Value> {
        self.key::<V, _>(key, |value| value.unwrap_or_else(|| Err(self.missing(key))))
    }

    pub(crate) fn optional<V: ValueType>(&self, key: &'static str) -> Key<Option<V::Value>> {
        self.key::<V, _>(key, Option::transpose)
    }

    pub(crate) fn default<V: ValueType>(&self, key: &'static str, text: &str) -> Key<V::Value> {
        self.key::<V, _>(key, |value| {
            value.unwrap_or_else(|| V::read(self.input.child(&Node::plain(text), "")))
        })
    }

    /// Reads a section that has defaults if the key is not set.
    pub(crate) fn implied<V: ValueType>(&self, key: &'static str) -> Key<V::Value> {
        self.key::<V, _>(key, |value| {
            value.unwrap_or_else(|| V::read(self.input.child(&Node::empty(), "")))
        })
    }

    fn key<V: ValueType, T>(
        &self,
        key: &'static str,
        value: impl FnOnce(Option<Checked<V::Value>>) -> Checked<T>,
    ) -> Key<T> {
        let (setting, node) = self.find(key);
        let value = value(node.map(|node| V::read(self.input.child(node, &setting.path))));
        Key { setting, value }
    }

    fn setting(&self, key: &'static str) -> Setting {
        self.find(key).0
    }

    fn find(&self, key: &'static str) -> (Setting, Option<&'a Node>) {
        let (path, found) = match self.short {
            Some(short) if short == key => {
                let node = self.input.node;
                (self.input.path.to_owned(), Some((&node.span, node)))
            }
            _ => {
                let pair = self.pair(key).map(|pair| (&pair.key_span, &*pair.node));
                (join(self.input.path, key), pair)
            }
        };
        let spans = found.map(|(key, node)| (key.clone(), node.span.clone()));
        let setting = Setting { key, path, section: Rc::clone(&self.location), spans };
        (setting, found.map(|(_, node)| node))
    }

    fn missing(&self, key: &'static str) -> Reported {
        let field = self.table.field(key).filter(|field| !self.meant.contains(&field.key));
        let Some(field) = field else { return Reported };
        let cure = format!("add `{key}: …`: {}", first_sentence(field.doc));
        self.location.error(code::MISSING_KEY, format!("`{key}` is missing"), cure)
    }

    /// Keys with names that the file chooses.
    pub(crate) fn others<N: Text, V: ValueType>(&self) -> Named<N, V> {
        let own = self.pairs.iter().filter(|pair| self.table.field(&pair.key).is_none());
        let item = |pair: &Pair| {
            let name = N::parse(&pair.key).ok()?;
            let path = join(self.input.path, &pair.key);
            Some((name, Item::read(self.input.child(&pair.node, &path))))
        };
        Named { all: own.filter_map(item).collect() }
    }
}

fn unknown_key_cure(
    table: &Section,
    others: Option<&Others>,
    key: &str,
    meant: Option<&str>,
) -> String {
    if key == "<<" {
        return "merge keys are not part of YAML 1.2: write the keys out, or alias a whole section"
            .to_owned();
    }
    if let Some(meant) = meant {
        return format!("did you mean `{meant}`?");
    }
    let required = table.fields().filter(|field| field.presence == Presence::Required);
    let holder = required.into_iter().find(|field| match field.shape {
        Shape::Section(section) => section().field(key).is_some(),
        _ => false,
    });
    if let Some(holder) = holder {
        return format!("move it below `{0}`, indented: `{0}.{key}`", holder.key);
    }
    match others {
        Some(others) => {
            let wrong = (others.key.check)(key).err().unwrap_or_default();
            format!("a key here is {}: {wrong}", others.key.what)
        }
        None => {
            let keys: Vec<_> = table.fields().map(|field| field.key).collect();
            format!("remove it; the keys here are {}", keys.join(", "))
        }
    }
}

/// A description's first sentence, in lowercase.
fn first_sentence(doc: &str) -> String {
    let sentence = doc.split(". ").next().unwrap_or_default().trim_end_matches('.');
    let mut letters = sentence.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

pub(crate) struct Item<V: ValueType> {
    pub(crate) location: Location,
    pub(crate) value: Checked<V::Value>,
}

impl<V: ValueType> Item<V> {
    pub(super) fn read(input: Input<'_>) -> Self {
        Self { location: input.location(), value: V::read(input) }
    }

    pub(crate) fn get(&self) -> Checked<&V::Value> {
        self.value.as_ref().map_err(|reported| *reported)
    }
}

/// Keys with names that the file chooses, and their values.
pub(crate) struct Named<N: Text, V: ValueType> {
    pub(crate) all: Vec<(N::Value, Item<V>)>,
}

impl<N: Text, V: ValueType> Named<N, V> {
    pub(crate) const fn others(doc: &'static str) -> Others {
        Others { key: N::FORMAT, shape: V::SHAPE, doc }
    }
}

/// Reads all items, because later items may have problems too.
pub(crate) fn all<T, U>(
    items: impl IntoIterator<Item = T>,
    read: impl FnMut(T) -> Checked<U>,
) -> Checked<Vec<U>> {
    let read: Vec<_> = items.into_iter().map(read).collect();
    read.into_iter().collect()
}

pub(crate) fn values<V: ValueType<Value: Clone>>(items: &[Item<V>]) -> Checked<Vec<V::Value>> {
    items.iter().map(|item| item.value.clone()).collect()
}

/// The value of a section in which no key is set.
pub(crate) fn defaults<V: ValueType>() -> Checked<V::Value> {
    V::read(Input::root(&Node::empty(), &Rc::default()))
}
