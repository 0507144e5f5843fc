//! Places in the file at which problems are reported.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;

use super::super::files::{FileContents, NamedFiles};
use super::super::place::{Place, Span, join};
use super::super::problem::{Checked, Problems, Reported};

#[derive(Clone)]
pub(in crate::config) struct Location {
    pub(in crate::config) place: Place,
    pub(super) problems: Rc<Problems>,
}

impl Location {
    pub(in crate::config) fn error(
        &self,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Reported {
        self.problems.error(self.place.clone(), what, cure)
    }

    pub(in crate::config) fn warn(&self, what: impl Into<String>, cure: impl Into<String>) {
        self.problems.warn(self.place.clone(), what, cure);
    }

    /// Adds the file that the value at this place names.
    pub(in crate::config) fn names(&self, file: PathBuf, contents: FileContents) {
        self.problems.names(NamedFiles { files: vec![(file, self.place.clone())], contents });
    }

    pub(in crate::config) fn names_all(&self, named: NamedFiles) {
        self.problems.names(named);
    }
}

/// A section, for problems that belong to none of its keys.
pub(in crate::config) struct SectionInfo {
    pub(in crate::config) location: Rc<Location>,
    /// Whether it has unknown keys. One of them may be a misspelled known key.
    pub(in crate::config) has_unknown: bool,
}

/// A key of a section, and where the file sets it.
pub(in crate::config) struct Setting {
    pub(in crate::config) key: &'static str,
    pub(super) section: Rc<Location>,
    /// The spans of key and value, if the key is set.
    pub(super) spans: Option<(Span, Span)>,
}

impl Setting {
    pub(in crate::config) const fn is_set(&self) -> bool {
        self.spans.is_some()
    }

    /// The value, or the section if the key is not set.
    pub(in crate::config) fn location(&self) -> Location {
        match &self.spans {
            Some((_, value)) => self.at(value),
            None => (*self.section).clone(),
        }
    }

    /// The key itself, without its value.
    pub(in crate::config) fn name(&self) -> Location {
        self.at(self.spans.as_ref().map_or(&self.section.place.span, |(key, _)| key))
    }

    fn at(&self, span: &Span) -> Location {
        let place = Place { span: span.clone(), path: join(&self.section.place.path, self.key) };
        Location { place, problems: Rc::clone(&self.section.problems) }
    }

    pub(in crate::config) fn error(
        &self,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Reported {
        self.location().error(what, cure)
    }

    pub(in crate::config) fn warn(&self, what: impl Into<String>, cure: impl Into<String>) {
        self.location().warn(what, cure);
    }

    /// Warns that the key has no effect, if it is set.
    pub(in crate::config) fn no_effect(&self, context: impl fmt::Display, why: &str) {
        if self.is_set() {
            let what = format!("`{}` has no effect {context}", self.key);
            self.name().warn(what, format!("remove it: {why}"));
        }
    }
}

/// A key and its value.
pub(in crate::config) struct Key<T> {
    pub(super) setting: Setting,
    pub(super) value: Checked<T>,
}

impl<T> Key<T> {
    pub(in crate::config) fn get(&self) -> Checked<&T> {
        self.value.as_ref().map_err(|reported| *reported)
    }
}

impl<T: Clone> Key<T> {
    pub(in crate::config) fn value(&self) -> Checked<T> {
        self.value.clone()
    }
}

impl<T> Key<Option<T>> {
    /// The value, if the key is set and its value is valid.
    pub(in crate::config) fn there(&self) -> Option<&T> {
        self.get().ok().and_then(Option::as_ref)
    }
}

impl<T> Key<Option<Vec<T>>> {
    /// The items; none if the key is not set.
    pub(in crate::config) fn items(&self) -> Checked<&[T]> {
        Ok(self.get()?.as_deref().unwrap_or_default())
    }
}

impl<T> Deref for Key<T> {
    type Target = Setting;

    fn deref(&self) -> &Setting {
        &self.setting
    }
}
