//! Group commits, checkpoints and recovery.
//!
//! Purpose: make what the broker stages durable, in order, and bring it back at start.
//!
//! Invariants:
//! - A group is durable when both of its frames were written in full and both data syncs succeeded.
//! - The watermark is the highest seq such that every group up to it is durable.
//! - A first failed write or sync poisons: nothing is claimed after it.
//!
//! Must not: decide commands, know HTTP.

pub mod machine;
