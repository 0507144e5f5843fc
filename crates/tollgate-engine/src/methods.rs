//! HTTP methods, by name: sets, and costs.
//!
//! Names are compared without case. In HTTP, `post` and `POST` are different methods, but some
//! services treat them alike, so a spelling must not avoid a limit or a cost.

use std::fmt;

use tollgate_core::Cost;

/// A set of methods. GET covers HEAD, and an empty list means all methods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Methods(Box<[Box<str>]>);

impl Methods {
    /// Creates a set.
    pub fn new<N: Into<Box<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// Returns whether it contains all methods.
    pub const fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the listed names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }

    /// Returns whether it contains the method.
    pub fn contain(&self, method: &str) -> bool {
        let has = |method: &str| self.iter().any(|own| own.eq_ignore_ascii_case(method));
        self.is_all() || has(method) || (method.eq_ignore_ascii_case("HEAD") && has("GET"))
    }

    /// Returns whether any method is in both sets.
    pub fn meet(&self, others: &Self) -> bool {
        let any_in = |methods: &Self, of: &Self| methods.iter().any(|method| of.contain(method));
        self.is_all() || others.is_all() || any_in(self, others) || any_in(others, self)
    }

    /// Returns whether it contains all of `others`.
    pub fn cover(&self, others: &Self) -> bool {
        let mut contained = others.iter().map(|method| self.contain(method));
        self.is_all() || (!others.is_all() && contained.all(|contains| contains))
    }
}

impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_all() { "any method" } else { "" })?;
        for (index, method) in self.iter().enumerate() {
            write!(f, "{}{method}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The cost of each method. GET covers HEAD, and SEARCH and QUERY cover each other, unless both are
/// listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodCosts {
    listed: Vec<(Box<str>, Cost)>,
    other: Cost,
}

impl MethodCosts {
    /// Gives all methods the same cost.
    pub const fn flat(cost: Cost) -> Self {
        Self { listed: Vec::new(), other: cost }
    }

    /// Returns the usual costs: SEARCH and QUERY 3, POST, PUT and PATCH 5, DELETE 10, and 1 for
    /// all other methods.
    pub fn by_method() -> Self {
        let usual = [("SEARCH", 3), ("POST", 5), ("PUT", 5), ("PATCH", 5), ("DELETE", 10)];
        usual.into_iter().fold(Self::flat(Cost::ONE), |costs, (method, cost)| {
            costs.method(method, Cost::new(cost))
        })
    }

    /// Sets a method's cost.
    #[must_use]
    pub fn method(mut self, method: &str, cost: Cost) -> Self {
        self.listed.retain(|(listed, _)| !listed.eq_ignore_ascii_case(method));
        self.listed.push((method.into(), cost));
        self
    }

    /// Returns a method's cost.
    pub fn of(&self, method: &str) -> Cost {
        let listed = |method: &str| {
            let mut all = self.listed.iter();
            all.find(|(listed, _)| listed.eq_ignore_ascii_case(method)).map(|(_, cost)| *cost)
        };
        let twin = |method: &str| {
            let mut all = TWINS.iter();
            all.find(|(name, _)| name.eq_ignore_ascii_case(method)).map(|(_, twin)| *twin)
        };
        listed(method).or_else(|| twin(method).and_then(listed)).unwrap_or(self.other)
    }

    /// Returns the listed methods with their costs.
    pub fn listed(&self) -> impl Iterator<Item = (&str, Cost)> {
        self.listed.iter().map(|(method, cost)| (&**method, *cost))
    }

    /// Returns the cost of methods that are not listed.
    pub const fn other(&self) -> Cost {
        self.other
    }

    /// Returns whether all methods have the same cost.
    pub fn is_flat(&self) -> bool {
        self.listed.iter().all(|(_, cost)| *cost == self.other)
    }
}

/// Methods without their own cost that have another method's cost.
const TWINS: [(&str, &str); 3] = [("HEAD", "GET"), ("QUERY", "SEARCH"), ("SEARCH", "QUERY")];

/// For example "POST 5, DELETE 10, any other 1".
impl fmt::Display for MethodCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (method, cost) in self.listed() {
            write!(f, "{method} {}, ", cost.get())?;
        }
        write!(f, "any other {}", self.other.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_costs_are_those_of_the_documentation() {
        let costs = MethodCosts::by_method();
        for (method, cost) in [
            ("GET", 1),
            ("HEAD", 1),
            ("SEARCH", 3),
            ("QUERY", 3),
            ("POST", 5),
            ("post", 5),
            ("PUT", 5),
            ("PATCH", 5),
            ("DELETE", 10),
            ("OPTIONS", 1),
            ("PURGE", 1),
        ] {
            assert_eq!(costs.of(method).get(), cost, "{method}");
        }
        let costs = costs.method("get", Cost::new(2)).method("QUERY", Cost::new(4));
        let of = ["HEAD", "SEARCH", "QUERY", "TRACE"].map(|method| costs.of(method).get());
        assert_eq!(of, [2, 3, 4, 1]);
        assert!(
            !costs.is_flat() && MethodCosts::flat(Cost::ONE).method("GET", Cost::ONE).is_flat()
        );
    }

    #[test]
    fn get_contains_head() {
        let get = Methods::new(["GET", "PUT"]);
        assert!(get.contain("HEAD") && get.contain("put") && !get.contain("POST"));
        assert!(!Methods::new(["HEAD"]).contain("GET") && Methods::default().contain("POST"));
        assert!(get.cover(&Methods::new(["HEAD"])) && !get.cover(&Methods::default()));
        assert!(Methods::new(["HEAD"]).meet(&get) && !Methods::new(["POST"]).meet(&get));
        assert_eq!(
            (get.to_string(), Methods::default().to_string()),
            ("GET, PUT".into(), "any method".into())
        );
    }
}
