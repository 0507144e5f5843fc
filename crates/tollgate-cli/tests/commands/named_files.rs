//! Certificates, keys and other files that a configuration names, opened by `check` and `serve`.

use std::path::PathBuf;

use rcgen::{CertificateParams, KeyPair};
use tollgate_config::{Source, read};

use crate::support::Folder;

fn tls(certificate: &str, key: &str) -> String {
    format!(
        "rateLimiter:\n  target: http://localhost\n  client: {{limit: 1, windowSeconds: 1}}\n  \
         listen:\n  - address: 127.0.0.1:0\n    tls:\n      certificate: {certificate}\n      \
         key: {key}\n"
    )
}

fn jwt(line: &str) -> String {
    format!(
        "rateLimiter:\n  target: http://localhost\n  client: {{limit: 1, windowSeconds: 1}}\n  \
         identity: user\n  jwt:\n    {line}\n"
    )
}

/// A folder with valid and invalid files.
fn folder() -> Folder {
    let folder = Folder::with(&[
        ("empty", ""),
        ("broken.pem", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"),
        ("false.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ("no-set.json", "{\"keys\": 5}"),
        ("empty-set.json", "{\"keys\": []}"),
    ]);
    let host = || vec!["gateway.test".to_owned()];
    for (name, hosts) in [("good", host()), ("other", host()), ("nameless", vec![])] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(hosts).unwrap();
        folder.write(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        folder.write(&format!("{name}.key"), &key.serialize_pem());
        folder.write(&format!("{name}.pub"), &key.public_key_pem());
    }
    folder
}

/// Each row contains a listener's certificate and key or a `jwt` line, the problem's place and path,
/// and the expected message.
const PROBLEMS: &str = "
nowhere.pem good.key | 7:20 tls.certificate | it cannot be read: No such file
good.pem nowhere.key | 8:12 tls.key | it cannot be read: No such file
. good.key | 7:20 tls.certificate | it cannot be read: Is a directory
/dev/zero good.key | 7:20 tls.certificate | larger than 1024 KiB
empty good.key | 7:20 tls.certificate | there is no certificate in it
good.key good.key | 7:20 tls.certificate | there is no certificate in it
broken.pem good.key | 7:20 tls.certificate | it is not a PEM file
false.pem good.key | 7:20 tls.certificate | cannot be used
good.pem other.pem | 8:12 tls.key | there is no private key in it
good.pem other.key | 8:12 tls.key | not the key of the first certificate
good.pem good.key+clientCa: nowhere.pem | 9:17 tls.clientCa | it cannot be read: No such file
good.pem good.key+clientCa: false.pem | 9:17 tls.clientCa | a certificate authority in it cannot be used
good.pem good.key+sni: [{certificate: good.pem, key: other.key}] | 9:42 tls.sni[0].key | not the key of the first certificate
good.pem good.key+sni: [{certificate: nameless.pem, key: nameless.key}] | 9:27 tls.sni[0].certificate | its first certificate names no host
jwksFile: nowhere.json | 6:15 jwt.jwksFile | it cannot be read: No such file
jwksFile: no-set.json | 6:15 jwt.jwksFile | not a JSON Web Key Set
jwksFile: empty-set.json | 6:15 jwt.jwksFile | no usable key in it
keyFile: good.key+algorithm: ES256 | 6:14 jwt.keyFile | not usable
keyFile: good.pub+algorithm: RS256 | 6:14 jwt.keyFile | not usable
";

#[test]
fn file_problems_are_reported_at_their_name() {
    let folder = folder();
    let mut wrong = Vec::new();
    for row in PROBLEMS.trim().lines() {
        let [files, place, message] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let config = if place.contains("jwt") {
            jwt(&files.replace('+', "\n    "))
        } else {
            let (certificate, key) = files.split_once(' ').unwrap();
            tls(certificate, &key.replace('+', "\n      "))
        };
        folder.write("limits.yaml", &config);
        let (place, key) = place.split_once(' ').unwrap();
        for (command, source) in [
            ("tollgate check limits.yaml", "limits.yaml"),
            ("tollgate serve limits.yaml", "limits.yaml"),
            ("tollgate check - <limits.yaml", "stdin"),
            ("tollgate serve --config - <limits.yaml", "stdin"),
        ] {
            let output = folder.bash(command);
            let said = String::from_utf8(output.stderr).unwrap();
            let place = format!("--> {source}:{place}\n");
            let is_told = [&*place, key, message, "help: "].iter().all(|it| said.contains(it))
                && said.ends_with(&format!("{source}: 1 error, 0 warnings\n"));
            if output.status.code() != Some(2) || !is_told {
                wrong.push(format!("{command} {row}: {:?}\n{said}", output.status));
            }
        }
        // `--without-files` checks a configuration on machines that lack the files.
        let output = folder.tollgate(&["check", "--without-files", "limits.yaml"]);
        if !output.status.success() || !output.stderr.is_empty() {
            wrong.push(format!("without files {row}: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn valid_files_produce_no_output() {
    let folder = folder();
    for config in [tls("good.pem", "good.key"), jwt("keyFile: good.pub\n    algorithm: ES256")] {
        folder.write("limits.yaml", &config);
        for source in ["limits.yaml", "- <limits.yaml"] {
            let output = folder.bash(&format!("tollgate check --strict {source}"));
            assert!(output.status.success() && output.stderr.is_empty(), "{config}: {output:?}");
        }
    }
}

/// A file missing from this list would never be reloaded.
#[test]
fn plan_lists_all_named_files() {
    let yaml = "rateLimiter:
  target: http://localhost
  listen: {address: '127.0.0.1:0', tls: {certificate: a.pem, key: a.key, clientCa: ca.pem, sni: [{certificate: b.pem, key: b.key}]}}
  routes:
    - name: internal
      path: /internal
      target: {url: 'https://a', tls: {ca: own.pem, clientCertificate: {certificate: c.pem, key: c.key}}}
  identity: user
  jwt: {jwksFile: keys.json}
  deny: {file: deny.txt}
  allow: {file: allow.txt}
  rateLimitService: {config: [one.yaml, two.yaml]}
";
    let mut files = read(&Source::new("test.yaml", yaml), &|_| None).plan.unwrap().files;
    files.sort();
    let names = "a.key a.pem allow.txt b.key b.pem c.key c.pem ca.pem deny.txt keys.json one.yaml \
                 own.pem two.yaml";
    assert_eq!(files, names.split(' ').map(PathBuf::from).collect::<Vec<_>>());
}

#[test]
fn relative_paths_start_at_the_working_directory() {
    let (folder, elsewhere) =
        (folder(), Folder::with(&[("limits.yaml", &tls("good.pem", "good.key"))]));
    let config = elsewhere.path().join("limits.yaml");
    let arguments = ["check", config.to_str().unwrap()];
    assert!(folder.tollgate(&arguments).status.success());
    let output = elsewhere.tollgate(&arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    let here = format!("starts at the working directory {}", elsewhere.path().display());
    assert!(output.status.code() == Some(2) && told.contains(&here), "{told}");
}
