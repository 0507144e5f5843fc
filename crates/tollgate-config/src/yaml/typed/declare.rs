//! Macros that declare sections and their values. `section!` turns one declaration into a table and
//! a struct.
//!
//! ```text
//! section! {
//!     /// The log on standard error.
//!     values Log = "log" {
//!         /// The log level.
//!         default level: LogLevel = "info",
//!     }
//! }
//! ```
//!
//! | first word of a section | its struct |
//! |---|---|
//! | `values` | has the values, and is a part of the plan |
//! | `keys` | also has their places, for checks of several keys together |
//!
//! | first word of an entry | meaning |
//! |---|---|
//! | `required`, `optional`, `default` | a key |
//! | `implied` | an optional section with defaults |
//! | `group` | the keys of another section |
//! | `others` | keys with names that the file chooses |
//!
//! The key in the file is the name of the field in camel case, or the text after `as`. The doc
//! comments are the documentation. A section with `short key` can also be written as the value of
//! this key; see [`Short`](super::Short). `either` lists keys that exclude each other. A key with
//! `where other: "reason"` has no effect unless `other` is set, and with
//! `where other = ["value"]: "reason"` unless `other` has one of these values.

pub(crate) const fn camel_case<const N: usize>(name: &str) -> [u8; N] {
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

pub(crate) const fn camel_case_len(name: &str) -> usize {
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
        const KEY: [u8; $crate::yaml::typed::camel_case_len(NAME)] = $crate::yaml::typed::camel_case(NAME);
        match std::str::from_utf8(&KEY) {
            Ok(key) => key,
            Err(_) => NAME,
        }
    }};
    (@key $field:ident $key:literal) => { $key };

    (@type values optional $type:ty) => { Option<<$type as $crate::yaml::typed::ValueType>::Value> };
    (@type values $mode:ident $type:ty) => { <$type as $crate::yaml::typed::ValueType>::Value };
    (@type keys optional $type:ty) => { $crate::yaml::typed::Key<Option<<$type as $crate::yaml::typed::ValueType>::Value>> };
    (@type keys group $type:ty) => { $type };
    (@type keys others $type:ty) => { $type };
    (@type keys $mode:ident $type:ty) => { $crate::yaml::typed::Key<<$type as $crate::yaml::typed::ValueType>::Value> };

    (@property group $type:ty, $key:expr, $doc:expr, where $needs:expr) => { $crate::yaml::spec::Property::Group(<$type>::table) };
    (@property others $type:ty, $key:expr, $doc:expr, where $needs:expr) => {
        $crate::yaml::spec::Property::Others(<$type>::others($doc))
    };
    (@property $mode:ident $type:ty, $key:expr, $doc:expr, $($default:literal)? where $needs:expr) => {
        $crate::yaml::spec::Property::Key($crate::yaml::spec::Field {
            key: $key,
            shape: <$type as $crate::yaml::typed::ValueType>::SHAPE,
            presence: section!(@presence $mode $($default)?),
            doc: $doc,
            secret: <$type as $crate::yaml::typed::ValueType>::IS_SECRET,
            needs: $needs,
        })
    };
    (@needs) => { None };
    (@needs $other:ident [$($value:literal)*] $why:literal) => {
        Some($crate::yaml::spec::Needs { key: section!(@key $other), values: &[$($value),*], why: $why })
    };
    (@presence required) => { $crate::yaml::spec::Presence::Required };
    (@presence optional) => { $crate::yaml::spec::Presence::Optional };
    (@presence implied) => { $crate::yaml::spec::Presence::Optional };
    (@presence default $default:literal) => { $crate::yaml::spec::Presence::Default($default) };

    (@read group $type:ty, $input:ident, $key:expr,) => { <$type>::of($input) };
    (@read others $type:ty, $input:ident, $key:expr,) => { $input.others() };
    (@read default $type:ty, $input:ident, $key:expr, $default:literal) => {
        $input.default::<$type>($key, $default)
    };
    (@read $mode:ident $type:ty, $input:ident, $key:expr,) => { $input.$mode::<$type>($key) };

    (@struct values $name:ident $(#[$of_struct:meta])* {$(
        $(#[$doc:meta])* $mode:ident $field:ident $key:tt: $type:ty $(= $default:literal)?,
    )*}) => {
        $(#[$of_struct])*
        #[derive(Clone, Debug)]
        #[allow(private_interfaces, reason = "only the names of the types are private, not their values")]
        pub struct $name {
            $($(#[$doc])* pub $field: section!(@type values $mode $type),)*
        }

        impl $name {
            fn of(input: &$crate::yaml::typed::SectionInput<'_>) -> $crate::yaml::problem::Checked<Self> {
                $(let $field = section!(@read $mode $type, input, $key, $($default)?);)*
                Ok(Self { $($field: $field.into_value()?,)* })
            }
        }
    };
    (@struct keys $name:ident $(#[$of_struct:meta])* {$(
        $(#[$doc:meta])* $mode:ident $field:ident $key:tt: $type:ty $(= $default:literal)?,
    )*}) => {
        $(#[$of_struct])*
        pub(crate) struct $name {
            #[allow(dead_code, reason = "problems of a key need no more than its own place")]
            pub(crate) info: $crate::yaml::typed::SectionInfo,
            $($(#[$doc])* pub(crate) $field: section!(@type keys $mode $type),)*
        }

        impl $name {
            pub(crate) fn of(input: &$crate::yaml::typed::SectionInput<'_>) -> Self {
                Self {
                    info: input.info(),
                    $($field: section!(@read $mode $type, input, $key, $($default)?),)*
                }
            }
        }
    };

    (@value values) => { Self };
    (@value keys) => { Box<Self> };

    (@of values $input:expr) => { Self::of($input) };
    (@of keys $input:expr) => { Ok(Box::new(Self::of($input))) };

    ($(
        $(#[doc = $about:literal])*
        $(#[derive($($derive:ident),*)])?
        $sort:ident $name:ident = $title:literal
            $(short $short:ident)? $(either $([$($either:ident)*])*)?
        {
            $(
                $(#[doc = $doc:literal])*
                $mode:ident $field:ident $(as $key:literal)? : $type:ty $(= $default:literal)?
                    $(where $other:ident $(= [$($value:literal)*])?: $why:literal)?,
            )*
        }
    )*) => { $(
        section!(@struct $sort $name $(#[doc = $about])* $(#[derive($($derive),*)])? {$(
            $(#[doc = $doc])*
            $mode $field (section!(@key $field $($key)?)): $type $(= $default)?,
        )*});

        impl $name {
            pub(crate) fn table() -> &'static $crate::yaml::spec::Section {
                static TABLE: $crate::yaml::spec::Section = $crate::yaml::spec::Section {
                    name: $title,
                    doc: concat!($($about),*).trim_ascii_start(),
                    properties: &[$(section!(
                        @property $mode $type,
                        section!(@key $field $($key)?),
                        concat!($($doc),*).trim_ascii_start(),
                        $($default)?
                        where section!(@needs $($other [$($($value)*)?] $why)?)
                    )),*],
                    either: &[$($(&[$(section!(@key $either)),*]),*)?],
                };
                &TABLE
            }
        }

        impl $crate::yaml::typed::ValueType for $name {
            type Value = section!(@value $sort);
            const SHAPE: $crate::yaml::spec::Shape = $crate::yaml::spec::Shape::Section(Self::table);

            fn read(input: $crate::yaml::typed::Input<'_>) -> $crate::yaml::problem::Checked<Self::Value> {
                section!(@of $sort &$crate::yaml::typed::SectionInput::of(input, Self::table)?)
            }
        }

        $(impl $crate::yaml::typed::Shorthand for $name {
            fn read_short(input: $crate::yaml::typed::Input<'_>) -> $crate::yaml::problem::Checked<Self::Value> {
                let key = section!(@key $short);
                section!(@of $sort &$crate::yaml::typed::SectionInput::short(input, Self::table(), key))
            }
        })?
    )* };
}
pub(crate) use section;

/// Keywords, each with a value and a meaning.
macro_rules! words {
    ($(
        $(#[doc = $about:literal])*
        $name:ident -> $value:ty {
            $($(#[doc = $doc:literal])* $word:literal => $of:expr,)*
        }
    )*) => { $(
        $(#[doc = $about])*
        pub(crate) struct $name;

        impl $crate::yaml::typed::ValueType for $name {
            type Value = $value;
            const SHAPE: $crate::yaml::spec::Shape = $crate::yaml::spec::Shape::Word(
                &[$(($word, concat!($($doc),*).trim_ascii_start())),*]
            );

            fn read(input: $crate::yaml::typed::Input<'_>) -> $crate::yaml::problem::Checked<$value> {
                input.scalar(&Self::SHAPE, |scalar| match &*scalar.text {
                    $($word => Ok($of),)*
                    text => Err($crate::yaml::typed::unknown_word(&[$($word),*], text)),
                })
            }
        }
    )* };
}
pub(crate) use words;

/// Text formats: a description, a pattern for the JSON Schema, and a parser.
macro_rules! texts {
    (@pattern) => { None };
    (@pattern $pattern:literal) => { Some($pattern) };
    ($(
        $(#[doc = $about:literal])*
        $name:ident($text:ident) -> $value:ty: $what:literal $(, $pattern:literal)? => $parse:expr;
    )*) => { $(
        $(#[doc = $about])*
        pub(crate) struct $name;

        impl $crate::yaml::typed::Text for $name {
            type Value = $value;
            const FORMAT: $crate::yaml::spec::Format = $crate::yaml::spec::Format {
                what: $what,
                pattern: texts!(@pattern $($pattern)?),
                check: |text| <Self as $crate::yaml::typed::Text>::parse(text).map(drop),
            };

            fn parse($text: &str) -> Result<$value, String> {
                $parse
            }
        }
    )* };
}
pub(crate) use texts;

/// Durations between two bounds in milliseconds, and the reason for the bounds.
macro_rules! durations {
    ($($name:ident: $min:literal to $max:literal, $why:literal;)*) => { $(
        pub(crate) struct $name;

        impl $name {
            const BOUNDS: [std::time::Duration; 2] =
                [std::time::Duration::from_millis($min), std::time::Duration::from_millis($max)];
        }

        impl $crate::yaml::typed::ValueType for $name {
            type Value = std::time::Duration;
            const SHAPE: $crate::yaml::spec::Shape = $crate::yaml::spec::Shape::Duration { bounds: Some(Self::BOUNDS) };

            fn read(input: $crate::yaml::typed::Input<'_>) -> $crate::yaml::problem::Checked<std::time::Duration> {
                $crate::yaml::typed::bounded_duration(input, &Self::SHAPE, Self::BOUNDS, $why)
            }
        }
    )* };
}
pub(crate) use durations;
