//! What a request costs.

use std::fmt;
use std::sync::Arc;

use http::Method;
use tollgate_core::Cost;

use crate::grpc::GrpcServices;
use crate::head::RequestHead;
use crate::key::route;

/// Determines each request's cost in quota units. By default every request costs 1.
///
/// The closure set with [`Costs::from_fn`] applies first, then the matched route's cost, then the
/// method's cost. [`Costs::by_method`] has these costs:
///
/// | method | units |
/// |---|---|
/// | GET, HEAD | 1 |
/// | SEARCH, QUERY | 3 |
/// | POST, PUT, PATCH | 5 |
/// | DELETE | 10 |
/// | any other (names of methods are in capitals) | 1 |
///
/// A request with cost 0 is always allowed.
///
/// All gRPC calls are POST requests, so with [`by_method`](Costs::by_method) a call to a declared
/// gRPC service ([`grpc`](crate::layer::RateLimitLayerBuilder::grpc)) costs 1. A POST cost set with
/// [`method`](Costs::method), or a route's cost, also applies to gRPC calls.
///
/// ```
/// use http::Method;
/// use tollgate::Costs;
///
/// let costs = Costs::by_method()
///     .method(Method::DELETE, 20)
///     .route("/reports/{id}", 50)
///     .from_fn(|head| head.headers.contains_key("x-bulk").then_some(100));
/// # let _ = costs;
/// ```
#[derive(Clone)]
pub struct Costs {
    methods: Methods,
    routes: Vec<(Box<str>, Cost)>,
    closure: Option<Arc<Closure>>,
}

type Closure = dyn Fn(&RequestHead<'_>) -> Option<Cost> + Send + Sync;

#[derive(Clone, Debug)]
struct Methods {
    /// In the order of [`NAMED`].
    named: [Cost; NAMED.len()],
    call: Cost,
    others: Vec<(Method, Cost)>,
    any_other: Cost,
    /// Whether all methods have the same cost.
    are_equal: bool,
}

/// SEARCH also covers QUERY, because both are names for the same method.
const NAMED: [&str; 7] = ["GET", "HEAD", "SEARCH", "POST", "PUT", "PATCH", "DELETE"];

impl Costs {
    /// Returns the costs by HTTP method from the table above.
    pub const fn by_method() -> Self {
        let [one, three, five, ten] = [Cost::ONE, Cost::new(3), Cost::new(5), Cost::new(10)];
        let mut costs = Self::uniform(one);
        costs.methods.named = [one, one, three, five, five, five, ten];
        costs.methods.call = one;
        costs.methods.are_equal = false;
        costs
    }

    /// Gives all requests the same cost.
    pub fn flat(cost: impl Into<Cost>) -> Self {
        Self::uniform(cost.into())
    }

    const fn uniform(cost: Cost) -> Self {
        let named = [cost; NAMED.len()];
        let others = Vec::new();
        let methods = Methods { named, call: cost, others, any_other: cost, are_equal: true };
        Self { methods, routes: Vec::new(), closure: None }
    }

    /// Sets an HTTP method's cost. SEARCH and QUERY share a cost. A cost for POST also applies to
    /// gRPC calls.
    #[must_use]
    pub fn method(mut self, method: Method, cost: impl Into<Cost>) -> Self {
        let cost = cost.into();
        if method == Method::POST {
            self.methods.call = cost;
        }
        match number(&method) {
            Some(number) => self.methods.named[number] = cost,
            None => {
                self.methods.others.retain(|(other, _)| *other != method);
                self.methods.others.push((method, cost));
            }
        }
        let Methods { named, others, any_other, are_equal, .. } = &mut self.methods;
        *are_equal = others.is_empty() && named.iter().all(|cost| cost == any_other);
        self
    }

    /// Sets a route's cost for all methods. The route is the router's pattern (axum's
    /// `MatchedPath`, or a [`RoutePattern`](crate::key::RoutePattern) extension), or a gRPC
    /// method's path (`/package.Service/Method`).
    #[must_use]
    pub fn route(mut self, pattern: impl Into<Box<str>>, cost: impl Into<Cost>) -> Self {
        let (pattern, cost) = (pattern.into(), cost.into());
        self.routes.retain(|(other, _)| *other != pattern);
        self.routes.push((pattern, cost));
        self
    }

    /// Computes the cost with a closure. If the closure returns `None`, the other rules apply.
    #[must_use]
    pub fn from_fn<C: Into<Cost>>(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        self.closure = Some(Arc::new(move |head| cost(head).map(Into::into)));
        self
    }

    /// Returns a request's cost. gRPC calls cost as much as other POST requests.
    #[inline]
    pub fn of(&self, head: &RequestHead<'_>) -> Cost {
        self.among(head, &GrpcServices::None)
    }

    /// Like [`of`](Self::of), but knows which services are gRPC services.
    #[inline]
    pub(crate) fn among(&self, head: &RequestHead<'_>, services: &GrpcServices) -> Cost {
        if let Some(closure) = &self.closure
            && let Some(cost) = closure(head)
        {
            return cost;
        }
        if !self.routes.is_empty() {
            // Routers use one pattern for all methods of a gRPC service, so look up the call's path
            // first.
            let called = services.is_call(head).then(|| head.uri.path());
            let names = [called, route::pattern(head.extensions)];
            let listed = |name: &str| self.routes.iter().find(|(route, _)| **route == *name);
            if let Some((_, cost)) = names.into_iter().flatten().find_map(listed) {
                return *cost;
            }
        }
        if self.methods.are_equal {
            self.methods.any_other
        } else if services.is_call(head) {
            self.methods.call
        } else {
            self.methods.of(head.method)
        }
    }

    pub(crate) const fn is_flat(&self) -> bool {
        self.methods.are_equal
    }

    /// Returns the cost if it is the same for all requests.
    pub(crate) fn uniform_cost(&self) -> Option<Cost> {
        let is_uniform = self.methods.are_equal && self.routes.is_empty() && self.closure.is_none();
        is_uniform.then_some(self.methods.any_other)
    }

    pub(crate) const fn depend_on_closure(&self) -> bool {
        self.closure.is_some()
    }

    /// Returns the highest cost that does not depend on a closure, and describes the requests that
    /// have it.
    pub(crate) fn highest(&self) -> (String, Cost) {
        let Methods { named, call, others, any_other, are_equal } = &self.methods;
        let named = NAMED.iter().zip(named).filter(|_| !are_equal);
        let named = named.map(|(method, cost)| (format!("a {method} request"), *cost));
        let others = others.iter().map(|(method, cost)| (format!("a {method} request"), *cost));
        let routes = self.routes.iter();
        let routes = routes.map(|(route, cost)| (format!("a request to `{route}`"), *cost));
        let calls = (!are_equal).then(|| ("a gRPC call".to_owned(), *call));
        let all = named.chain(others).chain(routes).chain(calls);
        all.fold(("a request".to_owned(), *any_other), |highest, next| {
            if next.1 > highest.1 { next } else { highest }
        })
    }
}

impl Methods {
    #[inline]
    fn of(&self, method: &Method) -> Cost {
        if let Some(number) = number(method) {
            return self.named[number];
        }
        let other = self.others.iter().find(|(other, _)| other == method);
        other.map_or(self.any_other, |(_, cost)| *cost)
    }
}

#[inline]
fn number(method: &Method) -> Option<usize> {
    Some(match *method {
        Method::GET => 0,
        Method::HEAD => 1,
        Method::POST => 3,
        Method::PUT => 4,
        Method::PATCH => 5,
        Method::DELETE => 6,
        _ if matches!(method.as_str(), "SEARCH" | "QUERY") => 2,
        _ => return None,
    })
}

/// Only the method costs: "SEARCH 3, POST 5, PUT 5, PATCH 5, DELETE 10, others 1".
impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Methods { named, any_other, .. } = &self.methods;
        let named = NAMED.iter().zip(named).filter(|(_, cost)| *cost != any_other);
        for (method, cost) in named {
            write!(f, "{method} {}, ", cost.get())?;
        }
        write!(f, "others {}", any_other.get())
    }
}

/// Every request costs 1.
impl Default for Costs {
    fn default() -> Self {
        Self::flat(Cost::ONE)
    }
}

debug_fields!(Costs, methods, routes);

#[cfg(test)]
mod tests;
