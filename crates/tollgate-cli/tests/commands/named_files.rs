//! Certificates, keys and other files that a configuration names, opened by `check` and `serve`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use tollgate_config::{Source, read};

/// Runs a command in this folder and returns its exit code and output.
fn run(folder: &Path, arguments: &[&str], stdin: &str) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

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
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let host = || vec!["gateway.test".to_owned()];
    for (name, hosts) in [("good", host()), ("other", host()), ("nameless", vec![])] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(hosts).unwrap();
        write(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        write(&format!("{name}.key"), &key.serialize_pem());
        write(&format!("{name}.pub"), &key.public_key_pem());
    }
    write("empty", "");
    write("broken.pem", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    write("false.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    write("no-set.json", "{\"keys\": 5}");
    write("empty-set.json", "{\"keys\": []}");
    folder
}

#[test]
fn file_problems_are_reported_at_their_name() {
    let folder = folder();
    for (config, path, message) in [
        (
            tls("nowhere.pem", "good.key"),
            "7:20: tls.certificate",
            "it cannot be read: No such file",
        ),
        (tls("good.pem", "nowhere.key"), "8:12: tls.key", "it cannot be read: No such file"),
        (tls(".", "good.key"), "7:20: tls.certificate", "it cannot be read: Is a directory"),
        (tls("/dev/zero", "good.key"), "7:20: tls.certificate", "larger than 1024 KiB"),
        (tls("empty", "good.key"), "7:20: tls.certificate", "there is no certificate in it"),
        (tls("good.key", "good.key"), "7:20: tls.certificate", "there is no certificate in it"),
        (tls("broken.pem", "good.key"), "7:20: tls.certificate", "it is not a PEM file"),
        (tls("false.pem", "good.key"), "7:20: tls.certificate", "cannot be used"),
        (tls("good.pem", "other.pem"), "8:12: tls.key", "there is no private key in it"),
        (tls("good.pem", "other.key"), "8:12: tls.key", "not the key of the first certificate"),
        (
            tls("good.pem", "good.key\n      clientCa: nowhere.pem"),
            "9:17: tls.clientCa",
            "it cannot be read: No such file",
        ),
        (
            tls("good.pem", "good.key\n      clientCa: false.pem"),
            "9:17: tls.clientCa",
            "a certificate authority in it cannot be used",
        ),
        (
            tls("good.pem", "good.key\n      sni: [{certificate: good.pem, key: other.key}]"),
            "9:42: tls.sni[0].key",
            "not the key of the first certificate",
        ),
        (
            tls(
                "good.pem",
                "good.key\n      sni: [{certificate: nameless.pem, key: nameless.key}]",
            ),
            "9:27: tls.sni[0].certificate",
            "its first certificate names no host",
        ),
        (jwt("jwksFile: nowhere.json"), "6:15: jwt.jwksFile", "it cannot be read: No such file"),
        (jwt("jwksFile: no-set.json"), "6:15: jwt.jwksFile", "not a JSON Web Key Set"),
        (jwt("jwksFile: empty-set.json"), "6:15: jwt.jwksFile", "no usable key in it"),
        (jwt("keyFile: good.key\n    algorithm: ES256"), "6:14: jwt.keyFile", "not usable"),
        (jwt("keyFile: good.pub\n    algorithm: RS256"), "6:14: jwt.keyFile", "not usable"),
    ] {
        let (place, key) = path.split_once(": ").unwrap();
        for arguments in [["check", "-"].as_slice(), &["serve", "--config", "-"]] {
            let (code, said) = run(folder.path(), arguments, &config);
            assert_eq!(code, Some(2), "{config}\n{said}");
            let is_told = said.contains(&format!("--> stdin:{place}\n"))
                && said.contains(key)
                && said.contains(message)
                && said.contains("help: ");
            assert!(is_told, "{place} {key}: {message}\n{said}");
            assert!(said.ends_with("stdin: 1 error, 0 warnings\n"), "{said}");
        }
        // `--without-files` checks a configuration on machines that lack the files.
        let (code, said) = run(folder.path(), &["check", "--without-files", "-"], &config);
        assert_eq!((code, &*said), (Some(0), ""), "{config}");
    }
}

#[test]
fn valid_files_produce_no_output() {
    let folder = folder();
    for config in [tls("good.pem", "good.key"), jwt("keyFile: good.pub\n    algorithm: ES256")] {
        let (code, said) = run(folder.path(), &["check", "--strict", "-"], &config);
        assert_eq!((code, &*said), (Some(0), ""), "{config}");
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
    let names = [
        "a.key",
        "a.pem",
        "allow.txt",
        "b.key",
        "b.pem",
        "c.key",
        "c.pem",
        "ca.pem",
        "deny.txt",
        "keys.json",
        "one.yaml",
        "own.pem",
        "two.yaml",
    ];
    assert_eq!(files, names.map(PathBuf::from));
}

#[test]
fn relative_paths_start_at_the_working_directory() {
    let folder = folder();
    let elsewhere = TempDir::new().unwrap();
    let config = elsewhere.path().join("limits.yaml");
    fs::write(&config, tls("good.pem", "good.key")).unwrap();
    let arguments = ["check", config.to_str().unwrap()];
    assert_eq!(run(folder.path(), &arguments, "").0, Some(0));
    let (code, told) = run(elsewhere.path(), &arguments, "");
    let here = format!("starts at the working directory {}", elsewhere.path().display());
    assert!(code == Some(2) && told.contains(&here), "{told}");
}

/// A path may contain a variable, and messages must not reveal its value.
#[test]
fn variable_values_are_not_shown() {
    let folder = folder();
    let config = folder.path().join("limits.yaml");
    fs::write(&config, jwt("jwksFile: ${HOME_OF_KEYS}")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "limits.yaml"])
        .env("HOME_OF_KEYS", "hunter2.json")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("it cannot be read") && !told.contains("hunter2"), "{told}");
}
