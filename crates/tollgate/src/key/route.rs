use std::sync::Arc;

use http::Extensions;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Request extension: the matched route's pattern (`/users/{id}`), for any router. With the feature
/// `axum`, `MatchedPath` has the same effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutePattern(pub Arc<str>);

impl RoutePattern {
    /// Makes the extension for this route pattern.
    pub fn new(pattern: impl Into<Arc<str>>) -> Self {
        Self(pattern.into())
    }
}

/// Key source: the matched route. Each pattern has its own quota. In a tuple, each subject has its
/// own quota for each route.
///
/// The key is the pattern, never the path: `/users/7`, `//users/7` and `/users/%37` are three paths
/// but one route.
///
/// It reads a [`RoutePattern`], or axum's `MatchedPath` (feature `axum`), which exists in layers
/// added with `Router::layer` and `route_layer`, but not in layers around the router. Requests
/// without a matched route have no key.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchedRoute;

impl KeySource for MatchedRoute {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(pattern(head.extensions).map(subject))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::Route(pattern) = name else { return None };
        Some(subject(pattern))
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        pattern(head.extensions).map(str::to_owned)
    }
}

fn subject(pattern: &str) -> Subject {
    Subject { kind: SubjectKind::Other, key: joined(Tag::Route, &[pattern.as_bytes()]) }
}

pub(crate) fn pattern(extensions: &Extensions) -> Option<&str> {
    if let Some(RoutePattern(pattern)) = extensions.get() {
        return Some(pattern);
    }
    #[cfg(feature = "axum")]
    if let Some(path) = extensions.get::<axum::extract::MatchedPath>() {
        return Some(path.as_str());
    }
    None
}
