//! A server's certificate, and the authority that signs it.

use std::fs;
use std::path::Path;

use super::{AUTHORITY, CERTIFICATE, KEY};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Writes the authority's certificate, and the certificate and key for localhost and 127.0.0.1.
pub(super) fn write(folder: &Path) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("randomness");
    let certificate = authority.self_signed(&key).expect("fixed parameters");
    let issuer = Issuer::new(authority, key);

    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server = CertificateParams::new(names).expect("names in ASCII");
    let key = KeyPair::generate().expect("randomness");
    let signed = server.signed_by(&key, &issuer).expect("fixed parameters");

    let files =
        [(AUTHORITY, certificate.pem()), (CERTIFICATE, signed.pem()), (KEY, key.serialize_pem())];
    for (name, pem) in files {
        fs::write(folder.join(name), pem).expect("a full disk?");
    }
}
