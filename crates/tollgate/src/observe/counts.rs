//! Counts of outcomes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Answer;

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; Answer::ALL.len()]);

impl Counts {
    pub(super) fn add(&self, answer: Answer) {
        self.0[answer as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The outcomes with their counts.
    pub(crate) fn read(&self) -> impl Iterator<Item = (Answer, u64)> {
        Answer::ALL.into_iter().zip(&self.0).map(|(answer, n)| (answer, n.load(Ordering::Relaxed)))
    }
}
