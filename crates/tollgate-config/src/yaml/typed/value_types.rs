//! The general types of values.

use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Number, Value as Json};

use super::{Input, Item, ValueType};
use crate::code;
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::spec::{Format, Section, Shape, nearest, one_of};
use crate::yaml::tree::{Node, Scalar, Value};

pub(crate) struct Flag;

impl ValueType for Flag {
    type Value = bool;
    const SHAPE: Shape = Shape::Flag;

    fn read(input: Input<'_>) -> Checked<bool> {
        input.scalar(&Self::SHAPE, |scalar| match &*scalar.text {
            "true" | "True" | "TRUE" if scalar.plain => Ok(true),
            "false" | "False" | "FALSE" if scalar.plain => Ok(false),
            text => Err(match text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "y" | "1" => "write true".to_owned(),
                "no" | "off" | "n" | "0" => "write false".to_owned(),
                _ => "write one of the two, without quotes".to_owned(),
            }),
        })
    }
}

pub(crate) struct Whole<const MIN: u64, const MAX: u64, T = u64>(PhantomData<T>);

impl<const MIN: u64, const MAX: u64, T: TryFrom<u64>> ValueType for Whole<MIN, MAX, T> {
    type Value = T;
    const SHAPE: Shape = Shape::Whole { min: MIN, max: MAX };

    fn read(input: Input<'_>) -> Checked<T> {
        input.scalar(&Self::SHAPE, |scalar| {
            let number = whole(scalar, MIN, MAX)?;
            number.try_into().map_err(|_| format!("the maximum is {MAX}"))
        })
    }
}

fn whole(scalar: &Scalar, min: u64, max: u64) -> Result<u64, String> {
    let text = &*scalar.text;
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    Err(match text.parse::<u64>() {
        Ok(_) if is_digits && !scalar.plain => format!("remove the quotes: {text}"),
        Ok(number) if is_digits && number < min => format!("the minimum is {min}"),
        Ok(number) if is_digits && number <= max => return Ok(number),
        _ if is_digits => format!("the maximum is {max}"),
        _ if text.parse::<i64>().is_ok_and(|number| number < 0) => format!("the minimum is {min}"),
        _ if text.contains(['_', ',']) => "write only digits, without separators".to_owned(),
        _ => match text.parse::<f64>() {
            // Such as `1e3` or `5.0`.
            Ok(number) if number.fract() == 0.0 && number <= max as f64 => {
                format!("write {number}")
            }
            Ok(_) => "round it, or choose a longer window with a whole number of units".to_owned(),
            Err(_) => "write only digits".to_owned(),
        },
    })
}

/// Whole seconds, for which the key `window` is an alternative.
pub(crate) struct Seconds<const MAX: u64>;

impl<const MAX: u64> ValueType for Seconds<MAX> {
    type Value = u64;
    const SHAPE: Shape = Shape::Whole { min: 1, max: MAX };

    fn read(input: Input<'_>) -> Checked<u64> {
        input.scalar(&Self::SHAPE, |scalar| {
            whole(scalar, 1, MAX).map_err(|cure| as_window(&scalar.text, MAX).unwrap_or(cure))
        })
    }
}

/// The cure for seconds that are not whole or have a unit, such as `0.5` and `48h`.
fn as_window(text: &str, most: u64) -> Option<String> {
    let Ok(seconds) = text.parse::<f64>() else {
        let seconds = humantime::parse_duration(text).ok()?.as_secs();
        return Some(format!("write `window: {text}`, or the number of seconds: {seconds}"));
    };
    let micros = (seconds * 1_000_000.0).round();
    if seconds.fract() == 0.0 || !(1.0..=most as f64 * 1_000_000.0).contains(&micros) {
        return None;
    }
    Some(match micros as u64 {
        micros if micros.is_multiple_of(1_000) => format!("write `window: {}ms`", micros / 1_000),
        micros => format!("write `window: {micros}us`"),
    })
}

pub(crate) struct Time;

impl ValueType for Time {
    type Value = Duration;
    const SHAPE: Shape = Shape::Duration { bounds: None };

    fn read(input: Input<'_>) -> Checked<Duration> {
        input.scalar(&Self::SHAPE, |scalar| duration(&scalar.text))
    }
}

pub(crate) fn bounded_duration(
    input: Input<'_>,
    shape: &Shape,
    bounds: [Duration; 2],
    cure: &str,
) -> Checked<Duration> {
    input.scalar(shape, |scalar| {
        let [min, max] = bounds;
        let duration = duration(&scalar.text)?;
        (min..=max).contains(&duration).then_some(duration).ok_or_else(|| cure.to_owned())
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && text != "0" {
        return Err(format!("it has no unit: write {text}s or {text}ms"));
    }
    humantime::parse_duration(text)
        .map_err(|_| "write numbers with their units: us, ms, s, m, h or days".to_owned())
}

/// The cure for a text that is not one of these words.
pub(crate) fn unknown_word(words: &[&str], text: &str) -> String {
    match nearest(words.iter().copied(), text) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("write {}", one_of(words)),
    }
}

/// A value that no message shows.
pub(crate) struct Hidden<V>(PhantomData<V>);

impl<V: ValueType> ValueType for Hidden<V> {
    type Value = V::Value;
    const SHAPE: Shape = V::SHAPE;
    const IS_SECRET: bool = true;

    fn read(input: Input<'_>) -> Checked<V::Value> {
        V::read(input.secret())
    }
}

/// A single value, and its text for messages.
pub(crate) struct Written<T> {
    pub(crate) value: T,
    pub(crate) text: String,
    pub(crate) shown: String,
    pub(crate) is_from_variable: bool,
}

impl<V: ValueType> ValueType for Written<V> {
    type Value = Written<V::Value>;
    const SHAPE: Shape = V::SHAPE;

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        let value = V::read(input)?;
        let Value::Scalar(scalar) = &input.node.value else { return Err(Reported) };
        Ok(Written {
            value,
            text: scalar.text.clone(),
            shown: scalar.shown().escape_debug().to_string(),
            is_from_variable: scalar.written.is_some(),
        })
    }
}

pub(crate) struct List<V>(PhantomData<V>);

impl<V: ValueType> ValueType for List<V> {
    type Value = Vec<Item<V>>;
    const SHAPE: Shape = Shape::List(&V::SHAPE);

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        let Value::List(nodes) = &input.node.value else {
            return Err(input.unexpected(&Self::SHAPE));
        };
        if nodes.is_empty() {
            input.location().error(
                code::EMPTY_LIST,
                "an empty list",
                "remove the key, or add an item",
            );
        }
        let item = |(index, node): (usize, &Rc<Node>)| {
            Item::read(input.child(node, &format!("{}[{index}]", input.path)))
        };
        Ok(nodes.iter().enumerate().map(item).collect())
    }
}

/// The valid values of a list, without their places.
pub(crate) struct Values<L>(PhantomData<L>);

impl<V: ValueType, L: ValueType<Value = Vec<Item<V>>>> ValueType for Values<L> {
    type Value = Vec<V::Value>;
    const SHAPE: Shape = L::SHAPE;

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        Ok(L::read(input)?.into_iter().filter_map(|item| item.value.ok()).collect())
    }
}

pub(crate) struct OneOrMore<V>(PhantomData<V>);

impl<V: ValueType> ValueType for OneOrMore<V> {
    type Value = Vec<Item<V>>;
    const SHAPE: Shape = Shape::Either(match V::SHAPE {
        Shape::Either([one, other]) => &[*one, *other, Shape::List(&V::SHAPE)],
        _ => &[V::SHAPE, Shape::List(&V::SHAPE)],
    });

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        match input.node.value {
            Value::List(_) => List::<V>::read(input),
            _ if V::SHAPE.fits(input.node) => Ok(vec![Item::read(input)]),
            _ => Err(input.unexpected(&Self::SHAPE)),
        }
    }
}

/// A section that the file may abbreviate to a single value, which has type `A`.
pub(crate) struct Short<A, S>(PhantomData<(A, S)>);

/// A section that the file may abbreviate to a single key's value.
pub(crate) trait Shorthand: ValueType {
    fn read_short(input: Input<'_>) -> Checked<Self::Value>;
}

impl<A: ValueType, S: Shorthand> ValueType for Short<A, S> {
    type Value = S::Value;
    const SHAPE: Shape = Shape::Either(&[A::SHAPE, S::SHAPE]);

    fn read(input: Input<'_>) -> Checked<S::Value> {
        if S::SHAPE.fits(input.node) {
            S::read(input)
        } else if A::SHAPE.fits(input.node) {
            S::read_short(input)
        } else {
            Err(input.unexpected(&Self::SHAPE))
        }
    }
}

/// A value that can have two shapes: a single value, a list or a section.
pub(crate) enum Either<A, B> {
    One(A),
    Other(B),
}

impl<A: ValueType, B: ValueType> ValueType for Either<A, B> {
    type Value = Either<A::Value, B::Value>;
    const SHAPE: Shape = Shape::Either(&[A::SHAPE, B::SHAPE]);

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        if B::SHAPE.fits(input.node) {
            B::read(input).map(Either::Other)
        } else if A::SHAPE.fits(input.node) {
            A::read(input).map(Either::One)
        } else {
            Err(input.unexpected(&Self::SHAPE))
        }
    }
}

/// A section with any keys and values.
pub(crate) struct AnySection;

impl ValueType for AnySection {
    type Value = serde_json::Map<String, Json>;
    const SHAPE: Shape =
        Shape::Section(|| &Section { name: "", doc: "", properties: &[], either: &[] });

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        match json(input.node) {
            Json::Object(section) => Ok(section),
            _ => Err(input.location().error(
                code::WRONG_SHAPE,
                "expected a section",
                "write keys and values, such as {a: b}",
            )),
        }
    }
}

/// A text, a number, `true` or `false`.
pub(crate) struct JsonScalar;

impl ValueType for JsonScalar {
    type Value = Json;
    const SHAPE: Shape = Shape::Text(Format {
        what: "a text, a number, true or false",
        pattern: None,
        check: |_| Ok(()),
    });

    fn read(input: Input<'_>) -> Checked<Json> {
        input.scalar(&Self::SHAPE, |scalar| Ok(json_scalar(scalar)))
    }
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::List(nodes) => nodes.iter().map(|node| json(node)).collect(),
        Value::Map(pairs) => {
            pairs.iter().map(|pair| (pair.key.clone(), json(&pair.node))).collect()
        }
        Value::Scalar(scalar) => json_scalar(scalar),
    }
}

fn json_scalar(scalar: &Scalar) -> Json {
    let text = &*scalar.text;
    let plain = if scalar.plain { plain_scalar(text) } else { None };
    plain.unwrap_or_else(|| text.into())
}

/// Returns `None` for texts. Follows YAML's core schema.
fn plain_scalar(text: &str) -> Option<Json> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Some(Json::Null),
        "true" | "True" | "TRUE" => Some(true.into()),
        "false" | "False" | "FALSE" => Some(false.into()),
        _ => number(text).map(Json::Number),
    }
}

/// JSON has no infinite numbers, so these remain texts.
fn number(text: &str) -> Option<Number> {
    let based = |digits: &str, base| u64::from_str_radix(digits, base).ok().map(Number::from);
    // `from_str_radix` and `parse` accept signs and words that YAML does not.
    match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(digits), _) if !digits.starts_with('+') => return based(digits, 16),
        (_, Some(digits)) if !digits.starts_with('+') => return based(digits, 8),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let integer = || {
        let unsigned = text.parse::<u64>().ok().map(Number::from);
        unsigned.or_else(|| text.parse::<i64>().ok().map(Number::from))
    };
    let float = || text.parse().ok().and_then(Number::from_f64);
    is_number.then(|| integer().or_else(float)).flatten()
}

impl Shape {
    /// Whether a node has this shape, even if its value is not valid.
    fn fits(&self, node: &Node) -> bool {
        match (self, &node.value) {
            _ if node.is_null() => false,
            (Self::Either(shapes), _) => shapes.iter().any(|shape| shape.fits(node)),
            (Self::List(_), value) => matches!(value, Value::List(_)),
            (Self::Section(_), value) => matches!(value, Value::Map(_)),
            (_, value) => matches!(value, Value::Scalar(_)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_scalars_follow_the_core_schema() {
        for (text, expected) in [
            ("true", json!(true)),
            ("True", json!(true)),
            ("TRUE", json!(true)),
            ("False", json!(false)),
            ("FALSE", json!(false)),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("0", json!(0)),
            ("+1", json!(1)),
            ("-1", json!(-1)),
            ("007", json!(7)),
            ("0o17", json!(15)),
            ("0xFF", json!(255)),
            ("18446744073709551615", json!(u64::MAX)),
            (".5", json!(0.5)),
            ("-.5", json!(-0.5)),
            ("+.5", json!(0.5)),
            ("5.", json!(5.0)),
            ("1.0", json!(1.0)),
            ("1e3", json!(1000.0)),
            // Texts.
            ("yes", json!("yes")),
            ("tRUE", json!("tRUE")),
            ("true it is", json!("true it is")),
            ("+", json!("+")),
            (".", json!(".")),
            ("++1", json!("++1")),
            ("0x", json!("0x")),
            ("0x+F", json!("0x+F")),
            ("1_000", json!("1_000")),
            ("1.2.3", json!("1.2.3")),
            ("nan", json!("nan")),
            (".inf", json!(".inf")),
            ("infinity", json!("infinity")),
        ] {
            assert_eq!(plain_scalar(text).unwrap_or_else(|| text.into()), expected, "{text}");
        }
    }
}
