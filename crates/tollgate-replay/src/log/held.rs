//! The lines of a file that are held until it is their turn.
//!
//! A server writes a line when its response is over, so lines are a little out of order. Lines in
//! order, which nearly all are, wait in a queue, and the others in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate_core::{Micros, Timestamp};

use super::record::{Batch, Record};

/// A log that is out of order by an hour is two logs.
const TOO_LATE: Micros = Micros::new(3_600_000_000);

/// The records of a file that wait for their turn.
#[derive(Default)]
pub(super) struct Held {
    /// Each batch, with the number of its records that are still held.
    batches: VecDeque<(Batch, usize)>,
    /// The number of the first of these batches.
    first: u32,
    in_order: VecDeque<Entry>,
    others: BinaryHeap<Reverse<Entry>>,
    pub(super) latest: Timestamp,
    /// The latest time at which a response was over.
    written: Timestamp,
    /// The record that was handed out, which borrows from its batch.
    given: Option<Entry>,
}

/// Ordered by its time, and then as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) at: Timestamp,
    batch: u32,
    index: u32,
}

impl Held {
    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    /// Adds the next lines of the file. Returns the first line that is too far behind, and how far.
    #[expect(clippy::cast_possible_truncation, reason = "a batch has fewer lines than bytes")]
    pub(super) fn add(&mut self, batch: Batch) -> Option<(u64, Micros)> {
        let number = self.first.wrapping_add(self.batches.len() as u32);
        for (index, fields) in batch.records.iter().enumerate() {
            let entry = Entry { at: fields.at, batch: number, index: index as u32 };
            if self.in_order.back().is_none_or(|last| last.at <= entry.at) {
                self.in_order.push_back(entry);
            } else {
                self.others.push(Reverse(entry));
            }
            self.latest = self.latest.max(entry.at);
            // A line is written when its response is over, which may be hours after its begin.
            let written = entry.at + fields.duration.unwrap_or_default();
            self.written = self.written.max(written);
            if self.written.since(written) > TOO_LATE {
                return Some((fields.line, self.written.since(written)));
            }
        }
        let records = batch.records.len();
        self.batches.push_back((batch, records));
        self.drop_read();
        None
    }

    /// The earliest line that is held.
    pub(super) fn peek(&self) -> Option<Entry> {
        let other = self.others.peek().map(|Reverse(entry)| *entry);
        match (self.in_order.front().copied(), other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Hands out the earliest record. Its batch is kept until [`forget`](Self::forget).
    pub(super) fn give<'a>(
        &'a mut self,
        entry: Entry,
        names: &'a [Box<str>],
    ) -> Option<Record<'a>> {
        if self.in_order.front() == Some(&entry) {
            self.in_order.pop_front();
        } else {
            self.others.pop();
        }
        self.given = Some(entry);
        let (batch, _) = self.batches.get(entry.batch.wrapping_sub(self.first) as usize)?;
        Some(batch.records.get(entry.index as usize)?.record(&batch.text, names))
    }

    pub(super) fn forget(&mut self) {
        let Some(entry) = self.given.take() else { return };
        let number = entry.batch.wrapping_sub(self.first) as usize;
        if let Some((batch, left)) = self.batches.get_mut(number) {
            *left -= 1;
            if *left == 0 {
                // A line with a time far ahead keeps its own batch in memory, but not later ones.
                *batch = Batch::default();
                self.drop_read();
            }
        }
    }

    fn drop_read(&mut self) {
        while self.batches.front().is_some_and(|(_, left)| *left == 0) {
            self.batches.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }
}
