//! The live page in a browser, over real processes.

mod browser;
mod devtools;
mod forms;
mod moves;
mod picture;
mod report;
mod support;
