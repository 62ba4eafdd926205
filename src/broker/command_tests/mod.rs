//! Commands carried out by a core whose journal is in memory.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod ack;
mod bench;
mod dead_letters;
mod push;
mod queues;
mod transaction;
