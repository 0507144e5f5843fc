//! `tollgate override`: changes a client's quota until an instant, over the admin API.

mod end;

use std::fmt::Write as _;
use std::time::Duration;

use clap::Subcommand;
use http::Uri;
use serde_json::{Value, json};

use self::end::End;
use crate::admin::Admin;

/// The options of `tollgate override`.
#[derive(Clone, Debug, clap::Args)]
pub struct OverrideArgs {
    #[command(subcommand)]
    action: Action,
    /// The admin address of a gateway
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081"
    )]
    admin: Uri,
    /// The admin address's token
    #[arg(long, global = true, env = "TOLLGATE_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// The changes.
#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Give a client another quota under a policy
    Set {
        #[command(flatten)]
        whose: Whose,
        /// The units per window
        #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
        /// The window. By default the policy's
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        window: Option<Duration>,
        /// The burst. By default it changes by the same factor as the limit
        #[arg(long, value_name = "UNITS")]
        burst: Option<u64>,
        #[command(flatten)]
        end: End,
    },
    /// Deny all of a client's requests under a policy
    Block {
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        end: End,
    },
    /// List all overrides, the first to end first
    List,
    /// End an override now
    Remove {
        #[command(flatten)]
        whose: Whose,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct Whose {
    /// The policy's name, as in `GET /status`
    policy: String,
    /// The client, such as `ip:203.0.113.7`, `user:ann`, `api-key:…` or `key:…`
    subject: String,
}

impl Whose {
    fn path(&self) -> String {
        format!("/overrides/{}/{}", encoded(&self.policy), encoded(&self.subject))
    }
}

/// Runs the command, and returns its output.
pub(crate) fn run(args: &OverrideArgs) -> Result<String, String> {
    let admin = Admin::new(&args.admin, Some(args.token.as_deref().unwrap_or_default()))?;
    let ends = |end: &End| end.read().map(|(name, value)| (name.to_owned(), value));
    let put = |whose: &Whose, members: Value, end: &End| {
        let Value::Object(mut members) = members else { return Ok(String::new()) };
        members.extend([ends(end)?]);
        let answer = admin.send("PUT", &whose.path(), &Value::Object(members).to_string())?;
        Ok(described(&answer))
    };
    match &args.action {
        Action::Set { whose, limit, window, burst, end } => {
            let window = window.map(|window| window.as_secs_f64());
            put(whose, json!({ "limit": limit, "window": window, "burst": burst }), end)
        }
        Action::Block { whose, end } => put(whose, json!({ "block": true }), end),
        Action::List => {
            let answer = admin.send("GET", "/overrides", "")?;
            let list = answer["overrides"].as_array().map(Vec::as_slice).unwrap_or_default();
            if list.is_empty() {
                return Ok("there are no overrides\n".to_owned());
            }
            Ok(list.iter().map(described).collect())
        }
        Action::Remove { whose } => {
            admin.send("DELETE", &whose.path(), "")?;
            Ok(format!("{} {}: removed\n", whose.policy, whose.subject))
        }
    }
}

/// For example `client ip:203.0.113.7: 5000 per 60s until 2026-11-28T22:00:00.000Z (2h)`.
fn described(it: &Value) -> String {
    let text = |name: &str| it[name].as_str().unwrap_or_default();
    let span = |seconds: f64| {
        let span = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        humantime::format_duration(Duration::from_millis(span.as_millis() as u64)).to_string()
    };
    let mut line = format!("{} {}: ", text("policy"), text("subject"));
    // Writing to a string does not fail.
    let _ = match it["limit"].as_u64() {
        None => write!(line, "blocked"),
        Some(limit) => write!(line, "limit {limit}"),
    };
    if let Some(window) = it["window"].as_f64() {
        let _ = write!(line, " per {}", span(window));
    }
    if let Some(burst) = it["burst"].as_u64() {
        let _ = write!(line, ", burst {burst}");
    }
    let left = it["left"].as_f64().unwrap_or_default();
    let _ = writeln!(line, " until {} ({} left)", text("until"), span(left.floor()));
    line
}

/// Percent-encodes a segment of a path.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b',' => {
                out.push(char::from(byte));
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_policy_and_the_subject() {
        let whose = Whose { policy: "client/team".into(), subject: "user:zoë x".into() };
        assert_eq!(whose.path(), "/overrides/client%2Fteam/user:zo%C3%AB%20x");
    }

    #[test]
    fn overrides_are_described_in_a_line() {
        let quota = json!({
            "policy": "client", "subject": "ip:203.0.113.7", "limit": 5_000, "window": 60.0,
            "burst": 9, "until": "2026-11-28T22:00:00.000Z", "left": 7199.9,
        });
        assert_eq!(
            described(&quota),
            "client ip:203.0.113.7: limit 5000 per 1m, burst 9 until 2026-11-28T22:00:00.000Z \
             (1h 59m 59s left)\n"
        );
        let block = json!({ "policy": "p", "subject": "s", "until": "U", "left": 0.1 });
        assert_eq!(described(&block), "p s: blocked until U (0s left)\n");
    }
}
