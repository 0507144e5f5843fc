//! Checks the server after each connection, and warns about settings that will cause errors.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, iter};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{Charge, Cost, Key, Policy, Quota};

use crate::calls::failure::{Failure, Refusal};
use crate::client::connection::command::{Answer, Command, Value};
use crate::client::node::{Node, Sending};
use crate::client::report::{RedisReport, RedisWarning};
use crate::random::Random;
use crate::script::encode::{Batch, KeyedCharge};
use crate::script::names::{Name, Names};
use crate::stats::Counters;

/// The data that a check needs.
#[derive(Clone, Debug)]
pub(crate) struct ServerCheck {
    /// The names under which the check may write.
    pub(crate) names: Names,
    /// Whether the server should be a Cluster node.
    pub(crate) is_cluster_node: bool,
    pub(crate) counters: Arc<Counters>,
    pub(crate) random: Arc<Random>,
}

/// Checks a server after each connection to it, until the store drops the server.
pub(crate) fn watch(node: &Arc<Node>, check: ServerCheck) {
    let mut connected = node.connection.reconnects();
    let runtime = node.runtime.clone();
    let node = Arc::downgrade(node);
    runtime.spawn(async move {
        // The first connection may have been made before this task subscribed.
        let mut is_known = node.upgrade().is_some_and(|node| node.connection.is_connected());
        // Discard its queued event, if there is one.
        if is_known {
            connected.skip();
        }
        loop {
            if !std::mem::take(&mut is_known) && !connected.next().await {
                return;
            }
            let Some(node) = node.upgrade() else { return };
            check.counters.count_connection();
            let report = look(&node, &check).await;
            let told = node.report.lock().clone();
            for warning in &report.warnings {
                // Do not repeat a warning after each reconnection.
                if !told.warnings.contains(warning) {
                    tracing::warn!(target: "tollgate", "redis: {warning}");
                }
            }
            *node.report.lock() = report;
        }
    });
}

/// Checks a server. Properties that the server does not report remain `None`; this never fails.
///
/// A fleet meets a new server at the same time, so this takes two round trips: the first reads
/// the properties, and the second rehearses a decision.
async fn look(node: &Arc<Node>, check: &ServerCheck) -> RedisReport {
    // This may be a different server than before.
    node.set_cross_slot(false);
    let answers = node.connection.send(questions(check), node.timeout).await;
    let [cluster, server, memory, rights @ ..] = &answers[..] else {
        return RedisReport::default();
    };
    let mut report = RedisReport {
        is_cluster: field(text(cluster), "cluster_enabled").map(|it| it == "1"),
        ..RedisReport::default()
    };
    if let Some((name, version)) = own_version(text(server)) {
        (report.name, report.version) = (Some(name), Some(version.to_owned()));
    }
    let version = field(text(server), "redis_version");
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if let Some(version) = version.filter(|_| major.is_some_and(|major| major < 6)) {
        report.warnings.push(RedisWarning::Version(version.to_owned()));
    }
    if report.is_cluster == Some(true) && !check.is_cluster_node {
        report.warnings.push(RedisWarning::Cluster);
    }
    match maxmemory_policy(memory) {
        Ok(policy) => {
            if policy != "noeviction" {
                report.warnings.push(RedisWarning::Eviction(policy.clone()));
            }
            report.maxmemory_policy = Some(policy);
        }
        Err(reason) => report.warnings.push(RedisWarning::EvictionUnknown(reason)),
    }
    let is_able = major.is_some_and(|major| major >= 7) && check.is_cluster_node;
    node.set_cross_slot(is_able && takes_cross_slot(node, check).await);
    match rehearse(node, check).await {
        Ok(ahead) => report.clock_ahead = Some(ahead),
        // Another Cluster node owns the slot, or this is a replica. Neither needs a warning.
        Err(Failure::Refused(Refusal::Moved { .. } | Refusal::Ask { .. } | Refusal::ReadOnly)) => {}
        Err(Failure::Refused(Refusal::Other(reason)) | Failure::Lost(reason))
            if is_about_rights(&reason) =>
        {
            report.warnings.push(RedisWarning::Rights(reason));
        }
        Err(Failure::Refused(refusal)) => {
            report.warnings.push(RedisWarning::Script(refusal.to_string()));
        }
        // The connection broke again, and the next connection is checked.
        Err(Failure::Lost(_)) => {}
    }
    if !report.warnings.iter().any(|it| matches!(it, RedisWarning::Rights(_))) {
        let mut refusals =
            rights.iter().filter_map(|it| it.as_ref().err()).map(ToString::to_string);
        let missing = refusals.find(|reason| is_about_rights(reason));
        report.warnings.extend(missing.map(RedisWarning::Rights));
    }
    report
}

/// The commands that query the server's properties, and then the user's rights.
fn questions(check: &ServerCheck) -> SmallVec<[Command; 1]> {
    let properties: [(&'static str, &[&'static str]); 3] =
        [("INFO", &["cluster"]), ("INFO", &["server"]), ("CONFIG", &["GET", "maxmemory-policy"])];
    let bytes = |words: &'static [&str]| words.iter().map(|it| Bytes::from_static(it.as_bytes()));
    let mut commands = SmallVec::new();
    for (name, arguments) in properties {
        commands.push(Command { name, arguments: bytes(arguments).collect() });
    }
    let Some((_, key)) = unused(check) else { return commands };
    for (name, rest) in NOT_REHEARSED {
        let arguments = iter::once(Bytes::copy_from_slice(&key)).chain(bytes(rest));
        commands.push(Command { name, arguments: arguments.collect() });
    }
    commands
}

/// Returns a policy, and a key that no other process uses.
fn unused(check: &ServerCheck) -> Option<(Policy, Name)> {
    let policy = Policy::fixed_window_counter("self-check", Quota::per_second(1)).ok()?;
    let key = check.names.state(&policy, &Key::new(check.random.next().to_be_bytes()));
    Some((policy, key))
}

fn is_about_rights(reason: &str) -> bool {
    ["NOPERM", "can't run this command", "ACL failure", "No permissions"]
        .iter()
        .any(|said| reason.contains(said))
}

/// Returns a text answer, or an empty string if the user lacks the permission.
fn text(answer: &Answer) -> &str {
    answer.as_ref().ok().and_then(Value::as_str).unwrap_or_default()
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns a server's name, and its version under that name. Forks of Redis also report
/// `redis_version`, for clients that only check that field.
fn own_version(info: &str) -> Option<(&'static str, &str)> {
    let fields =
        [("Valkey", "valkey_version"), ("Redict", "redict_version"), ("Redis", "redis_version")];
    fields.into_iter().find_map(|(name, version)| Some((name, field(info, version)?)))
}

fn maxmemory_policy(answer: &Answer) -> Result<String, String> {
    match answer {
        Ok(Value::List(pair)) => {
            let policy = pair.get(1).and_then(Value::as_str);
            policy.map(str::to_owned).ok_or_else(|| "no answer".to_owned())
        }
        Ok(_) => Err("no answer".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Charges and resets a key that only this call uses. This runs most of the script's commands and
/// leaves no key behind. Returns how far the server's clock is ahead.
async fn rehearse(node: &Arc<Node>, check: &ServerCheck) -> Result<i64, Failure> {
    let lost = |error: &dyn fmt::Display| Failure::Lost(error.to_string());
    let nonce = check.random.next();
    let (policy, state) = unused(check).ok_or_else(|| lost(&"no policy"))?;
    let mut batch = Batch::new(nonce);
    let charge = KeyedCharge::new(&state, &policy, Cost::ONE);
    batch.decide(&[charge]).map_err(|error| lost(&error))?;
    let mut forget = Batch::new(nonce);
    forget.reset(&state).map_err(|error| lost(&error))?;
    let sent = Instant::now();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let batches = [batch, forget];
    let replies = node.call(&batches, Sending::until(sent + node.timeout)).await;
    let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
    let reply = batches[0].parse(&replies[0]).map_err(|error| lost(&error))?;
    node.clock.learn(reply.now, sent);
    let micros = |number: u128| i64::try_from(number).unwrap_or(i64::MAX);
    Ok(i64::try_from(reply.now.as_micros()).unwrap_or(i64::MAX) - micros(wall.as_micros()))
}

/// Sends a dry run in a call that may contain keys of several slots. A valid reply means that the
/// server, and any proxy in front of it, accepts such calls.
async fn takes_cross_slot(node: &Arc<Node>, check: &ServerCheck) -> bool {
    let Some((policy, state)) = unused(check) else { return false };
    let charge =
        KeyedCharge { key: &state, charge: Charge::new(&policy, &Key::GLOBAL, Cost::ONE).dry() };
    let mut batch = Batch::new(check.random.next());
    batch.set_cross_slot();
    if batch.decide(&[charge]).is_err() {
        return false;
    }
    let batches = [batch];
    let replies = node.call(&batches, Sending::until(Instant::now() + node.timeout)).await;
    matches!(&replies[0], Ok(reply) if batches[0].parse(reply).is_ok())
}

/// Commands that the rehearsal does not call, with arguments that have no effect on a missing key.
/// If any of these commands is forbidden, the script fails halfway.
const NOT_REHEARSED: [(&str, &[&str]); 6] = [
    ("MGET", &[]),
    ("EXISTS", &[]),
    ("STRLEN", &[]),
    ("GETRANGE", &["0", "0"]),
    ("SETRANGE", &["0", ""]),
    ("PEXPIREAT", &["1"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Version lines as these servers send them.
    #[test]
    fn forks_report_own_version() {
        let cases = [
            ("redis_version:6.0.16\r\ngcc_version:10.2.1\r\n", Some(("Redis", "6.0.16"))),
            (
                "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n",
                Some(("Valkey", "8.1.1")),
            ),
            ("redict_version:7.3.6\r\nredis_version:7.2.4\r\n", Some(("Redict", "7.3.6"))),
            ("", None),
        ];
        for (info, expected) in cases {
            assert_eq!(own_version(info), expected, "{info}");
        }
    }
}
