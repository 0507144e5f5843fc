//! The live pages of three replicas.

use super::check;
use super::project::{Engine, curl, status};
use crate::process::Failure;

pub(super) fn shows_each_replica(engine: &Engine) -> Result<(), Failure> {
    let files = ["docker-compose.yml", "deploy/page.yml"];
    let token = [("TOLLGATE_ADMIN_TOKEN", TOKEN)];
    engine.with_project(&files, &[&["TOLLGATE_PORT"], &PAGES[..]].concat(), &token, |project| {
        project.up(&[])?;
        // The origin that a browser sends for the first replica's page.
        let first = project.url(PAGES[0], "");
        for (port, server) in PAGES.into_iter().zip(["api1", "api2", "api3"]) {
            let at = project.published(server, "9100");
            check("the page listens only on this machine", at.starts_with("127.0.0.1:"), &at)?;
            let page = curl(&[&project.url(port, "/")]);
            let is_page = page.contains("<title>Tollgate</title>");
            check("the admin address shows a page", is_page, page.lines().next().unwrap_or(""))?;
            let origin = format!("Origin: {first}");
            let events = project.url(port, "/events");
            let events = curl(&["--include", "--no-buffer", "--header", &origin, &events]);
            let lets_it = format!("access-control-allow-origin: {first}\r\n");
            let is_heard =
                events.contains(&lets_it) && events.contains(&format!("{{\"server\":\"{server}\""));
            let what = format!("the page of api1 receives events of {server}");
            check(&what, is_heard, events.lines().next().unwrap_or(""))?;
            let top = project.url(port, "/top");
            let without = status(&top, &[]);
            let with = status(&top, &["--header", &format!("Authorization: Bearer {TOKEN}")]);
            let statuses = format!("{without} {with}");
            check("only the token reveals denied clients", statuses == "401 200", &statuses)?;
        }
        let items = project.url("TOLLGATE_PORT", "/items");
        let head = curl(&["--include", "--header", &format!("Origin: {first}"), &items]);
        let is_allowed = head.contains("access-control-allow-origin: ");
        check("the page may call nginx", is_allowed, head.lines().next().unwrap_or(""))?;
        project.stop_gracefully()
    })
}

const PAGES: [&str; 3] = ["PAGE1_PORT", "PAGE2_PORT", "PAGE3_PORT"];
const TOKEN: &str = "0123456789abcdef";
