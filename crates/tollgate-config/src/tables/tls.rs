//! TLS of clients, and to targets.

use super::super::{format, problem, spec, typed};
use typed::{List, section, words};

section! {
    /// The certificates of the listener.
    Tls = "listen[].tls" {
        /// A PEM file with the certificate chain; the server certificate is first.
        required certificate: format::File,
        /// A PEM file with the private key.
        required key: format::File,
        /// Certificates for other host names. A client gets the first certificate with the name that
        /// it asks for (SNI), or with a wildcard such as `*.example.com` for the name's first label.
        /// For any other name, it gets `certificate`.
        optional sni: List<Certificate>,
        /// A PEM file with certificate authorities. Clients then need a certificate that these
        /// authorities have signed.
        optional client_ca: format::File,
        /// Whether clients without a certificate can connect.
        default client_certificate: ClientCertificate = "required"
            where client_ca: "clients are asked for no certificate",
    }

    /// A certificate and its key.
    Certificate = "certificate" {
        /// A PEM file with the certificate chain; the owner's certificate is first.
        required certificate: format::File,
        /// A PEM file with the private key.
        required key: format::File,
    }

    /// TLS to a target. The gateway reloads the files when they change.
    TargetTls = "target.tls" {
        /// A PEM file with certificate authorities. They replace the system's authorities.
        required ca: format::File,
        /// The certificate with which the gateway identifies itself to the target.
        optional client_certificate: Certificate,
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
