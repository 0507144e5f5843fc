//! Tests of `deploy/`: alerts fire, and panels have data.

mod files;
mod live;
mod prometheus;
