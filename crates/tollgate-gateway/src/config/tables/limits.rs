use tollgate::calendar::Unit;
use tollgate::policy::{LeakyMode, Refill, Resolution};

use crate::plan::Whose;

use super::super::{format, spec, typed};
use super::beside::{Bandwidth, Concurrency, CountOnly, Excess, Lease, Penalty, Reserve};
use super::server::Path;
use super::{AtOnce, OnError, Strategy, Units};
use typed::{Either, Flag, List, Named, OneOrMore, Time, Whole, section, words};

/// 400 days, the longest window of a policy.
type Seconds = Whole<1, { 400 * 86_400 }>;

type Cost = Whole<0, { tollgate::Policy::MAX_LIMIT }>;

pub(in crate::config) type Costs = Either<ByMethod, CostTable>;

section! {
    /// A policy: how much per how long. `global` has the same keys.
    Policy = "client" either [window window_seconds calendar] {
        /// The name that denials give; counters belong to it. Without it, `global` or `client`.
        optional identifier: format::Identifier,
        /// Units per window; a request costs 1 unless `costs` says otherwise. Without it,
        /// `concurrency` or `penalty` is the whole limit.
        optional limit: Units,
        group window: Window,
        group rules: Rules,
    }

    /// A policy for some requests. It counts for each client by itself.
    Api = "apis[]" either
        [limit share] [window window_seconds calendar share] [refill_seconds share] [burst share]
        [also share]
    {
        /// The name that denials give, unique; counters belong to it.
        required identifier: format::Identifier,
        /// Which paths.
        required path: Path,
        /// Which method, or a list. GET covers HEAD. Without it, all.
        optional method: OneOrMore<format::Method>,
        /// The owner of the quota.
        default per: Owner = "client",
        /// Units per window. Without it, `share` says how many; or `concurrency` or `penalty` is
        /// the whole limit.
        optional limit: Units,
        group window: Window,
        /// A part of the quota of `client`, in each tier of that tier's: `1/10`. In place of limit,
        /// window and burst.
        optional share: format::Share,
        group rules: Rules,
    }

    /// Quotas in place of `client`'s, each under the name of its tier. Algorithm and all else are
    /// those of `client`.
    Tiers = "tiers" {
        /// The quota of a client in the tier of this name, or `unlimited`: neither `client` nor a
        /// share of it applies there, except `concurrency` and `penalty`.
        others quotas: Named<format::Identifier, Either<Unlimited, Tier>>,
    }

    /// A quota, or with `also` several at the same time.
    Tier = "tiers.NAME" either [window window_seconds calendar] {
        /// Units per window; a request costs 1 unless `costs` says otherwise.
        required limit: Units,
        group window: Window,
        /// Further quotas that hold at the same time, with the same algorithm: a request needs room
        /// in all of them. The second is the policy `NAME/2`, and so on.
        optional also: List<Bandwidth>,
    }

    /// The costs of requests: the first of `paths` that matches, else the method's, else `other`.
    /// GET covers HEAD.
    CostTable = "costs" {
        /// A request of any other method.
        default other: Cost = "1",
        /// Requests to some paths.
        optional paths: List<CostPath>,
        /// A request of this method; 0 is free.
        others methods: Named<format::Method, Cost>,
    }

    /// A cost for some requests.
    CostPath = "costs.paths[]" {
        /// Which paths.
        required path: Path,
        /// Which method, or a list. Without it, all.
        optional method: OneOrMore<format::Method>,
        /// The cost of these requests.
        required cost: Cost,
    }

    /// How long a limit is for.
    Window = "window" {
        /// How long the limit holds for: `500ms`, `60s`, `1h`.
        optional window: Time,
        /// The same in seconds.
        optional window_seconds: Seconds,
        /// The time in which `limit` units are refilled (token_bucket) or drain (leaky_bucket); in
        /// place of the window, and without effect on other algorithms.
        optional refill_seconds: Seconds,
        /// The period of the limit, by the clocks of `timeZone`, in place of the window; only for
        /// fixed_window_counter.
        optional calendar: Period,
        /// The time zone of the days, weeks or months of `calendar`: `Europe/Berlin`. Without it,
        /// `UTC`.
        optional time_zone: format::TimeZone,
        /// The most units at once, for token_bucket and leaky_bucket. Without it, the limit.
        optional burst: Units,
    }

    /// The rest of a policy, besides its quota.
    Rules = "policy" {
        /// The algorithm. Without it, `rateLimiter.strategy`.
        optional strategy: Strategy,
        /// How a token_bucket is refilled.
        default refill: RefillBy = "greedy",
        /// The action of a leaky_bucket for a request that fits.
        default mode: BucketMode = "queue",
        /// The longest wait in the queue of a leaky_bucket; who would wait longer is denied.
        optional max_wait: Time,
        /// How finely a sliding_window_log keeps instants.
        default resolution: Fineness = "auto",
        /// Accepted for the sake of older files, and without effect: what is kept of a client
        /// expires by itself.
        optional expire_seconds: Whole<0, { u64::MAX }>,
        /// The costs of requests here, in place of `rateLimiter.costs`.
        optional costs: Costs,
        /// How the policy treats requests while the store cannot decide. Without it,
        /// `rateLimiter.onStoreError`.
        optional on_store_error: OnError,
        /// How the policy treats a request that was refused before it was sent to Redis, because no
        /// answer could come in time. Without it, `rateLimiter.shed`.
        optional shed: OnError,
        /// The policy only watches. Without it, `rateLimiter.shadow`.
        optional shadow: Flag,
        /// Further quotas that hold at the same time, with the same algorithm: a request needs room
        /// in all of them. The second is the policy `NAME/2`, and so on.
        optional also: List<Bandwidth>,
        /// The action for a request that the policy denies: `reject`, or `{wait: 30s}`.
        default excess: Either<format::Excess, Excess> = "reject",
        /// Counts only some responses. Every request is charged before it is forwarded, and
        /// refunded if its response does not count.
        optional count_only: CountOnly,
        /// For costs that are known only afterwards: an estimate is charged first and corrected
        /// later.
        optional reserve: Reserve,
        /// How many requests may be under way at once, besides the limit or without one: the policy
        /// `NAME/inflight`. A number, or a section.
        optional concurrency: Either<AtOnce, Concurrency>,
        /// Blocks a client that does not stop, for longer each time: the policy `NAME/penalty`.
        optional penalty: Penalty,
        /// Gateways that share a Redis take units in blocks and spend them without asking it.
        optional lease: Lease,
    }
}

words! {
    /// Short for the usual costs.
    ByMethod -> () {
        /// GET and HEAD cost 1, SEARCH and QUERY 3, POST, PUT and PATCH 5, DELETE 10, others 1.
        "byMethod" => (),
    }

    /// A word, because a zero is mostly a mistake.
    Unlimited -> () {
        /// Nothing holds there.
        "unlimited" => (),
    }

    Period -> Unit {
        /// From midnight to midnight.
        "day" => Unit::Day,
        /// From Monday to Monday.
        "week" => Unit::Week,
        /// From the first to the first.
        "month" => Unit::Month,
    }

    RefillBy -> Refill {
        /// Continuously.
        "greedy" => Refill::Greedy,
        /// All at once, at the end of each window; the first begins with the first request.
        "interval" => Refill::Interval,
    }

    BucketMode -> LeakyMode {
        /// The request waits until the work before it has drained.
        "queue" => LeakyMode::Queue { max_wait: None },
        /// The request passes at once; the bucket only measures.
        "meter" => LeakyMode::Meter,
    }

    Fineness -> Resolution {
        /// `exact` up to a limit of 1000, `thousandth` above.
        "auto" => Resolution::Auto,
        /// Every microsecond; at most a limit of 100000.
        "exact" => Resolution::Exact,
        /// A thousandth of the window, rounded up: at most 1001 entries a key.
        "thousandth" => Resolution::Thousandth,
    }

    Owner -> Whose {
        /// Each client has its own.
        "client" => Whose::Client,
        /// One for all.
        "everyone" => Whose::Everybody,
    }
}
