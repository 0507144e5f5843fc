//! Places in the file at which problems are reported.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use crate::code::{self, Code};
use crate::yaml::named_files::FileError;
use crate::yaml::place::{Place, Span};
use crate::yaml::problem::{Checked, Problems, Reported};

#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(super) problems: Rc<Problems>,
}

impl Location {
    pub(crate) fn error(
        &self,
        code: Code,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Reported {
        self.problems.error(code, self.place.clone(), what, cure)
    }

    pub(crate) fn warn(&self, code: Code, what: impl Into<String>, cure: impl Into<String>) {
        self.problems.warn(code, self.place.clone(), what, cure);
    }

    /// Sets how the files that this value names are checked.
    pub(crate) fn check_with<E: IntoIterator<Item = FileError>>(
        &self,
        check: impl Fn() -> E + Send + Sync + 'static,
    ) {
        let check = Box::new(move || check().into_iter().collect());
        self.problems.check_with(&self.place, true, check);
    }

    /// The same for files that have their own watcher.
    pub(crate) fn check_without_reload<E: IntoIterator<Item = FileError>>(
        &self,
        check: impl Fn() -> E + Send + Sync + 'static,
    ) {
        let check = Box::new(move || check().into_iter().collect());
        self.problems.check_with(&self.place, false, check);
    }
}

/// A section, for problems that do not concern a particular key.
pub(crate) struct SectionInfo {
    pub(crate) location: Rc<Location>,
    /// Whether it has unknown keys, which may be misspelled.
    pub(crate) has_unknown: bool,
    /// The known keys that are set.
    pub(crate) keys: Vec<(&'static str, Location)>,
}

/// A key in a section, and where the file sets it.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    pub(super) path: String,
    pub(super) section: Rc<Location>,
    /// The spans of key and value, if the key is set.
    pub(super) spans: Option<(Span, Span)>,
}

impl Setting {
    pub(crate) const fn is_set(&self) -> bool {
        self.spans.is_some()
    }

    /// The value, or the section if the key is not set.
    pub(crate) fn location(&self) -> Location {
        match &self.spans {
            Some((_, value)) => self.at(value),
            None => (*self.section).clone(),
        }
    }

    /// The key itself, without its value.
    pub(crate) fn name(&self) -> Location {
        self.at(self.spans.as_ref().map_or(&self.section.place.span, |(key, _)| key))
    }

    fn at(&self, span: &Span) -> Location {
        let place = Place { span: span.clone(), path: self.path.clone() };
        Location { place, problems: Rc::clone(&self.section.problems) }
    }

    pub(crate) fn error(
        &self,
        code: Code,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Reported {
        self.location().error(code, what, cure)
    }

    pub(crate) fn warn(&self, code: Code, what: impl Into<String>, cure: impl Into<String>) {
        self.location().warn(code, what, cure);
    }

    /// Warns that the key has no effect, if it is set.
    pub(crate) fn no_effect(&self, context: impl fmt::Display, why: &str) {
        if self.is_set() {
            let what = format!("`{}` has no effect {context}", self.key);
            self.name().warn(code::NO_EFFECT, what, format!("remove it: {why}"));
        }
    }
}

/// A key and its value.
pub(crate) struct Key<T> {
    pub(super) setting: Setting,
    pub(super) value: Checked<T>,
}

impl<T> Key<T> {
    pub(crate) fn get(&self) -> Checked<&T> {
        self.value.as_ref().map_err(|reported| *reported)
    }

    pub(crate) fn into_value(self) -> Checked<T> {
        self.value
    }
}

impl<T: Clone> Key<T> {
    pub(crate) fn value(&self) -> Checked<T> {
        self.value.clone()
    }
}

impl<T> Key<Option<T>> {
    /// The value, if the key is set and its value is valid.
    pub(crate) fn there(&self) -> Option<&T> {
        self.get().ok().and_then(Option::as_ref)
    }
}

impl<T: Clone> Key<Option<T>> {
    /// The value, if the key is set. If not, the error is reported elsewhere.
    pub(crate) fn given(&self) -> Checked<T> {
        self.value()?.ok_or(Reported)
    }
}

impl<T> Key<Option<Vec<T>>> {
    /// The items; empty if the key is not set.
    pub(crate) fn items(&self) -> Checked<&[T]> {
        Ok(self.get()?.as_deref().unwrap_or_default())
    }
}

impl<T> Deref for Key<T> {
    type Target = Setting;

    fn deref(&self) -> &Setting {
        &self.setting
    }
}
