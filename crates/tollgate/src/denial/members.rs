use super::json::JsonMembers;

/// Members that a service adds to each problem body, for example the server's name.
///
/// ```
/// use tollgate::denial::Members;
///
/// let members = Members::new().with("server_id", "api1")?.with("shard", 7)?;
/// # let _ = members;
/// # Ok::<(), tollgate::denial::MemberError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Members {
    names: Vec<String>,
    json: JsonMembers,
}

impl Members {
    /// Creates an empty set of members.
    pub const fn new() -> Self {
        Self { names: Vec::new(), json: JsonMembers::new() }
    }

    /// Adds a member with this name and value.
    ///
    /// # Errors
    /// The name is taken, or RFC 9457 does not allow it.
    pub fn with<'a>(
        mut self,
        name: &str,
        value: impl Into<MemberValue<'a>>,
    ) -> Result<Self, MemberError> {
        let error = |fault| MemberError { name: name.to_owned(), fault };
        let starts_with_letter = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let has_valid_chars =
            name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if !(name.len() >= 3 && starts_with_letter && has_valid_chars) {
            return Err(error(
                "a name has at least three characters, letters, digits, `_` and `-`, and starts with a letter",
            ));
        }
        if RESERVED.split(' ').any(|taken| taken == name)
            || self.names.iter().any(|taken| taken == name)
        {
            return Err(error("the name is taken"));
        }
        match value.into() {
            MemberValue::Text(text) => self.json.text(name, text),
            MemberValue::Integer(number) => self.json.integer(name, number),
            MemberValue::Flag(flag) => self.json.flag(name, flag),
        }
        self.names.push(name.to_owned());
        Ok(self)
    }

    pub(super) const fn json(&self) -> &JsonMembers {
        &self.json
    }
}

/// The value of a problem member. Strings, integers and `bool` convert into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberValue<'a> {
    /// A string, which is escaped as needed.
    Text(&'a str),
    /// An integer.
    Integer(i64),
    /// `true` or `false`.
    Flag(bool),
}

impl<'a> From<&'a str> for MemberValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for MemberValue<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for MemberValue<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for MemberValue<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// The error for a member that cannot be added to a problem body.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0608")]
#[error("member `{}` of the problem body: {fault} [TG0608]", .name.escape_default())]
pub struct MemberError {
    name: String,
    fault: &'static str,
}

tollgate_core::debug_as_display!(MemberError);

/// The members that this crate writes, and `instance`, which RFC 9457 reserves.
const RESERVED: &str = "type title status detail instance code limit remaining cost window \
                        quota_unit retry_after reset_at violated-policies";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_rejected() {
        for (name, expected) in [
            ("id", "at least three characters"),
            ("9lives", "starts with a letter"),
            ("a\"b", "letters, digits"),
            ("status", "the name is taken"),
            ("cost", "the name is taken"),
            ("server_id", "the name is taken"),
        ] {
            let members = Members::new().with("server_id", "api1").unwrap();
            let error = members.with(name, true).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
