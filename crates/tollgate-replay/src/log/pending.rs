//! Holds a file's lines until it is their turn.
//!
//! A server writes a line when the response is complete, so lines are slightly out of order. Nearly
//! all lines are in order and wait in a queue. The rest wait in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate_core::{Micros, Timestamp};

use super::record::{Batch, Fields, Reason, Record};

/// Adjacent lines differ by less, unless the server was idle.
const FAR: Micros = Micros::new(3_600_000_000);
/// This many lines that are far from the previous lines are not just isolated wrong times.
const MANY: usize = 16;

/// A file's records that wait for their turn.
#[derive(Default)]
pub(super) struct PendingRecords {
    /// The batches, each with the number of records that are still pending.
    batches: VecDeque<(Batch, usize)>,
    /// The number of the first batch.
    first: u32,
    in_order: VecDeque<Entry>,
    others: BinaryHeap<Reverse<Entry>>,
    pub(super) latest: Timestamp,
    /// The latest time at which a response was complete.
    written: Timestamp,
    /// Lines after a time jump. Later lines show whether the server was idle or which times are
    /// wrong.
    undecided: Vec<Seen>,
    /// How many consecutive lines are far behind, and the first such line.
    behind: (usize, u64),
    /// The record that was handed out, which borrows from its batch.
    given: Option<Entry>,
}

/// A line that was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    entry: Entry,
    line: u64,
    /// When the response was complete.
    written: Timestamp,
}

/// A line that is skipped because its time is wrong.
pub(super) type Odd = (u64, Reason);

/// Ordered by time, then by position in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) at: Timestamp,
    batch: u32,
    index: u32,
}

impl PendingRecords {
    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    /// Adds the file's next lines. Returns the lines that are skipped because of wrong times.
    ///
    /// # Errors
    /// Many consecutive lines are far behind, so the file contains two logs or has its newest line
    /// first. The error contains the first such line, and how far the lines are behind.
    pub(super) fn add(
        &mut self,
        batch: Batch,
        not_after: Timestamp,
    ) -> Result<Vec<Odd>, (u64, Micros)> {
        #[expect(clippy::cast_possible_truncation, reason = "a batch has fewer lines than bytes")]
        let entry = |at: Timestamp, number: usize, index: usize| Entry {
            at,
            batch: self.first.wrapping_add(number as u32),
            index: index as u32,
        };
        let number = self.batches.len();
        let seen = |(index, fields): (usize, &Fields)| Seen {
            entry: entry(fields.at, number, index),
            line: fields.line,
            // A line is written when the response is complete, possibly hours after it started.
            written: fields.at + fields.duration.unwrap_or_default(),
        };
        let all: Vec<_> = batch.records.iter().enumerate().map(seen).collect();
        self.batches.push_back((batch, all.len()));
        let mut odd = Vec::new();
        for seen in all {
            if seen.written > not_after {
                self.leave_out(seen, Reason::Future, &mut odd);
            } else {
                self.place(seen, &mut odd)?;
            }
        }
        self.drop_read();
        Ok(odd)
    }

    fn place(&mut self, seen: Seen, odd: &mut Vec<Odd>) -> Result<(), (u64, Micros)> {
        if let Some(latest) = self.undecided.iter().map(|it| it.written).max() {
            self.undecided.push(seen);
            // The wrong time may also be in the last line.
            let is_alone = seen.written.since(latest) > FAR;
            let enough = if is_alone { 4 * MANY } else { MANY };
            return if self.undecided.len() >= enough { self.decide(odd) } else { Ok(()) };
        }
        let back = self.written.since(seen.written);
        if back > FAR {
            if self.behind.0 == 0 {
                self.behind.1 = seen.line;
            }
            self.behind.0 += 1;
            if self.behind.0 >= MANY {
                return Err((self.behind.1, back));
            }
            self.leave_out(seen, Reason::Behind(back.as_secs_ceil()), odd);
            return Ok(());
        }
        self.behind.0 = 0;
        if seen.written.since(self.written) > FAR {
            self.undecided.push(seen);
        } else {
            self.hold(seen);
        }
        Ok(())
    }

    /// Places the remaining lines at the end of the file. Returns the lines that are skipped.
    ///
    /// # Errors
    /// Same as [`add`](Self::add).
    pub(super) fn end(&mut self) -> Result<Vec<Odd>, (u64, Micros)> {
        let mut odd = Vec::new();
        self.decide(&mut odd)?;
        Ok(odd)
    }

    /// Holds the longest chronological chain of undecided lines, and skips the lines outside it.
    ///
    /// # Errors
    /// At least half of the lines would be skipped, so these are not isolated wrong times.
    fn decide(&mut self, odd: &mut Vec<Odd>) -> Result<(), (u64, Micros)> {
        let all = std::mem::take(&mut self.undecided);
        let chosen = chain(&all, self.written);
        if 2 * chosen.iter().filter(|is_chosen| **is_chosen).count() <= all.len() {
            let mut latest = self.written;
            for seen in &all {
                let back = latest.since(seen.written);
                if back > FAR {
                    return Err((seen.line, back));
                }
                latest = latest.max(seen.written);
            }
        }
        for (index, seen) in all.iter().enumerate() {
            if chosen[index] {
                self.hold(*seen);
                continue;
            }
            let mut later = all.iter().zip(&chosen).skip(index);
            let next = later.find(|(_, is_chosen)| **is_chosen).map(|(next, _)| next.written);
            let ahead = next.map_or(Micros::ZERO, |next| seen.written.since(next));
            let reason = if ahead > FAR {
                Reason::Ahead(ahead.as_secs_ceil())
            } else {
                Reason::Behind(self.written.since(seen.written).as_secs_ceil())
            };
            self.leave_out(*seen, reason, odd);
        }
        Ok(())
    }

    fn hold(&mut self, Seen { entry, written, .. }: Seen) {
        if self.in_order.back().is_none_or(|last| last.at <= entry.at) {
            self.in_order.push_back(entry);
        } else {
            self.others.push(Reverse(entry));
        }
        self.latest = self.latest.max(entry.at);
        self.written = self.written.max(written);
    }

    fn leave_out(&mut self, seen: Seen, reason: Reason, odd: &mut Vec<Odd>) {
        odd.push((seen.line, reason));
        self.release(seen.entry);
    }

    /// The earliest pending line.
    pub(super) fn peek(&self) -> Option<Entry> {
        let other = self.others.peek().map(|Reverse(entry)| *entry);
        match (self.in_order.front().copied(), other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Returns the earliest record. Its batch remains in memory until [`forget`](Self::forget).
    pub(super) fn give<'a>(
        &'a mut self,
        entry: Entry,
        file: &'a str,
        names: &'a [Box<str>],
    ) -> Option<Record<'a>> {
        if self.in_order.front() == Some(&entry) {
            self.in_order.pop_front();
        } else {
            self.others.pop();
        }
        self.given = Some(entry);
        let (batch, _) = self.batches.get(entry.batch.wrapping_sub(self.first) as usize)?;
        Some(batch.records.get(entry.index as usize)?.record(file, &batch.text, names))
    }

    pub(super) fn forget(&mut self) {
        let Some(entry) = self.given.take() else { return };
        self.release(entry);
        self.drop_read();
    }

    /// Drops a batch's text when its last record is released.
    fn release(&mut self, entry: Entry) {
        let number = entry.batch.wrapping_sub(self.first) as usize;
        if let Some((batch, left)) = self.batches.get_mut(number) {
            *left -= 1;
            if *left == 0 {
                // A line with a time far ahead only holds its own batch in memory.
                *batch = Batch::default();
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

/// Marks the longest chain of lines after `written` in which no line is far behind the previous
/// line. Among chains with equal length, the chain with the latest end wins.
fn chain(lines: &[Seen], written: Timestamp) -> Vec<bool> {
    // For each line, the length of the longest chain up to that line, and the previous line.
    let mut ends: Vec<(usize, Option<usize>)> = Vec::with_capacity(lines.len());
    for seen in lines {
        let follows = |before: Timestamp| before.since(seen.written) <= FAR;
        let before = (0..ends.len()).filter(|it| ends[*it].0 > 0 && follows(lines[*it].written));
        let before = before.max_by_key(|it| ends[*it].0);
        let length = before.map_or(0, |it| ends[it].0) + 1;
        ends.push(if follows(written) { (length, before) } else { (0, None) });
    }
    let mut chosen = vec![false; lines.len()];
    let mut next = (0..ends.len()).filter(|it| ends[*it].0 > 0).max_by_key(|it| ends[*it].0);
    while let Some(index) = next {
        chosen[index] = true;
        next = ends[index].1;
    }
    chosen
}
