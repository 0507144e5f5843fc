//! YAML as a tree of nodes with source positions.

use std::rc::Rc;

use super::place::Span;
use super::secrets::without_user;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: Value,
    /// The number of nodes, including this one and repetitions through aliases.
    pub(super) size: usize,
}

#[derive(Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    Map(Vec<Pair>),
}

#[derive(Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Not quoted, so it may be a number, or from a variable, where quotes do not count.
    pub(crate) plain: bool,
    /// The original text, if it has variables. Their values may be secrets, and are never shown.
    pub(crate) written: Option<String>,
    /// Variables could not be replaced, which is already reported.
    pub(crate) broken: bool,
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) node: Rc<Node>,
}

impl Node {
    /// An unquoted text that is not in a file.
    pub(crate) fn plain(text: &str) -> Self {
        let text = text.to_owned();
        let scalar = Scalar { text, plain: true, written: None, broken: false };
        Self { span: 0..0, value: Value::Scalar(scalar), size: 1 }
    }

    /// A section without keys that is not in a file.
    pub(crate) const fn empty() -> Self {
        Self { span: 0..0, value: Value::Map(Vec::new()), size: 1 }
    }

    /// A copy with another value.
    pub(crate) fn with_value(&self, value: Value) -> Rc<Self> {
        Rc::new(Self { span: self.span.clone(), value, size: self.size })
    }

    /// The value of a key, if this is a section with this key.
    pub(crate) fn get(&self, key: &str) -> Option<&Rc<Self>> {
        let Value::Map(pairs) = &self.value else { return None };
        pairs.iter().find(|pair| pair.key == key).map(|pair| &pair.node)
    }

    /// The text of a single value.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }
}

impl Scalar {
    fn is_null(&self) -> bool {
        self.plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// The text for messages.
    pub(crate) fn shown(&self) -> String {
        let text = without_user(self.written.as_ref().unwrap_or(&self.text));
        // The source excerpt shows the rest.
        let short: String = text.chars().take(60).collect();
        if short.len() < text.len() { format!("{short}…") } else { short }
    }
}
