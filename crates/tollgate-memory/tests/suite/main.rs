//! One program for all tests of the store: each further program is linked anew.

mod bounds;
mod conformance;
mod time;
