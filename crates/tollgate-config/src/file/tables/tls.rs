//! TLS of clients, and to targets.

use super::value_types::WatchedFile;
use crate::yaml::typed::{List, Values, section, words};

section! {
    /// The certificates of the listener.
    #[derive(PartialEq, Eq)]
    values TlsFiles = "listen[].tls" {
        /// A PEM file with the certificate chain; the server certificate is first.
        required certificate: WatchedFile,
        /// A PEM file with the private key.
        required key: WatchedFile,
        /// Certificates for other host names. A client gets the first certificate with the name that
        /// it asks for (SNI), or with a wildcard such as `*.example.com` for the name's first label.
        /// For any other name, it gets `certificate`.
        optional sni: Values<List<CertificateFiles>>,
        /// A PEM file with certificate authorities. Clients then need a certificate that these
        /// authorities have signed.
        optional client_ca: WatchedFile,
        /// Whether clients without a certificate can connect.
        default is_client_optional as "clientCertificate": ClientCertificate = "required"
            where client_ca: "clients are asked for no certificate",
    }

    /// A certificate and its key.
    #[derive(PartialEq, Eq)]
    values CertificateFiles = "certificate" {
        /// A PEM file with the certificate chain; the owner's certificate is first.
        required certificate: WatchedFile,
        /// A PEM file with the private key.
        required key: WatchedFile,
    }

    /// TLS to a target. The gateway reloads the files when they change.
    #[derive(PartialEq, Eq)]
    values TargetTlsFiles = "target.tls" {
        /// A PEM file with certificate authorities. They replace the system's authorities.
        required ca: WatchedFile,
        /// The certificate with which the gateway identifies itself to the target.
        optional client_certificate: CertificateFiles,
    }
}

words! {
    ClientCertificate -> bool {
        /// Clients without a certificate cannot connect.
        "required" => false,
        /// Clients can connect without a certificate. An invalid certificate is always rejected.
        "optional" => true,
    }
}
