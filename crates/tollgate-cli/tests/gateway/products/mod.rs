//! Policies for API products.

mod lists;
mod quotas;
mod settling;
