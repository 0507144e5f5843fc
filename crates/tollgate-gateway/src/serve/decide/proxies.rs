//! The proxies in front of the gateway that name a request's client.

use std::net::IpAddr;

use http::HeaderName;
use http::header::FORWARDED;
use tollgate::key::{ClientIp, RequestHead, TrustedProxies as Networks};
use tollgate_config::plan::{ForwardingHeader, IdentitySource, Plan};

use super::key_sources;
use crate::serve::error::BuildError;

#[derive(Clone, Debug)]
pub(crate) struct TrustedProxies {
    networks: Networks,
    /// Reads [`header`].
    client: ClientIp,
}

impl TrustedProxies {
    pub(crate) fn of(plan: &Plan) -> Result<Self, BuildError> {
        let client = key_sources::addresses(plan)?;
        Ok(Self { networks: plan.trusted_proxies.clone(), client })
    }

    /// The client's address, if a trusted proxy sent the request from `peer`.
    pub(crate) fn client(&self, head: &RequestHead<'_>, peer: IpAddr) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        let is_trusted = self.networks.contains(peer);
        is_trusted.then(|| self.client.address(head).ok().flatten().unwrap_or(peer))
    }
}

/// The header in which the proxies write the client's address.
pub(crate) fn header(plan: &Plan) -> HeaderName {
    let header = plan.identity.iter().find_map(|source| match source {
        IdentitySource::Ip { header, .. } => header.as_ref(),
        _ => None,
    });
    match header {
        None | Some(ForwardingHeader::XForwardedFor) => X_FORWARDED_FOR,
        Some(ForwardingHeader::Forwarded) => FORWARDED,
        Some(ForwardingHeader::Single(name)) => name.clone(),
    }
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
