//! TLS to Redis.

use std::sync::Arc;

use fred::types::config::{TlsConfig, TlsConnector};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Why TLS could not be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The given certificates could not be read or used.
    #[doc(alias = "TG0304")]
    #[error("{0}; give the authority's certificates as PEM (-----BEGIN CERTIFICATE-----) [TG0304]")]
    Certificates(String),
    /// No authority was given, and this system trusts none.
    #[doc(alias = "TG0304")]
    #[error(
        "this system has no trusted certificates; install ca-certificates, or give the \
         authority's own [TG0304]"
    )]
    NoRoots,
}

/// Returns a TLS configuration that trusts only these authorities, or by default the system's.
///
/// It names its crypto provider explicitly. A process whose dependencies enable several providers
/// has no default, and rustls would panic.
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
            // A system's store often has some unreadable certificates, and the remaining ones are
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
