//! What a service's test cannot have.

use tollgate_replay::scenario::Requests;

pub(crate) const GATEWAY: &str =
    "only applies to the gateway's limits, which `tollgate test` tests";

/// Returns a field that only applies to the gateway.
pub(crate) fn gateway_field(requests: &Requests) -> Option<&'static str> {
    let fields = [
        ("replica", requests.replica.is_some()),
        ("user", requests.user.is_some()),
        ("tier", requests.tier.is_some()),
        ("answer", requests.answer != 200),
        ("bytes", requests.bytes > 0),
    ];
    fields.into_iter().find(|(_, is_set)| *is_set).map(|(field, _)| field)
}
