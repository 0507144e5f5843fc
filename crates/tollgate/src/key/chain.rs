use std::fmt;
use std::sync::Arc;

use super::{KeyError, KeySource, Subject, SubjectName};
use crate::head::RequestHead;

/// Key source: a second source where the first finds no key. Made by [`KeySource::or`].
///
/// Keys of different sources differ by their tags, except those of two closures or two
/// [`FromExtension`](super::FromExtension)s.
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeySource, B: KeySource> KeySource for Or<A, B> {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        match self.first.subject(head)? {
            None => self.second.subject(head),
            found => Ok(found),
        }
    }

    fn can_be_missing(&self) -> bool {
        self.first.can_be_missing() && self.second.can_be_missing()
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        self.first.named(name).or_else(|| self.second.named(name))
    }
}

/// Key source: the first of several sources that finds a key. Made by [`chain`].
#[derive(Clone)]
pub struct Chain(Arc<[Arc<dyn KeySource>]>);

/// Makes a chain of key sources whose length is known at run time only. In code use
/// [`KeySource::or`].
pub fn chain(sources: impl IntoIterator<Item = Arc<dyn KeySource>>) -> Chain {
    Chain(sources.into_iter().collect())
}

impl KeySource for Chain {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        for source in &*self.0 {
            if let Some(subject) = source.subject(head)? {
                return Ok(Some(subject));
            }
        }
        Ok(None)
    }

    fn can_be_missing(&self) -> bool {
        self.0.iter().all(|source| source.can_be_missing())
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        self.0.iter().find_map(|source| source.named(name))
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} sources)", self.0.len())
    }
}
