use tollgate::policy::{LeakyMode, Refill, Resolution};

use super::levels::LimitLevels;
use super::options::{
    Concurrency, CountOnly, Excess, ForgiveOn, Lease, Penalty, PlainQuota, Reserve,
};
use super::path::Path;
use super::value_types::{AtOnce, OnError, Strategy, Units};
use super::window::Window;
use crate::file::format;
use crate::yaml::typed::{
    Either, Flag, List, Named, OneOrMore, Short, Time, Whole, section, words,
};

type Cost = Whole<0, { tollgate::Policy::MAX_LIMIT }>;

pub(crate) type Costs = Either<ByMethod, CostTable>;

section! {
    /// A policy for each client (`client`) or for all clients together (`global`).
    keys Policy = "client" {
        /// The policy name in denials. The used units belong to this name. Default: `global` or
        /// `client`.
        optional identifier: format::Identifier,
        /// The number of units per window. It may be omitted if `concurrency` or `penalty` is set.
        optional limit: Units,
        group window: Window,
        group rules: Rules,
    }

    /// A policy for some requests, with a quota per client.
    keys Api = "apis[]" either
        [limit share] [window share] [window_seconds share] [calendar share]
        [refill_seconds share] [burst share] [also share]
    {
        /// The unique policy name in denials. The used units belong to this name.
        required identifier: format::Identifier,
        /// The paths that the policy applies to.
        required path: Path,
        /// The methods that the policy applies to. GET includes HEAD. Default: all methods.
        optional method: OneOrMore<format::Method>,
        /// Who shares the quota: `client`, each client address (`ip`), each group of a level of
        /// `rateLimiter.levels`, or `everyone`. With a list, each combination has its own quota.
        /// Requests without a client or group count together.
        default per: OneOrMore<format::Owner> = "client",
        /// The number of units per window. It may be omitted if `share`, `concurrency` or `penalty`
        /// is set.
        optional limit: Units,
        group window: Window,
        /// A share of the quota of `client`, or of the client's tier: `1/10`. It replaces limit,
        /// window and burst. The numbers in `tenants` count only with `per: client`,
        /// so combinations with `client` ignore them.
        optional share: format::Share,
        group rules: Rules,
    }

    /// Quotas that replace the quota of `client`, by tier name. The algorithm and all other
    /// settings are those of `client`.
    keys Tiers = "tiers" {
        /// The quota of this tier. With `unlimited`, neither `client` nor a share of it limits the
        /// tier, except for `concurrency` and `penalty`. There are at most 64 tiers, because each
        /// has its own policies and headers for each route and api. Write each customer's own numbers
        /// into `tenants`.
        others quotas: Named<format::Identifier, Either<Unlimited, Tier>>,
    }

    /// The quota of a tier.
    keys Tier = "tiers.NAME" {
        /// The number of units per window. A request costs 1 unit unless `costs` is set.
        required limit: Units,
        group window: Window,
        /// Additional quotas that apply at the same time, with the same algorithm. The second quota
        /// is the policy `NAME/2`, and so on.
        optional also: List<PlainQuota>,
    }

    /// Request costs. The first matching entry of `paths` applies, then the method, then `other`.
    /// GET includes HEAD.
    keys CostTable = "costs" {
        /// The cost of all other methods.
        default other: Cost = "1",
        /// Costs of some paths.
        optional paths: List<CostPath>,
        /// The cost of this method; 0 is free.
        others methods: Named<format::Method, Cost>,
    }

    /// The cost of some requests.
    keys CostPath = "costs.paths[]" {
        /// The paths with this cost.
        required path: Path,
        /// The methods with this cost. Default: all methods.
        optional method: OneOrMore<format::Method>,
        /// The cost of each request.
        required cost: Cost,
    }

    /// The options of a policy.
    keys Rules = "policy" {
        /// The algorithm. Default: `rateLimiter.strategy`.
        optional strategy: Strategy,
        /// How a token_bucket refills.
        default refill: RefillBy = "greedy",
        /// How a leaky_bucket treats an allowed request.
        default mode: BucketMode = "queue",
        /// The maximum wait in the queue of a leaky_bucket. Requests with a longer wait are denied.
        optional max_wait: Time where mode = ["queue"]: "no request waits there",
        /// The precision of the timestamps in a sliding_window_log.
        default resolution: Fineness = "auto",
        /// Accepted for compatibility with older files. It has no effect, because the state of a
        /// client expires automatically.
        optional expire_seconds: Whole<0, { u64::MAX }>,
        /// The request costs of this policy. Default: `rateLimiter.costs`.
        optional costs: Costs,
        /// How the policy treats requests while the store is unavailable. Default:
        /// `rateLimiter.onStoreError`.
        optional on_store_error: OnError,
        /// How the policy treats a request that was rejected before Redis was called. Default:
        /// `rateLimiter.shed`.
        optional shed: OnError,
        /// Makes the policy count without denying any request. Default: `rateLimiter.shadow`.
        optional shadow: Flag,
        /// Leaves the policy out of the rate limit headers. Denials still name it.
        default hide_headers: Flag = "false",
        /// Additional quotas that apply at the same time, with the same algorithm. The second quota
        /// is the policy `NAME/2`, and so on.
        optional also: List<PlainQuota>,
        /// Quotas that several clients share, such as the quota of each team. Only for a policy per
        /// client.
        optional levels: LimitLevels,
        /// How to treat a request that the policy denies: `reject`, `annotate`, `{wait: 30s}`, or
        /// `{queue: 30s}`. With `annotate` the request passes, and the target and the client get the header
        /// `X-RateLimit-Exceeded` with the policy name.
        default excess: Either<format::Excess, Excess> = "reject",
        /// Counts only requests with certain responses. Every request is charged before it is
        /// forwarded, and refunded if its response does not count.
        optional count_only: CountOnly,
        /// Forgets the client's charges, strikes and blocks under this policy after certain responses,
        /// such as a login. A client that logs in to its own account forgives its guesses at others, so
        /// the key should contain the account.
        optional forgive_on: ForgiveOn,
        /// Reserves an estimated cost that is settled after the response.
        optional reserve: Reserve,
        /// The maximum number of requests in flight, with or without a `limit`: the policy
        /// `NAME/inflight`.
        optional concurrency: Short<AtOnce, Concurrency>,
        /// Blocks a client that continues after denials, for longer each time: the policy
        /// `NAME/penalty`.
        optional penalty: Penalty,
        /// Lets gateways with a shared Redis take units in blocks. Most requests then need no call
        /// to Redis.
        optional lease: Lease,
    }
}

words! {
    /// A preset for the usual costs.
    ByMethod -> () {
        /// GET and HEAD cost 1, SEARCH and QUERY cost 3, POST, PUT and PATCH cost 5, DELETE costs
        /// 10, and other methods cost 1.
        "byMethod" => (),
    }

    /// A keyword, because a zero is usually a mistake.
    Unlimited -> () {
        /// The tier has no quota.
        "unlimited" => (),
    }

    RefillBy -> Refill {
        /// Refills continuously.
        "greedy" => Refill::Greedy,
        /// Refills completely at the end of each window. The first window starts with the first
        /// request.
        "interval" => Refill::Interval,
    }

    BucketMode -> LeakyMode {
        /// The request waits until earlier requests have drained.
        "queue" => LeakyMode::Queue { max_wait: None },
        /// The request passes immediately; the bucket only measures.
        "meter" => LeakyMode::Meter,
    }

    Fineness -> Resolution {
        /// `exact` up to a limit of 1000, and `thousandth` above.
        "auto" => Resolution::Auto,
        /// Stores every microsecond, for limits up to 100000.
        "exact" => Resolution::Exact,
        /// Rounds up to a thousandth of the window, which needs at most 1001 entries per key.
        "thousandth" => Resolution::Thousandth,
    }
}
