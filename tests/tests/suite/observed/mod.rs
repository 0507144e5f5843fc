//! What `deploy/` promises: alerts that fire when they should, and panels that show something.

mod files;
mod live;
mod prometheus;
