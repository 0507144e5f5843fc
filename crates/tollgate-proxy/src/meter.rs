use std::time::Duration;

use http::StatusCode;
use metrics::{Counter, Histogram, counter, histogram};

/// Metrics for a route or an upstream. Registered up front, because looking up a metric by its
/// labels costs more than incrementing it.
#[derive(Debug)]
pub struct Meter {
    answered: [Counter; 5],
    duration: Histogram,
}

impl Meter {
    pub fn route(name: &str) -> Self {
        Self::new([ROUTE_REQUESTS, ROUTE_DURATION], "route", name)
    }

    pub fn upstream(name: &str) -> Self {
        Self::new([UPSTREAM_REQUESTS, UPSTREAM_DURATION], "upstream", name)
    }

    fn new([requests, duration]: [&'static str; 2], label: &'static str, name: &str) -> Self {
        let count = |status: &'static str| {
            let counter = counter!(requests, label => name.to_owned(), "status" => status);
            // Prometheus only sees the first increment if the counter was 0 before.
            counter.increment(0);
            counter
        };
        Self {
            answered: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(count),
            duration: histogram!(duration, label => name.to_owned()),
        }
    }

    /// Counts a response with a header that arrived after `took`.
    pub fn answered(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).wrapping_sub(1);
        if let Some(counter) = self.answered.get(class) {
            counter.increment(1);
        }
        self.duration.record(took);
    }
}

const ROUTE_REQUESTS: &str = "tollgate_gateway_requests_total";
const ROUTE_DURATION: &str = "tollgate_gateway_request_duration_seconds";
const UPSTREAM_REQUESTS: &str = "tollgate_gateway_upstream_requests_total";
const UPSTREAM_DURATION: &str = "tollgate_gateway_upstream_duration_seconds";
