//! The parsers, through their public API.

mod apis;
#[cfg(feature = "axum")]
mod budget;
mod chunks;
mod history;
#[cfg(feature = "axum")]
mod levels;
mod names;
mod prices;
mod requests;
mod responses;
mod servers;

use tollgate_llm::{DOLLAR, Model, Price, UsageReader};

/// A model with 300 tokens per 1000 bytes, the default.
fn model() -> Model {
    Model::new(Price::per_million(DOLLAR, 4 * DOLLAR))
}

fn read(mut reader: UsageReader, response: &str) -> UsageReader {
    reader.read(response.as_bytes());
    reader
}
