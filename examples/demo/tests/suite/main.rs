//! A single test binary for the demo, because each binary is linked separately.

mod items;
