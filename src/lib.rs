//! Comb: a durable queue daemon on its own log-structured storage engine.
//!
//! Calls go down only: `http` → `broker` → `engine` → `log`, `index`, `cursor` → `format`, `io`.

pub mod broker;
pub mod config;
pub mod cursor;
pub mod daemon;
pub mod engine;
pub mod format;
pub mod http;
pub mod index;
pub mod io;
pub mod log;
pub mod telemetry;
pub mod types;
pub mod wiring;
