//! The file of `tollgate test`.

use crate::file::format;
use crate::yaml::typed::{Flag, List, OneOrMore, Time, Values, Whole, section};

type Count = Whole<0, { u64::MAX }>;
type Replicas = Whole<1, 1_000, u32>;

section! {
    /// Tests for a file with limits.
    values TestFile = "The test file" {
        /// The file with the limits. A relative path starts at the test file's folder. Only tests of
        /// a service's own limits in Rust need no file.
        optional limits: format::File,
        /// Determines the random times. The same seed always gives the same requests.
        default seed: Count = "1",
        /// The number of gateways in each test.
        default replicas: Replicas = "1",
        /// The tests. Each starts with unused quotas.
        required tests: Values<List<Test>>,
    }

    /// Requests with expectations, or a bound for all possible requests.
    values Test = "tests[]" either [requests worst] [expect worst] [faults worst] {
        /// The behaviour that the test shows.
        required name: format::Text,
        /// The number of gateways. Default: the file's `replicas`.
        optional replicas: Replicas,
        /// The requests.
        optional requests: Values<List<Requests>>,
        /// Faults of the store, and reloads.
        optional faults: Values<List<FaultAt>>,
        /// Expectations for all requests together.
        optional expect: Expect,
        /// A bound that no requests may exceed, as in `tollgate worst`.
        optional worst: WorstBound,
    }

    /// Similar requests. Each client sends `count` of them, or sends them `for` some time.
    values Requests = "tests[].requests[]" either [every rate think] [count for] {
        /// The address that connects to the gateway.
        default client: format::ClientAddress = "203.0.113.1",
        /// The number of clients. Their addresses follow each other, from `client` on.
        default clients: Whole<1, 1_000_000, u32> = "1",
        /// The user, instead of a token. `{client}` is the client's number, from 1.
        optional user: format::Text,
        /// The user's tier.
        optional tier: format::Text where user: "only users are in tiers",
        /// The method.
        default method: format::Method = "GET",
        /// The path as a client sends it, with its query. `{client}` is the client's number.
        default path: format::RequestTarget = "/",
        /// The requested host.
        optional host: format::Text,
        /// Headers such as `X-API-Key: k-7`. `{client}` is the client's number.
        optional header: Values<OneOrMore<format::HeaderLine>>,
        /// The gateway that gets the requests, from 1. Default: each gateway in turn.
        optional replica: Replicas,
        /// When each client's first request arrives.
        default at: Time = "0s",
        /// The number of requests of each client. Default: 1.
        optional count: Whole<1, 100_000_000>,
        /// For how long each client sends requests. Needs `every`, `rate` or `think`.
        optional duration as "for": Time,
        /// The time between two requests of a client. Default: all arrive at the same instant.
        optional every: Time,
        /// The mean rate of each client, such as `10/s`, with random times between its requests.
        optional rate: format::Rate,
        /// The time between an answer and the client's next request.
        optional think: Time,
        /// The status of the target's responses.
        default answer: Whole<100, 599, u16> = "200",
        /// How long the target takes for each response.
        default takes: Time = "0s",
        /// The size of the target's response bodies, for quotas that settle by it.
        default bytes: Count = "0",
        /// Expectations for these requests.
        optional expect: Expect,
    }

    /// An amount is a number, or a range such as `at most 100`, `at least 90` or `90 to 100`.
    values Expect = "expect" {
        /// The status of every answer. Allowed requests get the target's `answer`.
        optional status: Whole<100, 599, u16>,
        /// How many requests pass.
        optional allowed: format::Amount,
        /// How many requests are denied.
        optional denied: format::Amount,
        /// How many requests of each client pass. A client is a user or, without users, an address.
        optional allowed_per_client: format::Amount,
        /// The policy that denies first, for every denied request.
        optional policy: format::Text,
        /// The units that the last request leaves under the tightest policy.
        optional remaining: Count,
        /// The first denial's Retry-After: a duration in whole seconds.
        optional retry_after: Time,
        /// The longest time that a request may wait before it passes.
        optional max_wait: Time,
        /// The most requests that pass within any window.
        optional never: Values<OneOrMore<WindowBound>>,
    }

    /// A bound for every window.
    values WindowBound = "never[]" {
        /// More than this number of requests are never allowed.
        required more_than: Count,
        /// The length of the window.
        required window as "in": Time,
        /// Counts each client separately.
        default per_client: Flag = "false",
    }

    /// One fault. It needs `store: {redis: …}`, except for `reload`.
    values FaultAt = "tests[].faults[]"
        either [store_lost failover clock_forward clock_back reload]
    {
        /// When it happens.
        required at: Time,
        /// No gateway reaches the store for this time, so failure policies decide.
        optional store_lost: Time,
        /// The store is replaced by a replica that lacks the calls of this last time.
        optional failover: Time,
        /// The store's clock steps forward.
        optional clock_forward: Time,
        /// The store's clock steps back.
        optional clock_back: Time,
        /// All gateways load this file with limits.
        optional reload: format::File,
    }

    /// The largest number of requests that can pass within any window.
    values WorstBound = "worst" {
        /// The largest permitted number.
        required at_most: Count,
        /// The policy. Default: all requests of a single client.
        optional policy: format::Text,
        /// The length of the window. Default: the window of the policy or, without a policy, the
        /// longest.
        optional window as "in": Time,
        /// The store may be lost for this time.
        optional store_lost: Time,
        /// The store may fail over to a replica that lacks all charges.
        default failover: Flag = "false",
    }
}
