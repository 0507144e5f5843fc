//! The files that a configuration names: certificates, keys and lists. `tollgate serve` uses these,
//! and `tollgate check` only tries to read them.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, Error as TlsError, InconsistentKeys, RootCertStore, ServerConfig, crypto,
};
use tollgate::access::{SubjectList, SubjectListError};
use tollgate::key::{JwtKey, JwtKeyError, JwtKeys};
use tollgate_proxy::settings::TargetTls;
use webpki::EndEntityCert;

use crate::code::{self, Code};
pub use crate::file::read::tenants_file::{known_tenants, tenant, tenants, tenants_logged};
use crate::plan::{KeyOrigin, TargetTlsFiles, TlsFiles};
pub use crate::yaml::named_files::FileError;
use crate::yaml::source::is_pipe;

/// Reads a listener's certificates and keys.
///
/// # Errors
/// A file cannot be read or has other contents, or a key does not belong to its certificate.
pub fn tls(files: &TlsFiles) -> Result<Arc<ServerConfig>, FileError> {
    let provider = Arc::new(crypto::ring::default_provider());
    let by_name = ByName::read(files, &provider)?;
    let clients = match &files.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(file) => clients_of(file, files.is_client_optional, &provider)?,
    };
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| unfit(&files.certificate, &files.key, &error))?;
    let config = config.with_client_cert_verifier(clients);
    let mut config = config.with_cert_resolver(Arc::new(by_name));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Selects a certificate by the name in the client's hello (SNI).
///
/// rustls' own resolver by names knows no wildcards and no default.
#[derive(Debug)]
struct ByName {
    default: Arc<CertifiedKey>,
    /// By name in lowercase. `.example.com` is a wildcard for a single label.
    names: HashMap<String, Arc<CertifiedKey>>,
}

impl ByName {
    fn read(files: &TlsFiles, provider: &crypto::CryptoProvider) -> Result<Self, FileError> {
        let (default, names) = named(&files.certificate, &files.key, provider)?;
        let mut by_name: HashMap<_, _> =
            names.into_iter().map(|name| (name, Arc::clone(&default))).collect();
        for files in files.sni.iter().flatten() {
            let (certificate, names) = named(&files.certificate, &files.key, provider)?;
            if names.is_empty() {
                return Err(wrong(
                    &files.certificate,
                    code::CERTIFICATE,
                    "its first certificate names no host, so no client could request it",
                    "give a certificate with DNS names in its subject alternative names",
                ));
            }
            for name in names {
                by_name.entry(name).or_insert_with(|| Arc::clone(&certificate));
            }
        }
        Ok(Self { default, names: by_name })
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = hello.server_name().and_then(|name| {
            let wildcard = || self.names.get(&name[name.find('.')?..]);
            self.names.get(name).or_else(wildcard)
        });
        Some(Arc::clone(found.unwrap_or(&self.default)))
    }
}

/// A certificate with its key, and its host names.
fn named(
    certificate: &Path,
    key: &Path,
    provider: &crypto::CryptoProvider,
) -> Result<(Arc<CertifiedKey>, Vec<String>), FileError> {
    let chain = certificates(certificate)?;
    let certified = CertifiedKey::from_der(chain, private_key(key)?, provider);
    let certified = certified.map_err(|error| unfit(certificate, key, &error))?;
    let own = certified.end_entity_cert().map_err(|error| unfit(certificate, key, &error))?;
    let parsed = EndEntityCert::try_from(own).map_err(|error| {
        let what = format!("its first certificate cannot be used: {error}");
        wrong(certificate, code::CERTIFICATE, what, "put the server's own certificate first")
    })?;
    let names = parsed.valid_dns_names();
    let names = names.map(|name| name.trim_start_matches('*').to_ascii_lowercase()).collect();
    Ok((Arc::new(certified), names))
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let key = PrivateKeyDer::from_pem_slice(&read(file)?);
    key.map_err(|error| no_pem(file, &error, PRIVATE_KEY))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let all = CertificateDer::pem_slice_iter(&read(file)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| no_pem(file, &error, CERTIFICATE))?;
    if all.is_empty() {
        return Err(no_pem(file, &pem::Error::NoItemsFound, CERTIFICATE));
    }
    Ok(all)
}

/// Accepts clients with a certificate from these authorities.
fn clients_of(
    file: &Path,
    is_optional: bool,
    provider: &Arc<crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, FileError> {
    let clients = WebPkiClientVerifier::builder_with_provider(
        Arc::new(authorities(file)?),
        Arc::clone(provider),
    );
    let clients = if is_optional { clients.allow_unauthenticated() } else { clients };
    clients.build().map_err(|error| unfit_authority(file, &error))
}

fn authorities(file: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| unfit_authority(file, &error))?;
    }
    Ok(roots)
}

fn unfit_authority(file: &Path, error: &dyn fmt::Display) -> FileError {
    let what = format!("a certificate authority in it cannot be used: {error}");
    wrong(
        file,
        code::CERTIFICATE,
        what,
        "name a file with the certificates that sign the others' certificates",
    )
}

/// Reads the authorities for a target's certificate, and the gateway's own certificate.
///
/// # Errors
/// A file cannot be read or has other contents, or the key does not belong to the certificate.
pub fn target_tls(files: &TargetTlsFiles) -> Result<TargetTls, FileError> {
    let TargetTlsFiles { ca, client_certificate } = files;
    let mut contents = vec![read(ca)?];
    let config = ClientConfig::builder_with_provider(crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit_authority(ca, &error))?
        .with_root_certificates(authorities(ca)?);
    let config = match client_certificate {
        None => config.with_no_client_auth(),
        Some(own) => {
            contents.extend([read(&own.certificate)?, read(&own.key)?]);
            let config = config
                .with_client_auth_cert(certificates(&own.certificate)?, private_key(&own.key)?);
            config.map_err(|error| unfit(&own.certificate, &own.key, &error))?
        }
    };
    Ok(TargetTls { config, contents: contents.into() })
}

/// The token keys in a file. `None` if the keys do not come from a file.
pub fn keys(origin: &KeyOrigin) -> Result<Option<JwtKeys>, FileError> {
    let (file, keys) = match origin {
        KeyOrigin::Pem { file, algorithm } => {
            let pem = read(file)?;
            let key = match *algorithm {
                "RS256" => JwtKey::rs256_pem(&pem),
                "ES256" => JwtKey::es256_pem(&pem),
                _ => JwtKey::eddsa_pem(&pem),
            };
            (file, key.and_then(|key| JwtKeys::new([key])))
        }
        KeyOrigin::JwksFile(file) => (file, JwtKeys::from_jwks(&text(file)?)),
        KeyOrigin::Secret(_) | KeyOrigin::JwksUrl(_) => return Ok(None),
    };
    keys.map(Some).map_err(|error| no_keys(file, &error))
}

/// The clients in an allowlist or blocklist file.
pub fn subjects(file: &Path) -> Result<SubjectList, FileError> {
    text_of(file, read_up_to(file, MOST_BYTES_OF_A_LIST)?)?.parse().map_err(
        |error: SubjectListError| match error.line {
            Some(line) => wrong(
                file,
                code::INVALID_FILE,
                format!("line {line} is not a valid client"),
                error.cure(),
            ),
            None => wrong(file, code::INVALID_FILE, "it lists no client", error.cure()),
        },
    )
}

/// Reads a file as text.
///
/// # Errors
/// The file cannot be read, is larger than 1 MiB, or is not UTF-8.
pub(crate) fn text(file: &Path) -> Result<String, FileError> {
    text_of(file, read(file)?)
}

pub(crate) fn text_of(file: &Path, bytes: Vec<u8>) -> Result<String, FileError> {
    String::from_utf8(bytes)
        .map_err(|_| wrong(file, code::NOT_UTF8, "it is not UTF-8", "save it as UTF-8"))
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    read_up_to(path, MOST_BYTES)
}

pub(crate) fn read_up_to(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    if is_pipe(path) {
        return Err(wrong(
            path,
            code::UNREADABLE_FILE,
            "it is a pipe",
            "name a file, which can be read again",
        ));
    }
    let mut bytes = Vec::new();
    let whole = File::open(path).and_then(|file| {
        // A device may be endless.
        file.take(most + 1).read_to_end(&mut bytes)
    });
    whole.map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > most {
        let what = format!("it is larger than {} KiB", most >> 10);
        return Err(wrong(path, code::TOO_LARGE, what, "is it the right file?"));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> FileError {
    let cure = match std::env::current_dir() {
        Ok(folder) if path.is_relative() => format!(
            "check the path, which starts at the working directory {}, and its permissions",
            folder.display()
        ),
        _ => "check the path and its permissions".to_owned(),
    };
    wrong(path, code::UNREADABLE_FILE, format!("it cannot be read: {error}"), cure)
}

fn no_pem(path: &Path, error: &pem::Error, expected: &str) -> FileError {
    let what = match error {
        pem::Error::NoItemsFound => format!("there is no {expected} in it"),
        _ => format!("it is not a PEM file: {error}"),
    };
    let cure = format!("expected -----BEGIN {}-----", expected.to_uppercase());
    wrong(path, code::CERTIFICATE, what, cure)
}

fn unfit(certificate: &Path, key: &Path, error: &TlsError) -> FileError {
    match error {
        TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => wrong(
            key,
            code::CERTIFICATE,
            format!("it is not the key of the first certificate in {}", certificate.display()),
            "put the server's own certificate first, and name its key",
        ),
        TlsError::InvalidCertificate(_) => wrong(
            certificate,
            code::CERTIFICATE,
            format!("its first certificate cannot be used: {error}"),
            "put the server's own certificate first",
        ),
        _ => wrong(
            key,
            code::CERTIFICATE,
            format!("the key cannot be used: {error}"),
            "give an RSA, P-256, P-384 or Ed25519 key",
        ),
    }
}

fn no_keys(path: &Path, error: &JwtKeyError) -> FileError {
    let error = error.to_string();
    let (error, code) = code::split(&error);
    let (what, cure) = error.split_once("; ").unwrap_or((error, "expected a JSON Web Key Set"));
    wrong(path, code.unwrap_or(code::TOKEN_KEY), what, cure)
}

pub(crate) fn wrong(
    file: &Path,
    code: Code,
    what: impl fmt::Display,
    cure: impl fmt::Display,
) -> FileError {
    FileError { file: file.to_owned(), code, what: what.to_string(), cure: cure.to_string() }
}

const CERTIFICATE: &str = "certificate";
const PRIVATE_KEY: &str = "private key";

/// A chain has a few certificates, and a key set a few keys.
const MOST_BYTES: u64 = 1 << 20;

/// Enough for about two million networks.
pub(crate) const MOST_BYTES_OF_A_LIST: u64 = 32 << 20;
