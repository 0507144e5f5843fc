//! Identifies clients by a value in the request: a header, cookie or query parameter.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::HeaderMap;
use http::header::COOKIE;
use percent_encoding::percent_decode_str;
use tollgate::key::{KeyError, KeySource, RequestHead, try_from_fn};

use tollgate_config::plan::{Parameter, ValuePlan};

/// The key source for `plan`. A request with two values is ambiguous, because the service might read
/// the other value.
pub(crate) fn value(plan: &ValuePlan) -> impl KeySource + use<> {
    let plan = plan.clone();
    try_from_fn(move |head: &RequestHead<'_>| {
        // Includes the name, so values from different parameters do not share a quota.
        let name =
            |value: Cow<'_, [u8]>| [plan.parameter.to_string().as_bytes(), b"=", &value].concat();
        Ok(text(&plan, head)?.map(name))
    })
}

/// The value itself.
pub(super) fn text<'a>(plan: &ValuePlan, head: &RequestHead<'a>) -> Found<Cow<'a, [u8]>> {
    if let Some(proxies) = &plan.proxies {
        let peer = head.extensions.get::<SocketAddr>();
        if !peer.is_some_and(|peer| proxies.contains(peer.ip())) {
            return Ok(None);
        }
    }
    Ok(find(&plan.parameter, head)?.filter(|value| (1..=MOST).contains(&value.len())))
}

const MOST: usize = 8 << 10;

type Found<T> = Result<Option<T>, KeyError>;

fn find<'a>(parameter: &Parameter, head: &RequestHead<'a>) -> Found<Cow<'a, [u8]>> {
    match parameter {
        Parameter::Header(name) => {
            only(head.headers.get_all(name).iter().map(|value| value.as_bytes().into()))
        }
        Parameter::Cookie(name) => only(cookies(head.headers, name.as_bytes()).map(Cow::from)),
        Parameter::Query(name) => {
            let query = head.uri.query().unwrap_or_default();
            only(parameters(query, name.as_bytes()))
        }
    }
}

fn only<T>(mut values: impl Iterator<Item = T>) -> Found<T> {
    let value = values.next();
    if values.next().is_some() { Err(KeyError::Ambiguous) } else { Ok(value) }
}

fn cookies<'a>(headers: &'a HeaderMap, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(COOKIE).into_iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        pair.trim_ascii().strip_prefix(name)?.trim_ascii_start().strip_prefix(b"=")
    })
}

/// All values of a parameter. Services decode names and values, so each spelling counts.
fn parameters<'a>(query: &'a str, name: &[u8]) -> impl Iterator<Item = Cow<'a, [u8]>> {
    query.split('&').filter_map(move |parameter| {
        let (key, value) = pair(parameter);
        (*decoded(key) == *name).then(|| decoded(value))
    })
}

/// A parameter's encoded name and value.
pub(super) fn pair(parameter: &str) -> (&str, &str) {
    parameter.split_once('=').unwrap_or((parameter, ""))
}

pub(super) fn decoded(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        Cow::Owned(percent_decode_str(&text.replace('+', " ")).collect())
    } else {
        percent_decode_str(text).into()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tollgate::key::{Key, TrustedProxies};

    use super::*;

    /// The request's key, if it names a client.
    fn key(parameter: Parameter, uri: &str, headers: &[(&str, &str)]) -> Option<Key> {
        found(parameter, uri, headers).unwrap()
    }

    fn is_ambiguous(parameter: Parameter, uri: &str, headers: &[(&str, &str)]) -> bool {
        matches!(found(parameter, uri, headers), Err(KeyError::Ambiguous))
    }

    fn found(parameter: Parameter, uri: &str, headers: &[(&str, &str)]) -> Found<Key> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let source = value(&ValuePlan { parameter, proxies: None });
        Ok(source.subject(&RequestHead::of(&request))?.map(|subject| subject.key))
    }

    #[test]
    fn repeated_values_are_ambiguous() {
        let header = || Parameter::Header(http::HeaderName::from_static("x-id"));
        let cookie = || Parameter::Cookie("id".to_owned());
        let query = || Parameter::Query("id".to_owned());
        for (parameter, uri, headers) in [
            (header(), "/", &[("x-id", "a"), ("x-id", "a")][..]),
            (header(), "/", &[("x-id", "a"), ("x-id", "")]),
            (cookie(), "/", &[("cookie", "id=a; id=b")]),
            (cookie(), "/", &[("cookie", "id=a"), ("cookie", "x=1;id=a")]),
            (query(), "/?id=a&id=a", &[]),
            (query(), "/?id=a&i%64=b", &[]),
        ] {
            assert!(is_ambiguous(parameter, uri, headers), "{uri} {headers:?}");
        }
        let two = [("x-id", "a"), ("x-id", "b"), ("cookie", "id=a; id=b")];
        assert!(!is_ambiguous(query(), "/?id=a&ID=b", &two), "only the parameter counts");
    }

    #[test]
    fn parameter_spellings_name_one_client() {
        let key = |uri| key(Parameter::Query("key".to_owned()), uri, &[]);
        let one = key("/?key=a%20b").unwrap();
        for uri in ["/?key=a+b", "/?x=1&key=a%20b&", "/?%6bey=%61%20b"] {
            assert_eq!(key(uri).as_ref(), Some(&one), "{uri}");
        }
        assert_ne!(key("/?key=a").unwrap(), one);
        for uri in ["/", "/?key", "/?key=", "/?Key=a", "/?keys=a"] {
            assert_eq!(key(uri), None, "{uri}");
        }
    }

    #[test]
    fn finds_one_of_several_cookies() {
        let key = |line| key(Parameter::Cookie("id".to_owned()), "/", &[("cookie", line)]);
        let one = key("id=a").unwrap();
        for line in ["x=1; id=a", "id=a;y=2", "xid=b; id=a; idx=c"] {
            assert_eq!(key(line).as_ref(), Some(&one), "{line}");
        }
        for line in ["", "id", "id=", "ID=a"] {
            assert_eq!(key(line), None, "{line}");
        }
    }

    #[test]
    fn places_do_not_share_clients() {
        let headers = [("x-id", "a"), ("cookie", "id=a")];
        let parameters = [
            Parameter::Header(http::HeaderName::from_static("x-id")),
            Parameter::Cookie("id".to_owned()),
            Parameter::Query("id".to_owned()),
        ];
        let keys = parameters.map(|parameter| key(parameter, "/?id=a", &headers).unwrap());
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
    }

    #[test]
    fn only_trusted_proxies_name_clients() {
        let parameter = Parameter::Header(http::HeaderName::from_static("x-user"));
        let proxies = Some(TrustedProxies::parse(["10.0.0.0/8"]).unwrap());
        let source = value(&ValuePlan { parameter, proxies });
        for (peer, is_found) in [("10.0.0.1:9", true), ("192.0.2.1:9", false)] {
            let peer: SocketAddr = peer.parse().unwrap();
            let request = Request::builder().header("x-user", "ann").extension(peer);
            let request = request.body(()).unwrap();
            let found = source.subject(&RequestHead::of(&request)).unwrap();
            assert_eq!(found.is_some(), is_found, "{peer}");
        }
    }
}
