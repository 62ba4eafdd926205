//! Queues, partitions, groups, leases, acknowledgements, retries, dead letters, transactions, long polls.
//!
//! Purpose: decide commands against the state and stage what they change.
//!
//! Invariants:
//! - State changes in one place, `state::State::apply`, by the live path and by recovery alike.
//! - Every answer waits for the last group commit that was staged when it was decided.
//!
//! Must not: touch files, sockets, clocks; know HTTP or JSON.

pub mod ack;
pub mod command;
pub mod core;
pub mod cursors;
mod dead_letters;
mod graveyard;
mod groups;
pub mod handle;
pub mod journal;
mod lease;
mod matching;
pub mod names;
mod parked;
mod pop;
pub mod push;
mod queues;
mod ready;
pub mod retention;
mod settled;
mod snapshot;
mod space;
pub mod start;
pub mod state;
pub mod status;
pub mod storage;
pub mod survey;
pub mod transaction;

#[cfg(test)]
mod command_tests;
#[cfg(test)]
mod delivery_tests;
#[cfg(test)]
mod snapshot_tests;
