//! Combines several sources: a quota per user *and* route.
//!
//! All parts must be present. Their order affects only the key. The tuple's kind is the first kind
//! that identifies a client, so metrics count (route, address) as addresses.

use smallvec::SmallVec;
use tollgate_core::Key;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

impl Subject {
    /// Combines subjects in this order, like a tuple of key sources. Different lists never
    /// share a key, whichever bytes clients choose: each part's length precedes it.
    pub fn of_parts(parts: &[Self]) -> Self {
        let kind = |wanted: fn(SubjectKind) -> bool| {
            let mut kinds = parts.iter().map(|part| part.kind);
            kinds.find(|kind| wanted(*kind))
        };
        let kind = kind(|kind| !matches!(kind, SubjectKind::Global | SubjectKind::Other))
            .or_else(|| kind(|kind| kind != SubjectKind::Global))
            .unwrap_or(SubjectKind::Global);
        // Only the keys determine quotas, because closures can have any kind.
        let key = if parts.iter().all(|part| part.key == Key::GLOBAL) {
            Key::GLOBAL
        } else {
            let keys: SmallVec<[_; 4]> = parts.iter().map(|part| part.key.as_bytes()).collect();
            let keys: SmallVec<[&[u8]; 4]> = keys.iter().map(|key| &**key).collect();
            joined(Tag::Tuple, &keys)
        };
        Self { kind, key }
    }
}

/// Finds a part by its name. A part that has no other name is named by its key.
fn part(source: &impl KeySource, name: &SubjectName) -> Option<Subject> {
    match name {
        SubjectName::Key(key) => Some(Subject { kind: SubjectKind::Other, key: key.clone() }),
        name => source.named(name),
    }
}

macro_rules! tuple_of_sources {
    ($($source:ident)+) => {
        impl<$($source: KeySource),+> KeySource for ($($source,)+) {
            fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
                #[expect(non_snake_case, reason = "a part is named as its type")]
                let ($($source,)+) = self;
                $(
                    #[expect(non_snake_case, reason = "a part is named as its type")]
                    let Some($source) = $source.subject(head)? else {
                        return Ok(None);
                    };
                )+
                Ok(Some(Subject::of_parts(&[$($source),+])))
            }

            fn can_be_missing(&self) -> bool {
                #[expect(non_snake_case, reason = "a part is named as its type")]
                let ($($source,)+) = self;
                $($source.can_be_missing())||+
            }

            fn named(&self, name: &SubjectName) -> Option<Subject> {
                let SubjectName::Several(names) = name else { return None };
                let mut names = names.iter();
                #[expect(non_snake_case, reason = "a part is named as its type")]
                let ($($source,)+) = self;
                let parts = [$(part($source, names.next()?)?),+];
                names.next().is_none().then(|| Subject::of_parts(&parts))
            }
        }
    };
}

tuple_of_sources!(A B);
tuple_of_sources!(A B C);
tuple_of_sources!(A B C D);
