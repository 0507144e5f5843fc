//! One program for all tests of the demo: each further program is linked anew.

mod items;
mod store;
