//! Acknowledgement as an offset commit, statement by statement, against the real daemon over HTTP.
//!
//! One test per statement, named after it. `docs/TESTING.md` numbers the statements and names the tests; the tidy
//! test holds the two together.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod cursor;
mod leases;
mod outcomes;
mod patterns;
mod repeats;
mod resolution;
mod signals;
mod wire;
