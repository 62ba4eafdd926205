//! Tests of pops, long polls and leases, through the core's commands.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod bench;
mod claims;
mod groups;
mod leases;
mod polls;
mod retention;
mod settled;
mod visibility;
mod wakes;
