//! The rest of a policy, besides its quota.

use crate::plan::SettleBy;

use super::super::{format, spec, typed};
use super::limits::Window;
use super::{AtOnce, Units};
use typed::{OneOrMore, Time, Whole, section, words};

section! {
    /// A quota beside another one.
    Bandwidth = "also[]" either [window window_seconds calendar] {
        /// Units per window; a request costs 1 unless `costs` says otherwise.
        required limit: Units,
        group window: Window,
    }

    /// A denied request waits until it passes.
    Excess = "excess" {
        /// The longest wait. Who would wait longer is refused at once.
        required wait: Time,
    }

    /// Which responses count. Whatever has no response, because the client leaves, counts.
    CountOnly = "countOnly" {
        /// Which statuses: `401`, `2xx`, or a list.
        required status: OneOrMore<format::Status>,
    }

    /// An estimate that is corrected. Units above the actual cost are refunded; missing units are
    /// charged now, up to one whole quota beyond the limit.
    Reserve = "reserve" {
        /// The estimate for every request. Without it, what `costs` says.
        optional units: Units,
        /// The source of the actual cost. The header does not reach the client.
        default settle: SettleSource = "header",
        /// With `settle: body`, the response costs one unit for each started block of this number
        /// of bytes.
        optional bytes_per_unit: Units,
        /// How long after the decision it may be corrected; afterwards the estimate stands. Never
        /// longer than the window of the limit or 5m, whichever is longer, nor than 1h.
        default lapse: Time = "1h",
    }

    /// How many requests may be under way at once, in each tier the same. One counts until the end
    /// of its response, or until its client leaves; an upgraded connection until it is upgraded.
    /// `excess` holds for it too.
    Concurrency = "concurrency" {
        /// The most at once.
        required max: AtOnce,
        /// How long what a gateway had under way counts after it died; while it lives, it renews
        /// that. At most an hour.
        default lease: Time = "30s",
    }

    /// After `strikes` strikes all requests of the policy are denied for a time (`#blocked`). With
    /// `of: denials` each denial of the same client is a strike, by whichever policy of the
    /// request, but none by the block itself.
    Penalty = "penalty" {
        /// How many strikes lead to a block.
        required strikes: Whole<1, 1_000>,
        /// Within which time.
        required within: Time,
        /// How long the first block lasts. Without it, as long as `within`.
        optional block: Time,
        /// Each block is this many times as long as the previous block; 1 for blocks that do not
        /// grow.
        default factor: Whole<1, 1_000_000> = "2",
        /// No block lasts longer. Without it, a day, or the first block if that is longer.
        optional longest: Time,
        /// After this time without a block, the next block has the first length again.
        default forget_after: Time = "24h",
        /// The event that is a strike.
        default of: StrikeBy = "denials",
        /// With `of: failures`, which responses are strikes. Without it, the responses of the
        /// policy's own `countOnly`.
        optional count_only: CountOnly,
    }

    /// Fewer calls to Redis for a client that is busy, and never more than the limit; but up to the
    /// share that each gateway holds may lie unused. A request is spared the call where every
    /// policy it meets is leased.
    Lease = "lease" {
        /// The most of the quota that a gateway holds at a time.
        default share: format::Share = "1/20",
        /// For how long: from 10ms up to the window.
        default ttl: Time = "1s",
    }

    /// Bounds on requests that wait. Requests beyond a bound are rejected.
    Waiting = "waiting" {
        /// The most requests at once.
        default requests: Whole<0, 1_000_000, usize> = "1024",
        /// The most memory for them: their fields, and of each body what is taken in before it is
        /// forwarded, the length that it states or 1 MiB.
        default megabytes: Whole<1, 1_000_000, usize> = "64",
    }
}

words! {
    SettleSource -> SettleBy {
        /// The field `x-tollgate-cost` of the response, a whole number of units.
        "header" => SettleBy::Header,
        /// The same field among the trailers of the body, or the bytes of the body; see
        /// `bytesPerUnit`.
        "body" => SettleBy::Trailer,
    }

    StrikeBy -> bool {
        /// Requests that are denied.
        "denials" => false,
        /// Responses that `countOnly` is about.
        "failures" => true,
    }
}
