//! Tests of `deploy/`: alerts fire when they should, and panels show something.

mod files;
mod live;
mod prometheus;
