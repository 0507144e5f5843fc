use tokio_rustls::rustls::pki_types::CertificateDer;
use tollgate::key::{KeySource, from_fn};
use webpki::EndEntityCert;

/// The owner of a verified client certificate, stored in the connection's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate(Vec<u8>);

impl ClientCertificate {
    /// The first URI of the certificate, which is the ID in SPIFFE. Otherwise its first DNS name, or
    /// its subject. These remain the same when a certificate is renewed.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let (uri, dns) = (parsed.valid_uri_names().next(), parsed.valid_dns_names().next());
        // With a prefix, because a DNS name could otherwise equal the bytes of a subject.
        Some(Self(match (uri, dns) {
            (Some(uri), _) => [b"uri=", uri.as_bytes()].concat(),
            (None, Some(dns)) => [b"dns=", dns.as_bytes()].concat(),
            (None, None) => [b"subject=", parsed.subject()].concat(),
        }))
    }
}

pub(crate) fn client_certificate() -> impl KeySource {
    from_fn(|head| Some(head.extensions.get::<ClientCertificate>()?.0.clone()))
}
