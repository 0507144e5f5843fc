//! Parses the answer to `CLUSTER SLOTS`.

use std::ops::RangeInclusive;

use crate::client::connection::command::Value;
use crate::client::host_port::HostPort;

/// The number of slots in every Cluster.
pub(super) const SLOTS: usize = 16_384;

/// Consecutive slots on the same nodes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) master: HostPort,
    pub(super) replicas: Vec<HostPort>,
}

/// Parses the answer of the node at host `asked`. `None` if it is malformed or contains no slots,
/// because a node outside any Cluster returns an empty list.
pub(super) fn parse(answer: Value, asked: &str) -> Option<Vec<SlotRange>> {
    let Value::List(ranges) = answer else { return None };
    let ranges: Option<Vec<_>> =
        ranges.into_iter().map(|range| self::range(range, asked)).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

/// Parses `first, last, master, replica…`.
fn range(range: Value, asked: &str) -> Option<SlotRange> {
    let Value::List(fields) = range else { return None };
    let mut fields = fields.into_iter();
    let mut slot = || slot(&fields.next()?);
    let slots = slot()?..=slot()?;
    let mut nodes = fields.map(|node| address(&node, asked));
    let master = nodes.next()??;
    Some(SlotRange { slots, master, replicas: nodes.flatten().collect() })
}

fn slot(value: &Value) -> Option<u16> {
    let slot = u16::try_from(value.as_u64()?).ok()?;
    (usize::from(slot) < SLOTS).then_some(slot)
}

/// Parses `host, port, id, …`. The host is an address or a name, as the Cluster is configured to
/// announce it, or null if unknown.
fn address(node: &Value, asked: &str) -> Option<HostPort> {
    let Value::List(fields) = node else { return None };
    let [host, port, ..] = &fields[..] else { return None };
    let host = if *host == Value::Null { "" } else { host.as_str()? };
    Some(HostPort::announced(host, u16::try_from(port.as_u64()?).ok()?, asked))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn list(values: impl IntoIterator<Item = Value>) -> Value {
        Value::List(values.into_iter().collect())
    }

    fn text(text: &'static str) -> Value {
        Value::Bytes(Bytes::from_static(text.as_bytes()))
    }

    fn node(host: Value, port: i64) -> Value {
        list([host, Value::Number(port), text("id"), list([])])
    }

    fn range(first: i64, last: i64, nodes: impl IntoIterator<Item = Value>) -> Value {
        list([Value::Number(first), Value::Number(last)].into_iter().chain(nodes))
    }

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn slot_ranges_name_their_nodes() {
        let answer = list([
            range(0, 5460, [node(text("a"), 1), node(text("b"), 2)]),
            range(5461, 16_383, [node(Value::Null, 3)]),
        ]);
        let expected = vec![
            SlotRange { slots: 0..=5460, master: at("a", 1), replicas: vec![at("b", 2)] },
            SlotRange { slots: 5461..=16_383, master: at("asked", 3), replicas: vec![] },
        ];
        assert_eq!(parse(answer, "asked"), Some(expected));
    }

    #[test]
    fn malformed_slots_are_rejected() {
        let nonsense = [
            Value::Null,
            list([]),
            list([Value::Number(1)]),
            list([range(0, 1, [])]),
            list([range(0, 16_384, [node(text("a"), 1)])]),
            list([range(0, 1, [node(text("a"), 70_000)])]),
        ];
        for answer in nonsense {
            assert_eq!(parse(answer.clone(), "asked"), None, "{answer:?}");
        }
    }
}
