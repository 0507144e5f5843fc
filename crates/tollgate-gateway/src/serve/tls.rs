//! Certificates of listeners.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::build::BuildError;
use crate::plan::TlsFiles;

/// Reads a chain and its key. It is done again at every reload, so that a renewed
/// certificate is served from the next connection on.
pub(super) fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>, BuildError> {
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(&files.certificate, &error))?;
    if chain.is_empty() {
        return Err(unreadable(&files.certificate, &pem::Error::NoItemsFound));
    }
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, &error))?;
    let provider = crypto::ring::default_provider();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| {
        BuildError(format!(
            "{} with {}: {error}; the key must be that of the first certificate",
            files.certificate.display(),
            files.key.display(),
        ))
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn unreadable(file: &Path, error: &pem::Error) -> BuildError {
    let cure = match error {
        pem::Error::Io(_) => "check the path and who may read it",
        _ => "it must be PEM, the certificate of this server first or its private key",
    };
    BuildError(format!("{}: {error}; {cure}", file.display()))
}
