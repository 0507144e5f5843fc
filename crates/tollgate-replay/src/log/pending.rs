//! Holds a file's lines until it is their turn, and finds lines with wrong times.
//!
//! A server writes a line when the response is complete, so lines are slightly out of order. Nearly
//! all lines are in order and wait in a queue. The rest wait in a map.

use std::collections::{BTreeMap, VecDeque};

use tollgate_core::{Micros, Timestamp};

use super::record::{Batch, Line, Odd, Reason};

/// Adjacent lines differ by less, unless the server was idle.
const FAR: Micros = Micros::new(3_600_000_000);
/// This many lines after a time jump show whether the server was idle or which times are wrong.
const MANY: usize = 16;

/// A file's records that wait for their turn.
#[derive(Default)]
pub(super) struct PendingRecords {
    in_order: VecDeque<Line>,
    /// By time, and then by position in the file.
    others: BTreeMap<(Timestamp, u64), Line>,
    pub(super) latest: Timestamp,
    /// The latest time at which a response was complete.
    written: Timestamp,
    /// The lines after a time jump.
    undecided: Vec<Line>,
}

/// The first line that is far behind earlier lines, and how far.
pub(super) type Backwards = (u64, Micros);

impl PendingRecords {
    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    /// Adds the file's next lines. Returns the lines that are skipped because of wrong times.
    ///
    /// # Errors
    /// Many lines are far behind, so the file contains two logs or has its newest line first.
    pub(super) fn add(
        &mut self,
        batch: Batch,
        not_after: Timestamp,
    ) -> Result<Vec<Odd>, Backwards> {
        let mut odd = Vec::new();
        for line in Line::all(batch) {
            if line.written() > not_after {
                odd.push((line.number(), Reason::Future));
            } else {
                self.place(line, &mut odd)?;
            }
        }
        Ok(odd)
    }

    fn place(&mut self, line: Line, odd: &mut Vec<Odd>) -> Result<(), Backwards> {
        let written = line.written();
        let Some(latest) = self.undecided.iter().map(Line::written).max() else {
            let jump = written.since(self.written).max(self.written.since(written));
            if jump > FAR {
                self.undecided.push(line);
            } else {
                self.hold(line);
            }
            return Ok(());
        };
        self.undecided.push(line);
        // The wrong time may also be in the last line.
        let is_alone = written.since(latest) > FAR;
        let enough = if is_alone { 4 * MANY } else { MANY };
        if self.undecided.len() >= enough { self.decide(odd) } else { Ok(()) }
    }

    /// Places the remaining lines at the end of the file. Returns the lines that are skipped.
    ///
    /// # Errors
    /// Same as [`add`](Self::add).
    pub(super) fn end(&mut self) -> Result<Vec<Odd>, Backwards> {
        let mut odd = Vec::new();
        self.decide(&mut odd)?;
        Ok(odd)
    }

    /// Holds the longest chronological chain of undecided lines, and skips the lines outside it.
    ///
    /// # Errors
    /// At least half of the lines would be skipped, so these are not isolated wrong times.
    fn decide(&mut self, odd: &mut Vec<Odd>) -> Result<(), Backwards> {
        let all = std::mem::take(&mut self.undecided);
        let chosen = chain(&all, self.written);
        // The lines before a few last lines count too.
        let is_start = self.written == Timestamp::EPOCH;
        if 2 * chosen.iter().filter(|is_chosen| **is_chosen).count() <= all.len()
            && (all.len() >= MANY || is_start)
        {
            let mut latest = self.written;
            for line in &all {
                let back = latest.since(line.written());
                if back > FAR {
                    return Err((line.number(), back));
                }
                latest = latest.max(line.written());
            }
        }
        for (index, line) in all.iter().enumerate() {
            if chosen[index] {
                self.hold(line.clone());
                continue;
            }
            let mut later = all.iter().zip(&chosen).skip(index);
            let next = later.find(|(_, is_chosen)| **is_chosen).map(|(next, _)| next.written());
            let ahead = next.map_or(Micros::ZERO, |next| line.written().since(next));
            let reason = if ahead > FAR {
                Reason::Ahead(ahead.as_secs_ceil())
            } else {
                Reason::Behind(self.written.since(line.written()).as_secs_ceil())
            };
            odd.push((line.number(), reason));
        }
        Ok(())
    }

    fn hold(&mut self, line: Line) {
        self.latest = self.latest.max(line.at);
        self.written = self.written.max(line.written());
        if self.in_order.back().is_none_or(|last| last.at <= line.at) {
            self.in_order.push_back(line);
        } else {
            self.others.insert((line.at, line.number()), line);
        }
    }

    /// The time of the earliest line.
    pub(super) fn peek(&self) -> Option<Timestamp> {
        let other = self.others.first_key_value().map(|((at, _), _)| *at);
        self.in_order.front().map(|line| line.at).into_iter().chain(other).min()
    }

    /// Removes the earliest line.
    pub(super) fn pop(&mut self) -> Option<Line> {
        match (self.in_order.front(), self.others.first_entry()) {
            (Some(first), Some(other)) if (first.at, first.number()) > *other.key() => {
                Some(other.remove())
            }
            (None, Some(other)) => Some(other.remove()),
            _ => self.in_order.pop_front(),
        }
    }
}

/// Marks the longest chain of lines after `written` in which no line is far behind the previous
/// line. Among chains with equal length, the chain with the latest end wins.
fn chain(lines: &[Line], written: Timestamp) -> Vec<bool> {
    // For each line, the length of the longest chain up to that line, and the previous line.
    let mut ends: Vec<(usize, Option<usize>)> = Vec::with_capacity(lines.len());
    for line in lines {
        let follows = |before: Timestamp| before.since(line.written()) <= FAR;
        let before = (0..ends.len()).filter(|it| ends[*it].0 > 0 && follows(lines[*it].written()));
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
