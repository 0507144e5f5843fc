//! Value types. Each reads a value, reports its problems, and describes it for the JSON Schema and
//! the documentation.
//!
//! | file | content |
//! |---|---|
//! | `declare.rs` | `section!`, `words!` and `texts!`, which declare value types |
//! | `value_types.rs` | numbers, durations, lists and alternatives |
//! | `input.rs` | a node that is being read |
//! | `section.rs` | the keys of a section |
//! | `location.rs` | a place in the file at which a problem is reported |

mod declare;
mod input;
mod location;
mod section;
mod value_types;

use crate::yaml::problem::Checked;
use crate::yaml::spec::{Format, Shape};

pub(crate) use self::declare::{camel_case, camel_case_len, durations, section, texts, words};
pub(crate) use self::input::Input;
pub(crate) use self::location::{Key, Location, SectionInfo, Setting};
pub(crate) use self::section::{Item, Named, SectionInput, all, defaults, values};
pub(crate) use self::value_types::{
    AnySection, Either, Flag, Hidden, JsonScalar, List, OneOrMore, Seconds, Short, Shorthand, Time,
    Values, Whole, Written, bounded_duration, unknown_word,
};

pub(crate) trait ValueType {
    type Value;
    const SHAPE: Shape;
    const IS_SECRET: bool = false;

    /// Reads a value and reports its problems.
    fn read(input: Input<'_>) -> Checked<Self::Value>;
}

pub(crate) trait Text {
    type Value;
    const FORMAT: Format;

    /// Parses a text. The error message is the cure.
    fn parse(text: &str) -> Result<Self::Value, String>;
}

impl<T: Text> ValueType for T {
    type Value = T::Value;
    const SHAPE: Shape = Shape::Text(T::FORMAT);

    fn read(input: Input<'_>) -> Checked<T::Value> {
        input.scalar(&Self::SHAPE, |scalar| T::parse(&scalar.text))
    }
}
