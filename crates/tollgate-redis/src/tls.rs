//! TLS to Redis.

use std::sync::Arc;

use fred::types::config::{TlsConfig, TlsConnector};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Certificates that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The given file has another format.
    #[error("{0}: give the certificates of the authority as PEM, -----BEGIN CERTIFICATE-----")]
    Certificates(String),
    /// No authority was given, and this system trusts no authority.
    #[error(
        "no trusted certificate is found on this system; install ca-certificates or give the \
         authority's own"
    )]
    NoRoots,
}

/// TLS that trusts only these authorities, or else the authorities of the system.
///
/// It names its cryptography, because a process whose crates brought several has no
/// default, and rustls panics when asked for one.
pub(crate) fn config(authorities: Option<&[u8]>) -> Result<TlsConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| bad(&error))?;
                roots.add(certificate).map_err(|error| bad(&error))?;
            }
            if roots.is_empty() {
                return Err(TlsError::Certificates("no certificate in it".to_owned()));
            }
        }
        None => {
            // A store usually has some certificates that cannot be read; the other certificates are
            // enough.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(TlsError::NoRoots);
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(config).into())
}

fn bad(error: &dyn std::error::Error) -> TlsError {
    TlsError::Certificates(error.to_string())
}
