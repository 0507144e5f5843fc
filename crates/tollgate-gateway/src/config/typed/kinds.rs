//! The general kinds of values.

use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

use super::super::form::{flag, whole};
use super::super::format;
use super::super::spec::Shape;
use super::super::tree::{self, Node};
use super::{At, Checked, Item, Kind, Reported, Text};

pub(in crate::config) struct Flag;

impl Kind for Flag {
    type Value = bool;
    const SHAPE: Shape = Shape::Flag;

    fn read(at: At<'_>) -> Checked<bool> {
        flag(at.scalar()?).ok_or(Reported)
    }
}

pub(in crate::config) struct Whole<const MIN: u64, const MAX: u64, T = u64>(PhantomData<T>);

impl<const MIN: u64, const MAX: u64, T: TryFrom<u64>> Kind for Whole<MIN, MAX, T> {
    type Value = T;
    const SHAPE: Shape = Shape::Whole { min: MIN, max: MAX };

    fn read(at: At<'_>) -> Checked<T> {
        let number = whole(at.scalar()?).filter(|number| (MIN..=MAX).contains(number));
        number.and_then(|number| number.try_into().ok()).ok_or(Reported)
    }
}

pub(in crate::config) struct Time;

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

pub(in crate::config) struct Hidden<K>(PhantomData<K>);

impl<K: Kind> Kind for Hidden<K> {
    type Value = K::Value;
    const SHAPE: Shape = K::SHAPE;
    const IS_SECRET: bool = true;

    fn read(at: At<'_>) -> Checked<K::Value> {
        K::read(at)
    }
}

/// A single value with its text as messages may show it.
pub(in crate::config) struct Written<T> {
    pub(in crate::config) value: T,
    pub(in crate::config) text: String,
    pub(in crate::config) shown: String,
    pub(in crate::config) is_from_variable: bool,
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

pub(in crate::config) struct List<K>(PhantomData<K>);

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

pub(in crate::config) struct OneOrMore<K>(PhantomData<K>);

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
pub(in crate::config) enum Either<A, B> {
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
