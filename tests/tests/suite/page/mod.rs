//! The live page in a browser, served by real processes.

mod browser;
mod devtools;
mod forms;
mod moves;
mod picture;
mod report;
mod support;
