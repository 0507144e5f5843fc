use std::fmt;
use std::sync::Arc;

use super::{KeyError, KeySource, Subject, SubjectName};
use crate::head::RequestHead;

/// Key source: the first of several sources that finds a key. Created by [`chain`].
#[derive(Clone)]
pub struct Chain(Arc<[Arc<dyn KeySource>]>);

/// Makes a chain from a list of key sources that is known only at run time. Otherwise use
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

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        let found = self.0.iter().find(|source| !matches!(source.subject(head), Ok(None)));
        found?.name(head)
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} sources)", self.0.len())
    }
}
