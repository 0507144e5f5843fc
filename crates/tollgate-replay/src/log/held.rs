//! The lines of a file that are held until it is their turn.
//!
//! A server writes a line when its response is over, so lines are a little out of order. Lines in
//! order, which nearly all are, wait in a queue, and the others in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate_core::{Micros, Timestamp};

use super::record::{Batch, Fields, Reason, Record};

/// Neighbouring lines differ by less, unless the server was idle.
const FAR: Micros = Micros::new(3_600_000_000);
/// So many lines that are far from the lines before them are not single wrong times.
const MANY: usize = 16;

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
    /// The first lines that are far ahead of [`written`](Self::written). Later lines show whether
    /// the server was idle before them, or their times are wrong.
    ahead: Vec<Seen>,
    /// How many lines were skipped because they are far ahead, since a line was last held.
    skipped: usize,
    /// How many lines in a row are far behind, and the first of these lines.
    behind: (usize, u64),
    /// The record that was handed out, which borrows from its batch.
    given: Option<Entry>,
}

/// A line that was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    entry: Entry,
    line: u64,
    /// When its response was over.
    written: Timestamp,
}

/// A line that is skipped because its time is wrong.
pub(super) type Odd = (u64, Reason);

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

    /// Adds the next lines of the file. Returns the lines that are skipped because their times are
    /// wrong.
    ///
    /// # Errors
    /// Many lines in a row are far behind, so the file contains two logs, or its newest line comes
    /// first. The error has the first of these lines, and how far they are behind.
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
            // A line is written when its response is over, which may be hours after its begin.
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
        let latest_ahead = self.ahead.iter().map(|ahead| ahead.written).max();
        let by = |ahead: &Seen| ahead.written.since(seen.written);
        if latest_ahead.is_some_and(|latest| latest.since(seen.written) > FAR) {
            let far = |ahead: &Seen| by(ahead) > FAR;
            let (wrong, rest) =
                std::mem::take(&mut self.ahead).into_iter().partition::<Vec<_>, _>(far);
            self.ahead = rest;
            self.skipped += wrong.len();
            if self.skipped >= MANY {
                return Err((seen.line, wrong.first().map_or(FAR, by)));
            }
            for ahead in wrong {
                let by = by(&ahead).as_secs_ceil();
                self.leave_out(ahead, Reason::Ahead(by), odd);
            }
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
            self.ahead.push(seen);
            // This line may itself be the one with a wrong time.
            let is_alone = latest_ahead.is_none_or(|latest| seen.written.since(latest) > FAR);
            if self.ahead.len() >= if is_alone { 4 * MANY } else { MANY } {
                self.believe();
            }
        } else {
            self.hold(seen);
        }
        Ok(())
    }

    /// Accepts the last lines of the file.
    ///
    /// # Errors
    /// More lines were skipped before them, so the newest line comes first. The error is as in
    /// [`add`](Self::add).
    pub(super) fn end(&mut self) -> Result<(), (u64, Micros)> {
        if let Some(last) = self.ahead.last().filter(|_| self.skipped > self.ahead.len()) {
            return Err((last.line, FAR));
        }
        self.believe();
        Ok(())
    }

    /// Accepts the lines that are far ahead, because the server was idle before them.
    fn believe(&mut self) {
        for seen in std::mem::take(&mut self.ahead) {
            self.hold(seen);
        }
    }

    fn hold(&mut self, Seen { entry, written, .. }: Seen) {
        if self.in_order.back().is_none_or(|last| last.at <= entry.at) {
            self.in_order.push_back(entry);
        } else {
            self.others.push(Reverse(entry));
        }
        self.skipped = 0;
        self.latest = self.latest.max(entry.at);
        self.written = self.written.max(written);
    }

    fn leave_out(&mut self, seen: Seen, reason: Reason, odd: &mut Vec<Odd>) {
        odd.push((seen.line, reason));
        self.release(seen.entry);
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

    /// Drops a batch's text when none of its records needs it.
    fn release(&mut self, entry: Entry) {
        let number = entry.batch.wrapping_sub(self.first) as usize;
        if let Some((batch, left)) = self.batches.get_mut(number) {
            *left -= 1;
            if *left == 0 {
                // A line with a time far ahead keeps its own batch in memory, but not later ones.
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
