//! The names that clients have among the tenants.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::key::{KeySource, RequestHead};
use tollgate_config::plan::{ApiKeyEntry, IdentitySource, ValuePlan};

use crate::serve::decide::values;

/// The naming of a source's clients.
#[derive(Clone)]
pub(crate) struct Naming {
    kind: &'static str,
    /// Whether the kind need not precede the names.
    is_first: bool,
    names: Names,
}

#[derive(Clone)]
enum Names {
    /// The key source's own names.
    Source,
    /// The names of API keys, by SHA-256 in hex.
    ApiKeys(Arc<HashMap<String, String>>),
    Value(ValuePlan),
    /// The same, but the names are in the connection's values.
    Connection,
    /// The clients are no tenants.
    None,
}

impl Naming {
    pub(crate) fn of(source: &IdentitySource, is_first: bool) -> Self {
        let (kind, names) = match source {
            IdentitySource::User(_) => ("user", Names::Source),
            IdentitySource::ApiKey(keys) => {
                let name = |key: &ApiKeyEntry| {
                    Some((key.sha256.to_ascii_lowercase(), key.tenant.clone()?))
                };
                ("apiKey", Names::ApiKeys(Arc::new(keys.keys.iter().filter_map(name).collect())))
            }
            IdentitySource::Certificate => ("certificate", Names::Connection),
            IdentitySource::Value(plan) => {
                // The source has already checked the proxy.
                ("value", Names::Value(ValuePlan { proxies: None, ..plan.clone() }))
            }
            IdentitySource::Ip { .. } if is_first => ("ip", Names::Connection),
            // Otherwise each address would cost a look-up.
            IdentitySource::Ip { .. } => ("ip", Names::None),
        };
        Self { kind, is_first, names }
    }

    pub(crate) const fn names_tenants(&self) -> bool {
        !matches!(self.names, Names::None)
    }

    /// Whether the name must be found with the client, because later only the request is known.
    pub(crate) const fn is_of_connection(&self) -> bool {
        matches!(self.names, Names::Connection)
    }

    /// Returns the client's name.
    pub(crate) fn name(&self, source: &dyn KeySource, head: &RequestHead<'_>) -> Option<String> {
        let name = match &self.names {
            Names::Source | Names::Connection => source.name(head)?,
            Names::ApiKeys(names) => {
                let digest = source.name(head)?;
                names.get(&digest).cloned().unwrap_or(digest)
            }
            Names::Value(plan) => {
                String::from_utf8(values::text(plan, head).ok()??.into_owned()).ok()?
            }
            Names::None => return None,
        };
        Some(self.qualified(&name))
    }

    /// The kind precedes the names of clients that the first source does not find, so no client can
    /// choose the name of a client with another kind.
    pub(crate) fn qualified(&self, name: &str) -> String {
        let has_kind = KINDS
            .iter()
            .any(|kind| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(':')));
        if self.is_first && !has_kind { name.to_owned() } else { format!("{}:{name}", self.kind) }
    }
}

const KINDS: [&str; 5] = ["user", "apiKey", "certificate", "value", "ip"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_another_kind_cannot_be_chosen() {
        let naming = |is_first| Naming { kind: "user", is_first, names: Names::Source };
        for (is_first, name, expected) in [
            (true, "acme", "acme"),
            (true, "apiKey:acme", "user:apiKey:acme"),
            (true, "user:acme", "user:user:acme"),
            (true, "https://issuer.example ann", "https://issuer.example ann"),
            (true, "apiKeys:acme", "apiKeys:acme"),
            (false, "acme", "user:acme"),
            (false, "user:acme", "user:user:acme"),
        ] {
            assert_eq!(naming(is_first).qualified(name), expected, "{name}");
        }
    }
}
