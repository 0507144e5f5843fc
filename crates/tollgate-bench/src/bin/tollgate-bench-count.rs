//! Counts allocations for `tollgate-bench`.
//!
//! Counting needs an allocator that counts, which costs a little at each allocation. So
//! it is a program of its own, and nothing that is timed pays for it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::count(|run| {
        let counted = allocation_counter::measure(run);
        (counted.count_total, counted.bytes_current)
    })
}
