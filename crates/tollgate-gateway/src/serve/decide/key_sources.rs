//! The parts of requests that identify clients.

use tollgate::key::{ApiKey, ClientIp, TrustedProxies, UnverifiedApiKey};
use tollgate_config::plan::{ApiKeyHeader, ForwardingHeader, IdentitySource, Plan};

use crate::serve::error::BuildError;

/// The client addresses, as the first address source in `identity` finds them.
pub(crate) fn addresses(plan: &Plan) -> Result<ClientIp, BuildError> {
    for source in &plan.identity {
        if let IdentitySource::Ip { trusted_proxies, header, v4_prefix, v6_prefix } = source {
            return client_ip(trusted_proxies, header.as_ref(), *v4_prefix, *v6_prefix);
        }
    }
    Ok(ClientIp::peer().trusting(plan.trusted_proxies.clone()))
}

pub fn client_ip(
    proxies: &TrustedProxies,
    header: Option<&ForwardingHeader>,
    v4_prefix: u8,
    v6_prefix: u8,
) -> Result<ClientIp, BuildError> {
    let behind = ClientIp::peer().trusting(proxies.clone());
    let source = match header {
        None => ClientIp::peer(),
        Some(ForwardingHeader::XForwardedFor) => behind,
        Some(ForwardingHeader::Forwarded) => behind.in_forwarded(),
        Some(ForwardingHeader::Single(name)) => behind.in_single_header(name.clone()),
    };
    Ok(source.v4_prefix(v4_prefix)?.v6_prefix(v6_prefix)?)
}

pub(crate) fn api_key(header: &ApiKeyHeader) -> UnverifiedApiKey {
    match header {
        ApiKeyHeader::Header(name) => ApiKey::in_header(name.clone()),
        ApiKeyHeader::Authorization(scheme) => ApiKey::in_authorization(scheme.as_str()),
    }
}
