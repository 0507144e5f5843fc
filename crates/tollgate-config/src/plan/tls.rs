//! The files for TLS.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate for clients that ask for none of the other names.
    pub default: CertificateFiles,
    pub others: Vec<CertificateFiles>,
    /// Certificate authorities, if clients are asked for a certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without a certificate may connect.
    pub is_client_optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetTlsFiles {
    /// The authorities that the gateway trusts.
    pub ca: PathBuf,
    /// The gateway's own certificate, which the target may require.
    pub client: Option<CertificateFiles>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, starting with the owner's certificate.
    pub certificate: PathBuf,
    pub key: PathBuf,
}
