//! Policy options besides the quota.

use serde_json::Value;

use super::value_types::{AtOnce, Megabytes, Units};
use super::window::Window;
use crate::code;
use crate::file::format;
use crate::plan::SettleBy;
use crate::yaml::problem::Checked;
use crate::yaml::spec::Shape;
use crate::yaml::typed::{
    Input, JsonScalar, Named, OneOrMore, Time, ValueType, Values, Whole, all, section, words,
};

section! {
    /// An additional quota of the same policy in the `also` of policies, tiers and tenants, or the
    /// quota of each group on a level in `client.levels`.
    keys PlainQuota = "quota" {
        /// The number of units per window. A request costs 1 unit unless `costs` is set.
        required limit: Units,
        group window: Window,
    }

    /// A request beyond the quota waits until the policy allows it. One of the keys is required. A
    /// request that would wait longer than this time is rejected immediately.
    keys Excess = "excess" either [wait queue] {
        /// The maximum wait of requests that wait within this gateway, in order of arrival. Gateways
        /// that share a store compete for free units.
        optional wait: Time,
        /// The maximum wait of requests that queue in the store, in order of arrival over all
        /// gateways. A single call charges a request and sets when it leaves. Until then it counts
        /// towards every `concurrency`. `waiting` does not bound these requests, but each key has at
        /// most as many as its quota allows within this time. A leaky_bucket needs `mode: meter`.
        /// A request beyond the policy's own `concurrency` first waits within its gateway, for up to
        /// this time too.
        optional queue: Time,
    }

    /// The responses that count. A request without a response, because the client disconnected,
    /// counts too.
    values CountOnly = "countOnly" {
        /// The statuses that count: `401`, `2xx`, or a list.
        required status: Values<OneOrMore<format::Status>>,
    }

    /// The responses that forgive, if all these conditions hold. Requests that still run are
    /// forgiven, too.
    #[derive(PartialEq, Eq)]
    values ForgiveOn = "forgiveOn" {
        /// The statuses that forgive: `200`, `2xx`, or a list.
        required status: Values<OneOrMore<format::Status>>,
        /// A header that the response must have, too: `X-Login` with any value, or `X-Login: ok`.
        optional header: format::ResponseHeader,
        /// Fields that the JSON object in the response's body must have, too: `{ok: true}`. The gateway
        /// reads the body while the client gets it, and forgives at its end. A body that is longer
        /// than 16 KiB, compressed or incomplete does not forgive.
        optional body: BodyFields,
    }

    /// Fields and their values.
    keys FieldValues = "forgiveOn.body" {
        /// The field's value, such as `true`, `0` or `ok`. Values in quotes are texts.
        others fields: Named<format::Text, JsonScalar>,
    }

    /// An estimated cost that is settled after the response. Units above the actual cost are
    /// refunded. Missing units are charged, up to one full quota beyond the limit.
    keys Reserve = "reserve" {
        /// The estimate for every request. Default: the request cost from `costs`.
        optional units: Units,
        /// The source of the actual cost. Clients do not see this header.
        default settle: SettleSource = "header",
        /// With `settle: body`, the response costs one unit for each started block of this size in
        /// bytes.
        optional bytes_per_unit: Units,
        /// The time after which the estimate becomes final. It is limited to 1h, and to the longer
        /// of 5m and the window of the limit.
        default lapse: Time = "1h",
    }

    /// The maximum number of requests in flight, which is the same in all tiers. A request counts
    /// until its response has been sent or its client disconnects; an upgrade counts until the
    /// connection is upgraded. `excess` applies to this limit too.
    keys Concurrency = "concurrency" short max either [ttl lease] {
        /// The maximum number of requests at the same time.
        required max: AtOnce,
        /// How long a crashed gateway's in-flight requests still count. Running gateways renew this
        /// time to live. The maximum is 1h.
        default ttl: Time = "30s",
        /// The earlier name of `ttl`.
        optional lease: Time,
    }

    /// Blocks a client after a number of strikes: all its requests to the policy are denied
    /// (`#blocked`). With `of: denials`, a denial by any policy of the request is a strike, except
    /// a denial by the block itself.
    keys Penalty = "penalty" {
        /// The number of strikes that start a block.
        required strikes: Whole<1, 1_000>,
        /// The time within which strikes are counted.
        required within: Time,
        /// The length of the first block. Default: the value of `within`.
        optional block: Time,
        /// The growth of each block over the previous block; 1 for constant blocks.
        default factor: Whole<1, 1_000_000> = "2",
        /// The maximum length of a block. Default: one day, or the first block if it is longer.
        optional longest: Time,
        /// The time without a block after which the next block has the initial length again.
        default forget_after: Time = "24h",
        /// The event that counts as a strike.
        default of: StrikeBy = "denials",
        /// The responses that are strikes. Default: the policy's own `countOnly`.
        optional count_only: CountOnly
            where of = ["failures"]: "a denial is a strike at any status",
    }

    /// Blocks of units that a gateway takes from Redis in advance. The limit still holds exactly,
    /// but up to `share` of the quota may remain unused in each gateway. A request needs no call to
    /// Redis if all its policies are leased.
    keys Lease = "lease" {
        /// The maximum share of the quota that one gateway holds.
        default share: format::Share = "1/20",
        /// The time to live of a lease, from 10ms up to the window.
        default ttl: Time = "1s",
    }

    /// Bounds on waiting requests. Further requests are rejected.
    values Waiting = "waiting" {
        /// The maximum number of waiting requests.
        default requests: Whole<0, 1_000_000, usize> = "1024",
        /// The maximum memory in MiB for waiting requests. A request counts with its headers and
        /// with the part of its body that is read before forwarding: its `Content-Length` up to 1
        /// MiB, or 1 MiB if the length is unknown.
        default bytes as "megabytes": Megabytes<1, 1_000_000> = "64",
    }
}

/// The fields with their values.
pub(crate) struct BodyFields;

impl ValueType for BodyFields {
    type Value = Vec<(String, Value)>;
    const SHAPE: Shape = FieldValues::SHAPE;

    fn read(input: Input<'_>) -> Checked<Self::Value> {
        let FieldValues { info, fields } = *FieldValues::read(input)?;
        if fields.all.is_empty() {
            return Err(info.location.error(
                code::EMPTY_LIST,
                "no field is named",
                "write a field, such as `ok: true`",
            ));
        }
        all(fields.all, |(name, item)| Ok((name, item.value?)))
    }
}

words! {
    SettleSource -> SettleBy {
        /// The response header `x-tollgate-cost`, a whole number of units.
        "header" => SettleBy::Header,
        /// The trailer `x-tollgate-cost`, or the size of the body; see `bytesPerUnit`.
        "body" => SettleBy::Trailer,
    }

    StrikeBy -> bool {
        /// Denied requests.
        "denials" => false,
        /// Responses that match `countOnly`.
        "failures" => true,
    }
}
