//! Runs the first example in docs/gateway.md, on other ports.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Gateway, Upstream};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway.md");

/// The page's first code block in this language that contains `text`.
fn block<'a>(page: &'a str, language: &str, text: &str) -> &'a str {
    let start = format!("```{language}\n");
    let blocks = page.split(&start).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    blocks.into_iter().find(|block| block.contains(text)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_run_prints_documented_statuses() {
    let page = fs::read_to_string(Path::new(PAGE)).unwrap();
    let upstream = Upstream::new().await;
    let file = block(&page, "yaml", "target:");
    let file = file.replace("localhost:3000", &upstream.address.to_string());
    let folder = TempDir::new().unwrap();
    let ports = "  listen: 127.0.0.1:0\n  admin: 127.0.0.1:0\n";
    fs::write(folder.path().join("limits.yaml"), format!("{file}{ports}")).unwrap();
    let gateway = Gateway::start_with(folder, "limits.yaml");

    let script = block(&page, "sh", "curl").replace("localhost:8080", &gateway.address.to_string());
    let script = || Command::new("bash").args(["-c", &script]).output();
    let output = tokio::task::block_in_place(script).unwrap();
    assert!(output.status.success(), "{output:?}");
    let statuses = String::from_utf8(output.stdout).unwrap();
    assert_eq!(statuses, block(&page, "text", "429"));
}
