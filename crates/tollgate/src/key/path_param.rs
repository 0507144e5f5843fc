use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName, route};
use crate::head::RequestHead;

/// Key source: a parameter of the matched route, such as `tenant` in `/tenants/{tenant}/orders`.
/// Each value has its own quota.
///
/// The value is percent-decoded, so `acme` and `%61cme` are the same value. A client chooses it, so
/// use it alongside a limit by address, or behind a layer that checks the client's access to the
/// tenant.
///
/// It uses the same route as [`MatchedRoute`](super::MatchedRoute). A request without a matched
/// route, or without this parameter, has no key.
///
/// ```
/// let per_tenant = tollgate::key::PathParam::new("tenant");
/// ```
#[derive(Clone, Debug)]
pub struct PathParam(Box<str>);

impl PathParam {
    /// Uses the route parameter with this name, without braces. For `{*rest}` the name is `rest`.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self(name.into())
    }

    fn value<'a>(&self, head: &RequestHead<'a>) -> Option<Cow<'a, [u8]>> {
        let pattern = route::pattern(head.extensions)?;
        let mut rest = path(head);
        for part in pattern.split('/') {
            let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            if name.and_then(|name| name.strip_prefix('*')) == Some(&*self.0) {
                return (!rest.is_empty()).then(|| percent_decode_str(rest).into());
            }
            let (segment, after) = rest.split_once('/').unwrap_or((rest, ""));
            if name == Some(&*self.0) {
                return (!segment.is_empty()).then(|| percent_decode_str(segment).into());
            }
            rest = after;
        }
        None
    }

    fn subject_of(&self, value: &[u8]) -> Subject {
        let key = joined(Tag::PathParam, &[self.0.as_bytes(), value]);
        Subject { kind: SubjectKind::Other, key }
    }
}

impl KeySource for PathParam {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(self.value(head).map(|value| self.subject_of(&value)))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::Other(value) = name else { return None };
        Some(self.subject_of(value.as_bytes()))
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        String::from_utf8(self.value(head)?.into_owned()).ok()
    }
}

/// Returns the path that the pattern matches. axum's nested routers strip their prefix from the
/// URI.
fn path<'a>(head: &RequestHead<'a>) -> &'a str {
    #[cfg(feature = "axum")]
    if let Some(original) = head.extensions.get::<axum::extract::OriginalUri>() {
        return original.path();
    }
    head.uri.path()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::RoutePattern;

    #[test]
    fn parameter_is_decoded_path_segment() {
        for (pattern, path, expected) in [
            ("/tenants/{tenant}/orders", "/tenants/acme/orders", Some("acme")),
            ("/tenants/{tenant}/orders", "/tenants/%61cm%65/orders", Some("acme")),
            ("/tenants/{tenant}", "/tenants/a%2Fb", Some("a/b")),
            ("/tenants/{tenant}", "/tenants/100%", Some("100%")),
            ("/{*tenant}", "/a/b%20c", Some("a/b c")),
            ("/tenants/{tenant}", "/tenants/", None),
            ("/users/{user}", "/users/ann", None),
        ] {
            let request = Request::builder().uri(path).extension(RoutePattern::new(pattern));
            let request = request.body(()).unwrap();
            let source = PathParam::new("tenant");
            let found = source.subject(&RequestHead::of(&request)).unwrap();
            let named = expected.map(|it| SubjectName::Other(it.to_owned()));
            assert_eq!(found, named.and_then(|name| source.named(&name)), "{pattern} {path}");
        }
        let request = Request::builder().uri("/tenants/acme").body(()).unwrap();
        let found = PathParam::new("tenant").subject(&RequestHead::of(&request)).unwrap();
        assert_eq!(found, None, "no router has matched a route");
    }
}
