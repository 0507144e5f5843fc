//! Builds with and without OTLP.

use crate::support::{Folder, root};

#[test]
fn check_reports_missing_otlp_support() {
    let file = root().join("crates/tollgate-config/tests/good/telemetry.yaml");
    let variables = [("OTLP_HEADERS", "authorization=Bearer%20hunter2".to_owned())];
    let arguments = ["check", file.to_str().unwrap()];
    let output = Folder::new().run("tollgate", &arguments, &variables);
    let words = String::from_utf8(output.stdout).unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!words.contains("hunter2") && !told.contains("hunter2"), "{words}{told}");
    if cfg!(feature = "otlp") {
        assert_eq!(output.status.code(), Some(0), "{told}");
        let line = "spans of `shop` are sent to https://collector.example:4318/v1/traces: 10% of \
                    the traces that start here\n";
        assert!(words.contains(line), "{words}");
    } else {
        assert_eq!((output.status.code(), &*words), (Some(2), ""));
        assert!(
            told.starts_with("error[TG0413]: ")
                && told.contains("rateLimiter.tracing: this build has no OTLP"),
            "{told}"
        );
        assert!(told.contains("--features otlp"), "{told}");
    }
}
