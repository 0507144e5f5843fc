//! The paths in an OpenAPI description.

use std::path::Path;

use saphyr::{LoadableYamlNode as _, Yaml};

use super::super::replayed::ReplayError;

/// Reads the path templates, such as `/v1/item/{id}`, from a file in YAML or JSON.
pub(super) fn read(path: &Path) -> Result<Vec<String>, ReplayError> {
    let wrong = |error: String| ReplayError::Plan(format!("{}: {error} [TG0701]", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    templates(&text).map_err(wrong)
}

fn templates(text: &str) -> Result<Vec<String>, String> {
    // JSON is YAML.
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    let document = documents.first();
    let get = |key: &str| document.and_then(|document| document.as_mapping_get(key));
    let paths = get("paths").and_then(Yaml::as_mapping);
    let paths = paths.ok_or("expected an OpenAPI description with `paths`")?;
    let servers = get("servers").and_then(Yaml::as_sequence).into_iter().flatten();
    let servers = servers.filter_map(|server| server.as_mapping_get("url")?.as_str());
    // Swagger 2.0 has the base path alone.
    let base_path = get("basePath").and_then(Yaml::as_str);
    let mut bases: Vec<_> = servers.chain(base_path).map(base).collect();
    bases.sort_unstable();
    bases.dedup();
    if bases.is_empty() {
        bases.push("");
    }
    // Keys such as `x-internal` are extensions.
    let paths = paths.keys().filter_map(Yaml::as_str).filter(|path| path.starts_with('/'));
    Ok(paths.flat_map(|path| bases.iter().map(move |base| format!("{base}{path}"))).collect())
}

/// Returns a server URL's path, without its last slash.
fn base(url: &str) -> &str {
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |slash| &rest[slash..]),
        None => url,
    };
    if path.starts_with('/') { path.trim_end_matches('/') } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_prefixes() {
        let yaml = "openapi: 3.1.0\nservers:\n  - {url: 'https://{region}.shop.example/v1/'}\n  \
                    - {url: /v2}\npaths:\n  x-note: none\n  /item/{id}:\n    get: {}\n";
        let json = r#"{"swagger": "2.0", "basePath": "/v1", "paths": {"/item/{id}": {"get": {}}}}"#;
        let without = "paths: {/item: {}}";
        for (text, expected) in [
            (yaml, &["/v1/item/{id}", "/v2/item/{id}"][..]),
            (json, &["/v1/item/{id}"]),
            (without, &["/item"]),
        ] {
            assert_eq!(templates(text).unwrap(), expected);
        }
        for text in ["", "a: [", "openapi: 3.1.0", "paths: []"] {
            assert!(templates(text).is_err(), "{text}");
        }
    }
}
