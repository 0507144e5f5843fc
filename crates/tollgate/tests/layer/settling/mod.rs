//! Charges that are settled when the response is known.

mod by_policy;
mod cost_header;
mod counting;
mod reserving;
