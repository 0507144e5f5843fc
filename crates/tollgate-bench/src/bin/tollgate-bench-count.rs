//! Counts allocations for `tollgate-bench`.
//!
//! The counting allocator adds a little time to each allocation. So counting has its own program,
//! and the timed programs use the normal allocator.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::count(|run| {
        let counted = allocation_counter::measure(run);
        (counted.count_total, counted.bytes_current)
    })
}
