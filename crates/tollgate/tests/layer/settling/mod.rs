//! Charges that are settled when the response is known.

mod cost_header;
mod counting;
mod forgiving;
mod reserving;
mod tallies;
