//! The settings of the public listeners.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tollgate::key::TrustedProxies;
use tollgate_config::files::{self, FileError};
use tollgate_config::plan::{Front, Plan};

/// A listener's address in the file, where port 0 lets the system choose the port.
pub(crate) type ListenerKey = (SocketAddr, Front);

#[derive(Clone, Debug)]
pub(crate) struct ListenerSettings {
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) proxy_protocol: Option<TrustedProxies>,
    pub(crate) most: usize,
    pub(crate) most_per_address: usize,
    pub(crate) front: Front,
}

impl ListenerSettings {
    /// Returns the settings of all listeners, each with its maximum number of connections.
    ///
    /// # Errors
    /// A certificate cannot be read. A reload reads them again, so new connections get a renewed
    /// certificate.
    pub(crate) fn all(
        plan: &Plan,
        most: Vec<usize>,
    ) -> Result<HashMap<ListenerKey, Self>, FileError> {
        let listeners = plan.listen.iter().zip(most).map(|((front, listen), most)| {
            let settings = Self {
                tls: listen.tls.as_ref().map(files::tls).transpose()?,
                proxy_protocol: listen.proxy_protocol.clone(),
                most,
                most_per_address: listen
                    .max_connections_per_address
                    .unwrap_or_else(|| (most / 4).max(16)),
                front: *front,
            };
            Ok(((listen.address, *front), settings))
        });
        listeners.collect()
    }
}
