//! Tenants: clients, or groups of clients, with their own numbers.

use tollgate::tier::{OnLookupFailure, OnUnknownClient};

use super::limits::Unlimited;
use super::options::PlainQuota;
use super::value_types::{Units, WatchedFile};
use super::window::Window;
use crate::file::format;
use crate::yaml::problem::Checked;
use crate::yaml::spec::{Property, Section, Shape};
use crate::yaml::typed::{
    Either, Hidden, Input, List, Named, Short, ValueType, Whole, Written, durations, section, words,
};

section! {
    /// Each tenant's own numbers, which replace the quota of `client`, or of a level in
    /// `client.levels`. Apis with a `share` of `client` and with `per: client`, the default, grant this
    /// share of a client's numbers. Set exactly one of `file`, `http` and `redis`.
    keys Tenants = "tenants" either [file http redis] {
        /// Whose numbers these are: `client`, or the name of a level, such as `organisation`.
        ///
        /// A client's name is its API key's `tenant` (by default the key's SHA-256), a user's id, or
        /// the value that `identity` finds. The kind precedes the names of clients that the first
        /// entry of `identity` does not find, such as `apiKey:acme`. An address is a tenant only if
        /// `ip` is the first entry.
        default of: Written<format::Level> = "client",
        /// A file with the numbers; see [below](#the-tenants-file). A change applies within two
        /// seconds and reloads nothing else. If the file becomes invalid, its last valid contents
        /// remain in use.
        optional file: WatchedFile,
        /// Another service that returns a tenant's numbers as JSON.
        optional http: Short<format::TenantsUrl, TenantsHttp>,
        /// Values in Redis, with a tenant's numbers as JSON.
        optional redis: TenantsRedis,
        /// How long a result is used. A tenant that sends requests is looked up about twice in this
        /// time, so no request waits for it. A change of the file applies immediately.
        default ttl: TenantTtl = "60s",
        /// How long a tenant's first request waits for its numbers.
        default timeout: TenantTimeout = "2s",
        /// The maximum number of tenants in memory. Beyond it, the least active tenants are looked
        /// up again.
        default capacity: Whole<1, 10_000_000, usize> = "10000",
        /// The numbers of a tenant while the source fails. They never exceed the tenant's last known
        /// numbers. A result that does not fit the algorithm counts as a failure.
        default on_failure: OnFailure = "lastKnown",
        /// The numbers of a tenant that the source does not contain.
        default on_unknown: OnUnknown = "default",
    }

    /// A service with the tenants' numbers. It receives a GET request for each tenant and answers
    /// 200 with a JSON object, which has the keys of a tenant in [the file](#the-tenants-file), such
    /// as `{"limit": 5000, "windowSeconds": 60}`. An unknown key in it is a failure. 404 means an
    /// unknown tenant. Redirects are not followed, and other answers are failures.
    keys TenantsHttp = "tenants.http" short url {
        /// The URL, in which `{tenant}` is replaced by the percent-encoded name.
        required url: format::TenantsUrl,
        /// Sent as `Authorization: Bearer …`. Use an environment variable.
        optional token: Hidden<format::BearerToken>,
    }

    /// The tenants' numbers in Redis. The gateway opens its own connection, so slow look-ups delay no
    /// decision.
    keys TenantsRedis = "tenants.redis" {
        /// The server, written like `store.redis.url`. Default: the server of `store.redis`.
        optional url: Hidden<format::RedisUrl>,
        /// A hash with a field for each tenant. With `{tenant}` in it, a string for each tenant:
        /// `tenant:{tenant}`.
        default key: format::Text = "tollgate:tenants",
    }

    /// A file with the tenants' numbers, which `tenants.file` names. It may have 32 MiB.
    keys TenantsFile = "The tenants file" {
        /// The tenants by name.
        required tenants: TenantList,
    }

    /// A tenant's numbers. The algorithm and all other settings are those of `client`.
    keys Tenant = "tenants.NAME" either
        [tier limit] [tier window] [tier window_seconds] [tier calendar] [tier refill_seconds]
        [tier burst] [tier also]
    {
        /// A tier of `rateLimiter.tiers`, instead of numbers.
        optional tier: Written<format::Identifier>,
        /// The number of units per window.
        optional limit: Units,
        group window: Window,
        /// Additional quotas that apply at the same time. They are numbered like those of
        /// `client.also`, which they replace, and there may be as many.
        optional also: List<PlainQuota>,
    }
}

/// The tenants by name. Only their shape is read here: each tenant is read on its own, because a file
/// may have 100 000.
pub(crate) struct TenantList;

pub(crate) type TenantOrUnlimited = Either<Unlimited, Tenant>;

impl ValueType for TenantList {
    type Value = ();
    const SHAPE: Shape = Shape::Section(|| {
        static TABLE: Section = Section {
            name: "The tenants file: tenants",
            doc: "The tenants, for example `acme: {limit: 5000, windowSeconds: 60}`.",
            properties: &[Property::Others(
                Named::<format::TenantName, TenantOrUnlimited>::others(
                    "The tenant's numbers. With `unlimited`, neither `client` nor a share of it limits the \
                 tenant, except for `concurrency` and `penalty`.",
                ),
            )],
            either: &[],
        };
        &TABLE
    });

    fn read(input: Input<'_>) -> Checked<()> {
        if input.is_section() { Ok(()) } else { Err(input.unexpected(&Self::SHAPE)) }
    }
}

durations! {
    TenantTtl: 1_000 to 86_400_000, "a change of a tenant's numbers applies within this time";
    TenantTimeout: 1 to 60_000, "a tenant's first request waits up to this time while the source is down";
}

words! {
    OnFailure -> OnLookupFailure {
        /// The last known numbers. If none are known, those of `client`.
        "lastKnown" => OnLookupFailure::LastKnown,
        /// The numbers of `client`, unless the last known numbers are smaller.
        "default" => OnLookupFailure::LimitQuota,
        /// Rejects the tenant's requests with 503.
        "refuse" => OnLookupFailure::Refuse,
    }

    OnUnknown -> OnUnknownClient {
        /// The numbers of `client`, or of the client's tier.
        "default" => OnUnknownClient::LimitQuota,
        /// Rejects the tenant's requests with 403.
        "deny" => OnUnknownClient::Refuse,
    }
}
