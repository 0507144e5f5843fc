//! What single values have to look like.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::uri::{Scheme, Uri};
use http::{HeaderName, HeaderValue, Method};
use tollgate::access::SubjectList;
use tollgate::key::TrustedProxies;
use tollgate::{RedisStore, calendar};

use super::spec::Format;
use crate::plan::{PathMatch, Statuses};
use crate::proxy::path::{Ambiguous, normalise};

/// Any text but an empty one.
pub(super) const TEXT: Format = Format {
    pattern: None,
    what: "a text",
    check: |text| if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(()) },
};

/// The name of a policy, which stands in header fields.
pub(super) const IDENTIFIER: Format = Format {
    pattern: Some(r"^[ -~]{1,128}$"),
    what: "a name of 1 to 128 printable ASCII characters",
    check: |text| {
        let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if !printable || text.is_empty() || text.len() > tollgate::Policy::MAX_NAME {
            return Err("clients read it in a header field, which holds nothing else".to_owned());
        }
        Ok(())
    },
};

/// An address to listen on.
pub(super) const ADDRESS: Format = Format {
    pattern: None,
    what: "an address with a port, as 0.0.0.0:8080 or [::]:8080",
    check: |text| {
        text.parse::<SocketAddr>().map(drop).map_err(|_| {
            match text.trim_start_matches(':').parse::<u16>() {
                Ok(port) => format!(
                    "a port alone does not say which interface is meant: write 0.0.0.0:{port} for \
                     all of them, or 127.0.0.1:{port}"
                ),
                Err(_) => {
                    "a name does not say which interface is meant: write its address".to_owned()
                }
            }
        })
    },
};

/// Another admin address.
pub(super) const PEER: Format = Format {
    pattern: Some(r"^https?://[^/@?#]+$"),
    what: "an admin address as browsers write it, as http://10.0.0.7:8081",
    check: |text| {
        tollgate::admin::check_peer(text)
            .map_err(|_| "write scheme, host and port, and nothing after them".to_owned())
    },
};

/// A network whose proxies are believed.
pub(super) const NETWORK: Format = Format {
    pattern: None,
    what: "a network as 10.0.0.0/8, an address, `loopback` or `private`",
    check: |text| TrustedProxies::parse([text]).map(drop).map_err(|error| error.to_string()),
};

/// Whose midnight it is.
pub(super) const TIME_ZONE: Format = Format {
    pattern: None,
    what: "a time zone of the IANA database, as Europe/Berlin or UTC",
    check: |text| {
        if calendar::has_zone(text) {
            return Ok(());
        }
        let nearest = calendar::zones()
            .map(|zone| (strsim::jaro_winkler(text, &zone), zone))
            .max_by(|(one, _), (other, _)| one.total_cmp(other))
            .filter(|(likeness, _)| *likeness > 0.85);
        Err(nearest.map_or_else(
            || "they are called by a place, not by hours or letters".to_owned(),
            |(_, zone)| format!("did you mean `{zone}`?"),
        ))
    },
};

/// A network of clients.
pub(super) const LISTED: Format = Format {
    pattern: None,
    what: "a network as 203.0.113.0/24, or an address",
    check: |text| match SubjectList::new().network(text) {
        Err(_) if text.parse::<IpAddr>().is_err() && !text.contains('/') => {
            Err("names are not looked up: write the addresses".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    },
};

/// A user.
pub(super) const USER: Format = Format {
    pattern: None,
    what: "a user as in tokens",
    check: |text| match SubjectList::new().user(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    },
};

/// Where to forward to.
pub(super) const TARGET: Format = Format {
    pattern: Some(r"^https?://[^/@?#]+(/[^?#]*)?$"),
    what: "a URL, as http://localhost:3000",
    check: |text| target(text).map(drop),
};

/// A key set on the network.
pub(super) const JWKS_URL: Format = Format {
    pattern: Some(r"^https?://"),
    what: "a URL, as https://login.example.com/jwks.json",
    check: |text| {
        let uri = url(text)?;
        let host = uri.host().unwrap_or_default();
        let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if uri.scheme() != Some(&Scheme::HTTPS) && !is_local {
            return Err("whoever sits between could send his own keys: use https".to_owned());
        }
        Ok(())
    },
};

/// A store that needs no more than its name.
pub(super) const STORE: Format = Format {
    pattern: Some(r"^memory$"),
    what: "`memory`, or a section with `redis` in it",
    check: |text| match text {
        "memory" => Ok(()),
        text if text.starts_with("redis") => {
            Err("say where it is: `store: {redis: {url: …}}`".to_owned())
        }
        _ => Err("these two are all there are".to_owned()),
    },
};

/// Where Redis is.
pub(super) const REDIS_URL: Format = Format {
    pattern: Some(r"^(redis|rediss|redis\+unix)://"),
    what: "a URL, as redis://localhost:6379, rediss://… or redis+unix:///run/redis.sock",
    check: |text| {
        // The text is not shown: it may hold a password.
        match text.split_once("://") {
            Some(("redis" | "rediss" | "redis+unix", rest)) if !rest.is_empty() => {
                RedisStore::builder(text).map(drop).map_err(|error| error.to_string())
            }
            Some(("redis" | "rediss" | "redis+unix", _)) => Err("it names no host".to_owned()),
            Some(_) => Err("its scheme is none of redis, rediss and redis+unix".to_owned()),
            None => Err("it has no scheme".to_owned()),
        }
    },
};

/// A header field.
pub(super) const HEADER: Format = Format {
    pattern: None,
    what: "the name of a header field, as X-Forwarded-For",
    check: |text| match HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err("a field name has letters, digits and `-`, and no space or colon".to_owned()),
    },
};

/// A method.
pub(super) const METHOD: Format = Format {
    pattern: Some(r"^[!#$%&'*+.^_`|~0-9A-Z-]+$"),
    what: "an HTTP method in capitals, as GET",
    check: |text| match Method::from_bytes(text.as_bytes()) {
        Ok(_) if text.bytes().any(|byte| byte.is_ascii_lowercase()) => {
            Err(format!("methods are told apart by case: write {}", text.to_ascii_uppercase()))
        }
        Ok(_) => Ok(()),
        Err(_) => Err("a method is one word".to_owned()),
    },
};

/// A host name without a port.
pub(super) const HOST: Format = Format {
    pattern: None,
    what: "a host name without a port, as api.example.com",
    check: |text| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
        let is_name = !text.is_empty() && text.bytes().all(fits);
        if text.contains('*') {
            return Err("a host is matched whole: leave it out for any".to_owned());
        }
        if !is_name || (text.contains(':') && !text.starts_with('[')) {
            return Err("leave out scheme, port and path".to_owned());
        }
        Ok(())
    },
};

/// A path.
pub(super) const PATH: Format = Format {
    pattern: Some(r"^/"),
    what: "a path, as /login, or everything below one, as /static/*",
    check: |text| path(text).map(drop),
};

/// A digest.
pub(super) const SHA256: Format = Format {
    pattern: Some(r"^[0-9A-Fa-f]{64}$"),
    what: "the SHA-256 of a key as 64 hex digits",
    check: |text| {
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(());
        }
        Err("print it with `printf %s KEY | sha256sum`".to_owned())
    },
};

/// A part of something.
pub(super) const SHARE: Format = Format {
    pattern: Some(r"^ *[0-9]+ */ *[0-9]+ *$"),
    what: "a part, as 1/10",
    check: |text| {
        share(text).map(drop).ok_or_else(|| {
            "write two whole numbers, the first not larger than the second and both from 1 to \
             1000000"
                .to_owned()
        })
    },
};

/// A part that may be nothing or all.
pub(super) const RATIO: Format = Format {
    pattern: Some(r"^ *([0-9]+ */ *[0-9]+|[01]|[01]?\.[0-9]+) *$"),
    what: "a part, as 0.1 or 1/10",
    check: |text| {
        let wrong = || "write a number from 0 to 1, or two whole numbers as 1/10".to_owned();
        ratio(text).map(drop).ok_or_else(wrong)
    },
};

/// Header fields in one text.
pub(super) const FIELDS: Format = Format {
    pattern: None,
    what: "header fields, as name=value,name=value",
    check: |text| fields(text).map(drop),
};

/// What becomes of a denial that needs no more than its name.
pub(super) const EXCESS: Format = Format {
    pattern: Some(r"^reject$"),
    what: "`reject`, or a section with `wait` in it",
    check: |text| match text {
        "reject" => Ok(()),
        "wait" => Err("say how long at most: `{wait: 30s}`".to_owned()),
        _ => Err("these two are all there are".to_owned()),
    },
};

/// Which responses.
pub(super) const STATUS: Format = Format {
    pattern: Some(r"^([1-5][0-9]{2}|[1-5]xx)$"),
    what: "a status as 401, or all that begin with a digit, as 2xx",
    check: |text| {
        text.parse::<Statuses>()
            .map(drop)
            .map_err(|()| "it has three digits, from 100 to 599".to_owned())
    },
};

/// A secret of tokens.
pub(super) const HS256: Format = Format {
    pattern: None,
    what: "a secret of at least 32 bytes",
    check: |text| match tollgate::key::JwtKey::hs256(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    },
};

/// What [`SHARE`] says.
pub(super) fn share(text: &str) -> Option<(u32, u32)> {
    let (part, whole) = text.split_once('/')?;
    let whole_number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok())?.filter(|n| (1..=1_000_000).contains(n))
    };
    let (part, whole) = (whole_number(part.trim())?, whole_number(whole.trim())?);
    (part <= whole).then_some((part, whole))
}

/// What [`RATIO`] says.
pub(super) fn ratio(text: &str) -> Option<f64> {
    if let Some((part, whole)) = share(text) {
        return Some(f64::from(part) / f64::from(whole));
    }
    let text = text.trim();
    // Neither signs nor exponents nor names of numbers that are none.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse().ok().filter(|_| is_plain);
    number.filter(|number| (0.0..=1.0).contains(number))
}

/// What [`FIELDS`] says. Nothing of the text is shown: it may hold a password.
pub(super) fn fields(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let field = |(place, field): (usize, &str)| {
        let wrong = |what: &str| format!("field {} {what}", place + 1);
        let (name, value) = field.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
        let name = HeaderName::from_bytes(name.trim().as_bytes());
        let name = name.map_err(|_| wrong("has a name with other than letters, digits and `-`"))?;
        let value: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
        let value = HeaderValue::from_bytes(&value).ok().filter(|value| value.to_str().is_ok());
        let mut value = value.ok_or_else(|| wrong("has a value with other than ASCII"))?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    text.split(',').enumerate().map(field).collect()
}

/// What [`TARGET`] says.
pub(super) fn target(text: &str) -> Result<Uri, String> {
    let uri = url(text)?;
    if uri.query().is_some() {
        return Err("the query comes with each request: leave it out".to_owned());
    }
    Ok(uri)
}

fn url(text: &str) -> Result<Uri, String> {
    let uri = text.parse::<Uri>().map_err(|_| "it is no URL".to_owned())?;
    if !matches!(uri.scheme().map(Scheme::as_str), Some("http" | "https")) {
        return Err("it does not begin with http:// or https://".to_owned());
    }
    let authority = uri.authority().ok_or("it names no host")?;
    if authority.as_str().contains('@') {
        return Err("user and password have no place in it".to_owned());
    }
    if authority.host().is_empty()
        || (authority.as_str() != authority.host() && authority.port().is_none())
    {
        return Err("it names no host, or a port that is none".to_owned());
    }
    if text.contains('#') {
        return Err("a fragment is never sent: leave it out".to_owned());
    }
    Ok(uri)
}

/// What [`PATH`] says.
pub(super) fn path(text: &str) -> Result<PathMatch, String> {
    let fixed = text.strip_suffix("/*").unwrap_or(text);
    if !text.starts_with('/') {
        return Err("it does not begin with `/`".to_owned());
    }
    if fixed.contains('*') {
        return Err("`*` stands for everything below and is the last segment; for anything else \
                    write `expression: regex`"
            .to_owned());
    }
    if fixed.contains(['?', '#']) {
        return Err("only the path is matched, never the query".to_owned());
    }
    if fixed.contains(['{', '<']) {
        return Err(format!(
            "names of parts stand for nothing: write `expression: regex` and {}",
            expression(text)
        ));
    }
    let plain = plain_path(fixed)?;
    Ok(match (text.ends_with("/*"), plain.as_str()) {
        (true, "") => PathMatch::Any,
        (true, _) => PathMatch::Below(plain),
        (false, _) => PathMatch::Plain(plain),
    })
}

/// A path as it is after requests have been put into their normal form, or why none ever
/// looks like that.
fn plain_path(text: &str) -> Result<String, String> {
    // Everything below the root.
    if text.is_empty() {
        return Ok(String::new());
    }
    match normalise(text, Ambiguous::Refuse) {
        Ok(normal) if normal == text => Ok(normal.into_owned()),
        Ok(normal) => {
            Err(format!("in its normal form, which is what is matched, it is `{normal}`"))
        }
        Err(fault) => Err(fault.to_string()),
    }
}

/// What a path with `{id}`, `<id>` or `:id` for a part of it is as an expression.
pub(super) fn expression(path: &str) -> String {
    let part = |part: &str| match part.starts_with(['{', '<', ':']) {
        true => "[^/]+".to_owned(),
        false => regex::escape(part),
    };
    let (fixed, end) = match path.strip_suffix("/*") {
        Some(above) => (above, "(/.*)?$"),
        None => (path, "$"),
    };
    let parts: Vec<_> = fixed.split('/').map(part).collect();
    format!("`^{}{end}`", parts.join("/"))
}

/// What a span of time says, or why it is none.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && text != "0" {
        return Err(format!("it has no unit: write {text}s or {text}ms"));
    }
    humantime::parse_duration(text)
        .map_err(|_| "write numbers with their units: us, ms, s, m, h or days".to_owned())
}
