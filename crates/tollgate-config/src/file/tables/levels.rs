//! Levels above clients, and the quotas of their groups.

use super::options::PlainQuota;
use super::value_types::{Proxies, Units};
use crate::file::format;
use crate::yaml::typed::{Named, OneOrMore, Short, Written, section, words};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupKey {
    ApiKey,
    Claim,
    Header,
    Body,
    Everyone,
}

section! {
    /// The levels above clients, such as teams and organisations. A limit's `levels` sets the quotas
    /// of each group on a level, for example of each team. All levels are charged, or the request is
    /// denied.
    keys Levels = "levels" {
        /// How the gateway finds a request's group on this level. In a list, the first entry that
        /// finds a group applies. A request without a group skips the limits of this level.
        others levels: Named<format::Level, OneOrMore<Short<GroupWord, Level>>>,
    }

    /// How to find the group of a request.
    keys Level = "levels.NAME" short key {
        /// The request part that identifies the group.
        required key: Written<GroupWord>,
        /// The name of the claim, header or field.
        optional name: Written<format::Text>
            where key = ["claim" "header" "body"]: "it names a claim, a header or a field",
        /// The proxies that set the header. It is ignored in all other requests.
        optional trusted_proxies: Proxies where key = ["header"]: "no proxy writes this",
    }

    /// The groups of an API key.
    keys Groups = "apiKeys.keys[].levels" {
        /// The group on this level of `rateLimiter.levels`.
        others groups: Named<format::Level, format::Text>,
    }

    /// The quotas of groups, in addition to each client's quota. The policy of the level `team` is
    /// `NAME/team`, with the algorithm and the other settings of `NAME`, except `concurrency`,
    /// `penalty`, `forgiveOn` and `also`.
    keys LimitLevels = "client.levels" {
        /// The quota of each group on this level of `rateLimiter.levels`.
        others levels: Named<format::Level, PlainQuota>,
    }

    /// Budgets of groups, in addition to each client's budgets.
    keys LlmLevels = "llm.levels" {
        /// The budgets of each group on this level of `rateLimiter.levels`.
        others levels: Named<format::Level, LlmLevel>,
    }

    /// The budgets of each group on a level. The policies of the level `team` are `requests/team`,
    /// `tokens/team` and `budget/team`.
    keys LlmLevel = "llm.levels.NAME" {
        /// The requests per minute.
        optional requests_per_minute: Units,
        /// The input and output tokens per minute.
        optional tokens_per_minute: Units,
        /// The amount of money per calendar month in `timeZone`, such as `50` or `50 USD`.
        optional monthly_budget: format::Money,
    }
}

words! {
    GroupWord -> GroupKey {
        /// The group in the API key's `levels`; see `apiKeys`.
        "apiKey" => GroupKey::ApiKey,
        /// The claim `name` of a verified token; see `jwt`.
        "claim" => GroupKey::Claim,
        /// The header `name`, which `trustedProxies` set.
        "header" => GroupKey::Header,
        /// The field `name` of a JSON object or a form, such as the account of a login. The gateway
        /// reads at most 64 KiB of the body before it decides. It compares names and values without
        /// upper case and without spaces around them. A request with several values, or with a body
        /// and a value in the query, gets 400. Requests without a known value form one group. Only
        /// for `apis`.
        "body" => GroupKey::Body,
        /// All requests are in one group.
        "everyone" => GroupKey::Everyone,
    }
}
