//! A node's view of the cluster, parsed from its `CLUSTER NODES` reply.

use std::ops::RangeInclusive;

use crate::redis::Redis;

/// One line for each node.
#[derive(Debug)]
pub(super) struct View(Vec<Line>);

#[derive(Debug)]
struct Line {
    node: usize,
    id: String,
    /// The master's id if this node is a replica.
    master: Option<String>,
    slots: Vec<RangeInclusive<u16>>,
}

impl View {
    pub(super) fn parse(text: &str, nodes: &[Redis]) -> Self {
        Self(text.lines().filter_map(|line| Line::parse(line, nodes)).collect())
    }

    pub(super) fn master_of(&self, slot: u16) -> Option<usize> {
        let serves = |line: &&Line| line.slots.iter().any(|range| range.contains(&slot));
        self.0.iter().find(serves).map(|line| line.node)
    }

    pub(super) fn replicas_of(&self, master: usize) -> Vec<usize> {
        let Some(master) = self.line(master) else { return Vec::new() };
        let follows = |line: &&Line| line.master.as_ref() == Some(&master.id);
        self.0.iter().filter(follows).map(|line| line.node).collect()
    }

    pub(super) fn slots(&self) -> Vec<(RangeInclusive<u16>, usize)> {
        let of = |line: &Line| {
            let node = line.node;
            line.slots.clone().into_iter().map(move |range| (range, node))
        };
        let mut slots: Vec<_> = self.0.iter().flat_map(of).collect();
        slots.sort_by_key(|(range, _)| *range.start());
        slots
    }

    /// A slot served by this replica's master.
    pub(super) fn slot_followed_by(&self, replica: usize) -> Option<u16> {
        let id = self.line(replica)?.master.as_ref()?;
        let master = self.0.iter().find(|line| line.id == *id)?;
        master.slots.first().map(|range| *range.start())
    }

    fn line(&self, node: usize) -> Option<&Line> {
        self.0.iter().find(|line| line.node == node)
    }
}

impl Line {
    /// `id ip:port@bus flags master ping pong epoch link slot… [slot->-id]…`
    fn parse(line: &str, nodes: &[Redis]) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let [id, address, _, master, _, _, _, _, slots @ ..] = &words[..] else { return None };
        let address = address.split('@').next()?.parse().ok()?;
        let range = |text: &&str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        Some(Self {
            node: nodes.iter().position(|node| node.address() == address)?,
            id: (*id).to_owned(),
            master: (*master != "-").then(|| (*master).to_owned()),
            // A migrating slot is listed in brackets and does not parse as a range.
            slots: slots.iter().filter_map(range).collect(),
        })
    }
}
