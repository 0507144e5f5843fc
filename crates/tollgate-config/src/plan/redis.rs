use std::time::Duration;

use super::Secret;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisPlan {
    /// `redis://…`, `rediss://…` or `redis+unix://…`; may contain a password.
    pub url: Secret,
    pub timeout: Duration,
    pub topology: Topology,
    /// The key with which identities are hashed, the same on all replicas.
    pub key_secret: Option<Secret>,
    /// The share of each quota that a policy with `onStoreError: local` grants while Redis is down:
    /// numerator and denominator. `None` divides it by the number of gateways.
    pub local_share: Option<(u32, u32)>,
}

impl RedisPlan {
    /// A single server with default settings.
    pub fn of_url(url: Secret) -> Self {
        let (timeout, topology) = (Duration::from_millis(50), Topology::Single);
        Self { url, timeout, topology, key_secret: None, local_share: None }
    }

    /// The URL including the topology, in the store's format; may contain a password.
    pub fn full_url(&self) -> String {
        let url = self.url.reveal();
        let marked = |mark: &str| match url.split_once("://") {
            Some((scheme, rest)) if !scheme.ends_with(mark) => format!("{scheme}{mark}://{rest}"),
            _ => url.to_owned(),
        };
        match &self.topology {
            Topology::Single => url.to_owned(),
            Topology::Cluster => marked("-cluster"),
            Topology::Sentinel { master } => {
                let url = marked("-sentinel");
                let mark = if url.contains('?') { '&' } else { '?' };
                format!("{url}{mark}service={master}")
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    #[default]
    Single,
    Cluster,
    Sentinel {
        master: String,
    },
}
