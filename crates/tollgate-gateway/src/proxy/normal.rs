//! What paths in their normal form look like, byte by byte, for whoever asks whether one can
//! look like this at all.

use super::path::{Ambiguous, hex, is_literal};

/// What a normal form is at an end of some of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Nothing yet.
    Begin,
    /// A segment that has just begun, or the slash at the end.
    Slash,
    /// A segment that is `.` so far.
    Dot,
    /// One that is `..` so far.
    Dots,
    /// Within any other.
    Segment,
    /// After `%`.
    Escape,
    /// After `%` and its first digit.
    EscapeOf(u8),
}

/// What normal forms never have. One of these let pass tells why a path is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Another beginning than `/`.
    Start,
    /// `?` or `#`.
    Query,
    /// `//`.
    Slashes,
    /// `;`.
    Parameters,
    /// `%c3`.
    LowerCase,
    /// `%41`.
    NeedlessEscape,
    /// The segments `.` and `..`.
    Dots,
    /// `%2F` and its like, where they are refused.
    Ambiguous,
    /// A space, `é`, or a `%` that escapes nothing.
    Unescaped,
    /// All of these.
    Anything,
}

/// Normal forms, and what is let pass besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) ambiguous: Ambiguous,
    pub(crate) beyond: Option<Beyond>,
}

impl Part {
    /// Whether a path may end here.
    pub(crate) fn may_end(self, shape: Shape) -> bool {
        match self {
            Self::Slash | Self::Segment => true,
            Self::Begin => shape.allows(Beyond::Start),
            Self::Dot | Self::Dots => shape.allows(Beyond::Dots),
            Self::Escape | Self::EscapeOf(_) => shape.allows(Beyond::Unescaped),
        }
    }

    /// What follows with this byte, if there is such a path. To each that follows there is an
    /// end.
    pub(crate) fn then(self, byte: u8, shape: Shape) -> Option<Self> {
        match self {
            Self::Begin if byte == b'/' => Some(Self::Slash),
            Self::Begin => shape.allows(Beyond::Start).then(|| Self::Slash.then(byte, shape))?,
            Self::Escape => match hex(byte) {
                Some(_) if byte.is_ascii_lowercase() && !shape.allows(Beyond::LowerCase) => None,
                // All of these are letters.
                Some(4) if !shape.allows(Beyond::NeedlessEscape) => None,
                Some(high) => Some(Self::EscapeOf(high)),
                None => self.unescaped(byte, shape),
            },
            Self::EscapeOf(high) => match hex(byte) {
                Some(_) if byte.is_ascii_lowercase() && !shape.allows(Beyond::LowerCase) => None,
                Some(low) => shape.has_escape(high << 4 | low).then_some(Self::Segment),
                None => self.unescaped(byte, shape),
            },
            _ => self.within(byte, shape),
        }
    }

    /// The same where no escape has begun.
    fn within(self, byte: u8, shape: Shape) -> Option<Self> {
        match (byte, self) {
            (b'/', Self::Segment) => Some(Self::Slash),
            (b'/', Self::Slash) => shape.allows(Beyond::Slashes).then_some(Self::Slash),
            (b'/', _) => shape.allows(Beyond::Dots).then_some(Self::Slash),
            (b'.', Self::Slash) => Some(Self::Dot),
            (b'.', Self::Dot) => Some(Self::Dots),
            (b'%', _) => Some(Self::Escape),
            (b';', _) => shape.allows(Beyond::Parameters).then_some(Self::Segment),
            (b'?' | b'#', _) => shape.allows(Beyond::Query).then_some(Self::Segment),
            _ if is_literal(byte) => Some(Self::Segment),
            _ => shape.allows(Beyond::Unescaped).then_some(Self::Segment),
        }
    }

    /// After a sign that has escaped nothing.
    fn unescaped(self, byte: u8, shape: Shape) -> Option<Self> {
        shape.allows(Beyond::Unescaped).then(|| Self::Segment.within(byte, shape))?
    }
}

impl Shape {
    fn allows(self, beyond: Beyond) -> bool {
        self.beyond == Some(beyond) || self.beyond == Some(Beyond::Anything)
    }

    /// Whether this byte stands escaped in a path.
    fn has_escape(self, byte: u8) -> bool {
        match byte {
            _ if is_literal(byte) => self.allows(Beyond::NeedlessEscape),
            b'/' | b'\\' | 0 => self.ambiguous == Ambiguous::Keep || self.allows(Beyond::Ambiguous),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::path::normalise;

    fn is_normal(path: &str, ambiguous: Ambiguous) -> bool {
        let shape = Shape { ambiguous, beyond: None };
        let end = path.bytes().try_fold(Part::Begin, |part, byte| part.then(byte, shape));
        end.is_some_and(|part| part.may_end(shape))
    }

    proptest! {
        #[test]
        fn normal_forms_are_what_normalise_leaves_as_it_is(path in "/?[a-c./;?# %\\\\02345cCeEfF{ü]{0,12}") {
            for ambiguous in [Ambiguous::Refuse, Ambiguous::Keep] {
                let normal = normalise(&path, ambiguous);
                prop_assert_eq!(
                    is_normal(&path, ambiguous),
                    normal.as_deref() == Ok(path.as_str()),
                    "{:?}", ambiguous
                );
                if let Ok(normal) = normal {
                    prop_assert!(is_normal(&normal, ambiguous), "{}", normal);
                }
            }
        }

        /// So that what is matched before its end is matched by a path.
        #[test]
        fn every_part_of_a_path_has_an_end(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let shape = Shape { ambiguous: Ambiguous::Refuse, beyond: None };
            let part = bytes.iter().try_fold(Part::Begin, |part, byte| part.then(*byte, shape));
            if let Some(part) = part {
                let ends = ["", "/", "a", "0a", "20", "B", "0"].iter().any(|end| {
                    let end = end.bytes().try_fold(part, |part, byte| part.then(byte, shape));
                    end.is_some_and(|part| part.may_end(shape))
                });
                prop_assert!(ends, "{:?}", part);
            }
        }
    }
}
