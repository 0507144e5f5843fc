//! The table and the verdict.

use super::calls::{Calls, Counts};

pub(super) const HEAD: &str = "  time   calls  429s  used  waiting";

impl Calls {
    pub(super) fn row(&self, tasks: usize) -> String {
        let (calls, denied) = (self.sum(|part| part.calls), self.sum(|part| part.denied));
        let (used, waiting) = (self.usage(), tasks.saturating_sub(self.in_flight));
        format!("{calls:>8}{denied:>6}{used:>5}%{waiting:>9}")
    }

    /// Prints a summary, and returns whether it is good enough.
    pub(super) fn verdict(&self) -> bool {
        let (denied, in_flight) = (self.sum(|part| part.denied), self.most_in_flight as u64);
        println!("at most {in_flight} calls in flight");
        println!("at most {} calls of a task between two of another", self.most_between);
        println!(
            "at most {} ms behind, because the machine was busy",
            self.longest_stall.as_millis()
        );
        let mut parts = self.parts;
        if self.options.kill {
            // The places of a killed worker pass unused, one for each of its tasks.
            parts[0].used += (self.options.tasks as u64 * self.options.window) as f64;
        }
        let [before, halved, returning, after] = parts.map(|part| part.share());
        let (is_good, goal) = if self.options.halve {
            println!("used before: {before:.1}%, while the quota was halved: {halved:.1}%,");
            println!("in the window after that: {returning:.1}%, and since: {after:.1}%");
            let is_good = denied <= 2 * in_flight && before >= 95.0 && after >= 90.0;
            (is_good, "at most one for each call in flight and change, 95% used before, 90% after")
        } else {
            println!("used: {before:.1}%");
            (denied == 0 && before >= 95.0, "none, and 95% used")
        };
        let verdict = if is_good { "passed" } else { "failed" };
        println!("{denied} × 429: {verdict} (expected {goal})");
        is_good
    }

    fn sum(&self, count: impl Fn(&Counts) -> u64) -> u64 {
        self.parts.iter().map(count).sum()
    }
}
