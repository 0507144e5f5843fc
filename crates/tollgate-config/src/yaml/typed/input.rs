use std::path::PathBuf;
use std::rc::Rc;

use super::Location;
use crate::code;
use crate::yaml::place::Place;
use crate::yaml::problem::{Checked, Problems, Reported};
use crate::yaml::spec::{Presence, Shape};
use crate::yaml::tree::{Node, Scalar, Value};

/// A node that is being read, its path, and where its problems are reported.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(super) node: &'a Node,
    pub(super) path: &'a str,
    pub(super) problems: &'a Rc<Problems>,
    /// Whether messages must not show the value.
    is_secret: bool,
}

impl<'a> Input<'a> {
    pub(crate) const fn root(node: &'a Node, problems: &'a Rc<Problems>) -> Self {
        Self { node, path: "", problems, is_secret: false }
    }

    /// A node below the root.
    pub(crate) const fn at(node: &'a Node, path: &'a str, problems: &'a Rc<Problems>) -> Self {
        Self { node, path, problems, is_secret: false }
    }

    pub(super) const fn child(self, node: &'a Node, path: &'a str) -> Self {
        Self { node, path, ..self }
    }

    pub(super) fn secret(self) -> Self {
        self.problems.hide(self.node.span.clone());
        Self { is_secret: true, ..self }
    }

    pub(crate) const fn is_section(self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    fn place(self) -> Place {
        Place { span: self.node.span.clone(), path: self.path.to_owned() }
    }

    /// Adds the file that this value names.
    pub(crate) fn add_file(self, file: PathBuf) {
        self.problems.add_file(file, self.place());
    }

    pub(crate) fn location(self) -> Location {
        Location { place: self.place(), problems: Rc::clone(self.problems) }
    }

    /// Reads a single value. The error message from `parse` is the cure, and may quote the value.
    pub(crate) fn scalar<T>(
        self,
        shape: &Shape,
        parse: impl FnOnce(&Scalar) -> Result<T, String>,
    ) -> Checked<T> {
        let Value::Scalar(scalar) = &self.node.value else { return Err(self.unexpected(shape)) };
        if scalar.broken || self.node.is_null() {
            return Err(self.unexpected(shape));
        }
        parse(scalar).map_err(|cure| {
            let what = match self.is_secret {
                true => format!("this is not {}", shape.what()),
                false => format!("`{}` is not {}", scalar.shown().escape_debug(), shape.what()),
            };
            match scalar.written {
                Some(_) => self.location().error(
                    code::INVALID_VALUE,
                    what,
                    "check the variable's value, which is not shown because it may be a secret",
                ),
                // A library's error has its own code, which is more precise.
                None => {
                    let (cure, own) = code::split(&cure);
                    self.location().error(own.unwrap_or(code::INVALID_VALUE), what, cure)
                }
            }
        })
    }

    /// Reports a value that is missing or has another shape.
    pub(crate) fn unexpected(self, shape: &Shape) -> Reported {
        if holds_secret(shape) {
            self.problems.hide(self.node.span.clone());
        }
        let found = match &self.node.value {
            Value::Scalar(Scalar { broken: true, .. }) => return Reported,
            _ if self.node.is_null() => "nothing",
            Value::Scalar(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a section",
        };
        let example = match shape {
            Shape::Section(section) => {
                let required = section().fields().find(|it| it.presence == Presence::Required);
                required.or_else(|| section().fields().next()).map(|field| field.key)
            }
            _ => None,
        };
        let cure = match (&self.node.value, example) {
            _ if self.node.is_null() => {
                "write a value, indented below the key, or remove the key".to_owned()
            }
            _ if matches!(shape, Shape::List(_)) => {
                "start each item on its own line with `- `".to_owned()
            }
            (Value::Scalar(_), Some(key)) => format!("write its keys, such as `{{{key}: …}}`"),
            _ => "see docs/configuration-reference.md, or `tollgate init`".to_owned(),
        };
        self.location().error(
            code::WRONG_SHAPE,
            format!("expected {}, found {found}", shape.what()),
            cure,
        )
    }
}

/// Whether a value with the wrong shape is likely a secret, such as an API key instead of its
/// digest.
fn holds_secret(shape: &Shape) -> bool {
    match shape {
        Shape::Section(section) => section().fields().any(|field| field.secret),
        Shape::List(of) => holds_secret(of),
        Shape::Either(shapes) => shapes.iter().any(holds_secret),
        _ => false,
    }
}
