use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::{Scheme, Uri};
use http::{HeaderName, HeaderValue, Method as HttpMethod};
use tollgate::RedisStore;
use tollgate::access::SubjectList;
use tollgate::key::TrustedProxies;
use tollgate::limit::Mode;
use tollgate::observe::Origin;
use tollgate::policy::calendar;

use super::urls::{path, target, tenants_url, url};
use crate::plan::{PathMatch, Secret, Statuses};
use crate::yaml::typed::texts;

/// Parses a header such as `X-API-Key: k-7`.
pub fn header_line(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as `Field: value`")?;
    let name = HeaderName::try_from(name.trim()).map_err(|error| error.to_string())?;
    let value = HeaderValue::try_from(value.trim()).map_err(|error| error.to_string())?;
    Ok((name, value))
}

fn amount(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| "write whole numbers, and one space between words".to_owned())
    };
    if let Some(most) = text.strip_prefix("at most ") {
        return Ok(0..=number(most)?);
    }
    if let Some(least) = text.strip_prefix("at least ") {
        return Ok(number(least)?..=u64::MAX);
    }
    let (least, most) = text.split_once(" to ").unwrap_or((text, text));
    let (least, most) = (number(least)?, number(most)?);
    if least > most {
        return Err(format!("write the smaller number first: {most} to {least}"));
    }
    Ok(least..=most)
}

/// Parses a rate into the mean time between two requests.
fn rate(text: &str) -> Option<Duration> {
    let (count, time) = text.split_once('/')?;
    let (count, time) = (count.trim().parse::<u32>().ok()?, time.trim());
    let has_number = time.starts_with(|first: char| first.is_ascii_digit());
    let time = if has_number { time.to_owned() } else { format!("1{time}") };
    let gap = humantime::parse_duration(&time).ok()?.checked_div(count)?;
    (gap >= Duration::from_micros(1)).then_some(gap)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreflightWord {
    PerMinute(u64),
    Charged,
    Unlimited,
}

texts! {
    Text(text) -> String: "a text" => match text {
        "" => Err("it is empty".to_owned()),
        text => Ok(text.to_owned()),
    };

    /// A tenant's name.
    TenantName(text) -> String: "a name of 1 to 512 bytes" => {
        if text.is_empty() || text.len() > 512 {
            return Err("use the name by which the client is known".to_owned());
        }
        Ok(text.to_owned())
    };

    /// A URL with a tenant's name in it.
    TenantsUrl(text) -> String:
        "a URL with `{tenant}` in its path or query, such as https://example.com/limits/{tenant}",
        r"^https?://.*\{tenant\}.*$" => tenants_url(text);

    /// The path of a file.
    File(text) -> PathBuf: "a text" => Text::parse(text).map(PathBuf::from);

    /// A policy name, which appears in headers.
    Identifier(text) -> String:
        "a name of 1 to 128 printable ASCII characters", r"^[ -~]{1,128}$" =>
    {
        let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if !printable || text.is_empty() || text.len() > tollgate::Policy::MAX_NAME {
            return Err("clients read it in a header, which allows no other characters".to_owned());
        }
        Ok(text.to_owned())
    };

    /// The end of a policy name.
    Level(text) -> String:
        "a name of 1 to 32 letters, digits, `-` and `_`", r"^[A-Za-z0-9_-]{1,32}$" =>
    {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !(1..=32).contains(&text.len()) || !text.bytes().all(is_valid) {
            return Err("it is a part of policy and header names".to_owned());
        }
        Ok(text.to_owned())
    };

    /// Who shares a quota.
    Owner(text) -> String: "`client`, `ip`, `everyone` or the name of a level", r"^[A-Za-z0-9_-]{1,32}$" =>
        Level::parse(text);

    Address(text) -> SocketAddr: "an address with a port, such as 0.0.0.0:8080 or [::]:8080" =>
        text.parse().map_err(|_| match text.trim_start_matches(':').parse::<u16>() {
            Ok(port) => format!(
                "a port alone does not identify an interface: write 0.0.0.0:{port} for all \
                 interfaces, or 127.0.0.1:{port}"
            ),
            Err(_) => "a name does not identify an interface: write its address".to_owned(),
        });

    Peer(text) -> String:
        "the URL of an admin address, such as http://10.0.0.7:8081", r"^https?://[^/@?#]+$" =>
        text.parse::<Origin>()
            .map(|_| text.to_owned())
            .map_err(|_| "write only scheme, host and port".to_owned());

    Network(text) -> String: "a network such as 10.0.0.0/8, an address, `loopback` or `private`" =>
        checked(text, TrustedProxies::parse([text]));

    TimeZone(text) -> String: "an IANA time zone such as Europe/Berlin or UTC" => {
        if calendar::has_zone(text) {
            return Ok(text.to_owned());
        }
        let nearest = calendar::zones()
            .map(|zone| (strsim::jaro_winkler(text, &zone), zone))
            .max_by(|(one, _), (other, _)| one.total_cmp(other))
            .filter(|(likeness, _)| *likeness > 0.85);
        Err(nearest.map_or_else(
            || "time zones are named after places, not offsets or abbreviations".to_owned(),
            |(_, zone)| format!("did you mean `{zone}`?"),
        ))
    };

    Listed(text) -> String: "a network such as 203.0.113.0/24, or an address" =>
        match SubjectList::new().network(text) {
            Err(_) if text.parse::<IpAddr>().is_err() && !text.contains('/') => {
                Err("names are not looked up: write the addresses".to_owned())
            }
            parsed => checked(text, parsed),
        };

    User(text) -> String: "a user name as in tokens" => checked(text, SubjectList::new().user(text));

    Target(text) -> Uri: "a URL such as http://localhost:3000", r"^https?://[^/@?#]+(/[^?#]*)?$" =>
        target(text);

    JwksUrl(text) -> String: "a URL such as https://login.example.com/jwks.json", r"^https?://" => {
        let uri = url(text)?;
        let host = uri.host().unwrap_or_default();
        let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if uri.scheme() != Some(&Scheme::HTTPS) && !is_local {
            return Err("use https, or an attacker could send other keys".to_owned());
        }
        Ok(text.to_owned())
    };

    Store(text) -> (): "`memory`, or a section with `redis` in it", r"^memory$" => match text {
        "memory" => Ok(()),
        text if text.starts_with("redis") => {
            Err("write its URL: `store: {redis: {url: …}}`".to_owned())
        }
        _ => Err("there is no other store".to_owned()),
    };

    /// A Redis URL. No message shows it, because it may contain a password.
    RedisUrl(text) -> Secret:
        "a URL such as redis://localhost:6379, rediss://… or redis+unix:///run/redis.sock",
        r"^(redis|rediss|redis\+unix)://" =>
        match text.split_once("://") {
            Some(("redis" | "rediss" | "redis+unix", rest)) if !rest.is_empty() => {
                checked(text, RedisStore::builder(text)).map(Secret::new)
            }
            Some(("redis" | "rediss" | "redis+unix", _)) => Err("it has no host".to_owned()),
            Some(_) => Err("its scheme is not redis, rediss or redis+unix".to_owned()),
            None => Err("it has no scheme".to_owned()),
        };

    Header(text) -> HeaderName: "a header name such as X-Forwarded-For" =>
        HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
            "a header name has letters, digits and `-`, but no spaces or colons".to_owned()
        });

    Method(text) -> HttpMethod:
        "an HTTP method in capitals, such as GET", r"^[!#$%&'*+.^_`|~0-9A-Z-]+$" =>
        match HttpMethod::from_bytes(text.as_bytes()) {
            Ok(_) if text.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                Err(format!("methods are case-sensitive: write {}", text.to_ascii_uppercase()))
            }
            Ok(method) => Ok(method),
            Err(_) => Err("a method is one word".to_owned()),
        };

    /// A host name, in lowercase.
    Host(text) -> String: "a host name without a port, such as api.example.com" => {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
        let is_name = !text.is_empty() && text.bytes().all(fits);
        if text.contains('*') {
            return Err("wildcards are not supported: remove the key to match any host".to_owned());
        }
        if !is_name || (text.contains(':') && !text.starts_with('[')) {
            return Err("leave out scheme, port and path".to_owned());
        }
        Ok(text.to_ascii_lowercase())
    };

    Path(text) -> PathMatch: "a path such as /login, or a prefix such as /static/*", r"^/" =>
        path(text);

    /// A digest, in lowercase.
    Sha256(text) -> String: "the SHA-256 of a key as 64 hex digits", r"^[0-9A-Fa-f]{64}$" => {
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(text.to_ascii_lowercase());
        }
        Err("print it with `printf %s KEY | sha256sum`".to_owned())
    };

    /// A fraction: numerator and denominator.
    Share(text) -> (u32, u32): "a share such as 1/10", r"^ *[0-9]+ */ *[0-9]+ *$" =>
        share(text).ok_or_else(|| {
            "write two whole numbers, the first not larger than the second and both from 1 to \
             1000000"
                .to_owned()
        });

    /// A fraction from 0 to 1.
    Ratio(text) -> f64:
        "a share such as 0.1 or 1/10", r"^ *([0-9]+ */ *[0-9]+|[01]|[01]?\.[0-9]+) *$" =>
        ratio(text)
            .ok_or_else(|| "write a number from 0 to 1, or two whole numbers such as 1/10".to_owned());

    /// Several headers in one text. No message shows the text, because it may contain a password.
    Fields(text) -> Vec<(HeaderName, HeaderValue)>: "a list of headers such as name=value,name=value" => {
        let field = |(place, field): (usize, &str)| {
            let wrong = |what: &str| format!("field {} {what}", place + 1);
            let (name, value) = field.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
            let name = HeaderName::from_bytes(name.trim().as_bytes())
                .map_err(|_| wrong("has a name with characters besides letters, digits and `-`"))?;
            let value: Vec<u8> = percent_encoding::percent_decode_str(value.trim()).collect();
            let value = HeaderValue::from_bytes(&value).ok().filter(|value| value.to_str().is_ok());
            let mut value = value.ok_or_else(|| wrong("has a value with non-ASCII characters"))?;
            value.set_sensitive(true);
            Ok((name, value))
        };
        text.split(',').enumerate().map(field).collect()
    };

    /// An amount of money in millionths.
    Money(text) -> u64:
        "an amount such as 50, 49.99 or 50 USD", r"^[0-9]+(\.[0-9]{1,6})?( *[A-Z]{3})?$" =>
    {
        let amount = text.trim_end_matches(|c: char| c.is_ascii_uppercase());
        let has_currency = [0, 3].contains(&(text.len() - amount.len()));
        match millionths(amount.trim_end()).filter(|_| has_currency) {
            Some(0) => Err("no request would pass: write more than 0".to_owned()),
            Some(amount) => Ok(amount),
            None => Err("write a number, optionally with a three-letter currency".to_owned()),
        }
    };

    /// A price in millionths.
    Price(text) -> u64: "a price such as 2 or 0.25", r"^[0-9]+(\.[0-9]{1,6})?$" =>
        millionths(text).ok_or_else(|| {
            "write a number without a currency, with at most six digits after the point".to_owned()
        });

    Excess(text) -> Mode:
        "`reject`, `annotate`, or a section with `wait` or `queue` in it", r"^(reject|annotate)$" => match text
    {
        "reject" => Ok(Mode::Reject),
        "annotate" => Ok(Mode::Annotate),
        "wait" | "queue" => Err(format!("set the maximum wait: `{{{text}: 30s}}`")),
        _ => Err("there are no other values".to_owned()),
    };

    Status(text) -> Statuses:
        "a status such as 401, or a class such as 2xx", r"^([1-5][0-9]{2}|[1-5]xx)$" =>
        text.parse().map_err(|()| "it has three digits, from 100 to 599".to_owned());

    ClientAddress(text) -> IpAddr: "an address such as 203.0.113.7" =>
        text.parse().map_err(|_| "write an IPv4 or IPv6 address, without a port".to_owned());

    RequestTarget(text) -> String: "a path such as /items?page=2", r"^[/*]" =>
        match text.starts_with('/') || text == "*" {
            true => Ok(text.to_owned()),
            false => Err("it starts with `/`".to_owned()),
        };

    /// A header, possibly with its value.
    ResponseHeader(text) -> (HeaderName, Option<HeaderValue>):
        "a header such as `X-Login`, or with its value `X-Login: ok`", r"^[^: ]+(: .+)?$" =>
        match text.contains(':') {
            true => header_line(text).map(|(name, value)| (name, Some(value))),
            false => Header::parse(text).map(|name| (name, None)),
        };

    /// A header with its value, in which `{client}` is a placeholder.
    HeaderLine(text) -> (String, String): "a header such as `X-API-Key: k-7`", r"^[^:]+:" =>
        header_line(text).map(|(name, _)| {
            (name.to_string(), text.split_once(':').unwrap_or_default().1.trim().to_owned())
        });

    /// The mean time between two requests.
    Rate(text) -> Duration: "a rate such as 10/s, 600/m or 5/10s", r"^ *[0-9]+ */ *[0-9]*[a-z]+ *$" =>
        rate(text).ok_or_else(|| "write a number of requests and a time, such as 10/s".to_owned());

    Amount(text) -> RangeInclusive<u64>:
        "a number, `at most 100`, `at least 90` or `90 to 100`",
        r"^((at most|at least|[0-9]+ to) )?[0-9]+$" =>
        amount(text);

    PerMinute(text) -> Option<u64>:
        "a whole number from 1 to 1000000, or `unlimited`", r"^([1-9][0-9]{0,6}|unlimited)$" =>
    {
        if text == "unlimited" {
            return Ok(None);
        }
        per_minute(text).map(Some)
    };

    Preflights(text) -> PreflightWord:
        "a whole number from 1 to 1000000, `charged` or `unlimited`",
        r"^([1-9][0-9]{0,6}|charged|unlimited)$" =>
        match text {
            "charged" => Ok(PreflightWord::Charged),
            "unlimited" => Ok(PreflightWord::Unlimited),
            number => per_minute(number).map(PreflightWord::PerMinute),
        };

    Hs256(text) -> Secret: "a secret of at least 32 bytes" =>
        checked(text, tollgate::key::JwtKey::hs256(text.as_bytes())).map(Secret::new);

    BearerToken(text) -> Secret: "16 to 4096 visible characters without spaces" => {
        let is_token = (16..=4096).contains(&text.len());
        let is_token = is_token && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_token.then(|| Secret::new(text)).ok_or_else(|| "use `openssl rand -hex 16`".to_owned())
    };

    SecretText(text) -> Secret: "a text" => Text::parse(text).map(Secret::new);
}

/// The text, if one of the layer's types accepts it.
fn checked<T, E: Display>(text: &str, parsed: Result<T, E>) -> Result<String, String> {
    parsed.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn per_minute(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| "write a keyword instead of 0, which is usually a mistake".to_owned())
}

fn share(text: &str) -> Option<(u32, u32)> {
    let (part, whole) = text.split_once('/')?;
    let whole_number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok())?.filter(|n| (1..=1_000_000).contains(n))
    };
    let (part, whole) = (whole_number(part.trim())?, whole_number(whole.trim())?);
    (part <= whole).then_some((part, whole))
}

fn ratio(text: &str) -> Option<f64> {
    if let Some((part, whole)) = share(text) {
        return Some(f64::from(part) / f64::from(whole));
    }
    let text = text.trim();
    // No signs, no exponents, no `NaN`.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse().ok().filter(|_| is_plain);
    number.filter(|number| (0.0..=1.0).contains(number))
}

/// Reads a decimal number with at most six digits after the point, and multiplies it by a million.
fn millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction)
}
