//! URLs and paths in texts.

use http::uri::{Scheme, Uri};
use tollgate_engine::{PathPattern, PathPatternError};
use tollgate_proxy::path::{Ambiguous, normalise};

use crate::plan::PathMatch;

pub(crate) fn target(text: &str) -> Result<Uri, String> {
    let uri = url(text)?;
    if uri.query().is_some() {
        return Err("remove the query, because each request has its own".to_owned());
    }
    Ok(uri)
}

pub(super) fn tenants_url(text: &str) -> Result<String, String> {
    url(&text.replace("{tenant}", "acme"))?;
    let authority = text.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    if !text.contains("{tenant}") || authority.is_some_and(|it| it.contains("{tenant}")) {
        return Err("put `{tenant}` where the tenant's name belongs".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn url(text: &str) -> Result<Uri, String> {
    let uri = text.parse::<Uri>().map_err(|_| "it is not a URL".to_owned())?;
    if !matches!(uri.scheme().map(Scheme::as_str), Some("http" | "https")) {
        return Err("it does not start with http:// or https://".to_owned());
    }
    let authority = uri.authority().ok_or("it has no host")?;
    if authority.as_str().contains('@') {
        return Err("it must not contain a user or password".to_owned());
    }
    if authority.host().is_empty()
        || (authority.as_str() != authority.host() && authority.port().is_none())
    {
        return Err("it has no host, or an invalid port".to_owned());
    }
    if text.contains('#') {
        return Err("a fragment is never sent: leave it out".to_owned());
    }
    Ok(uri)
}

pub(crate) fn path(text: &str) -> Result<PathMatch, String> {
    let normal = |path: &str| match normalise(path, Ambiguous::Refuse) {
        Ok(normal) if normal == path => Ok(normal.into_owned()),
        Ok(normal) => {
            let end = if text.ends_with("/*") { "*" } else { "" };
            Err(format!("paths are normalized before they are matched: write `{normal}{end}`"))
        }
        Err(fault) => Err(fault.to_string()),
    };
    PathPattern::parse(text, normal).map(PathMatch::Pattern).map_err(|error| match error {
        PathPatternError::Relative => "it does not start with `/`".to_owned(),
        PathPatternError::Wildcard => "`*` matches everything below and is the last segment; for \
             anything else write `expression: regex`"
            .to_owned(),
        PathPatternError::Query => "only the path is matched, never the query".to_owned(),
        PathPatternError::Placeholder => format!(
            "placeholders are not supported here: write `expression: regex` and {}",
            expression(text)
        ),
        PathPatternError::Path(wrong) => wrong,
    })
}

/// The regular expression for a path with placeholders such as `{id}`, `<id>` or `:id`.
pub(crate) fn expression(path: &str) -> String {
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
