//! Where messages are, and which transaction ids were seen: plain data structures in memory.
//!
//! Purpose: find the run that holds an offset, the first message at or after a time, and the offsets of a
//! transaction id.
//!
//! Invariants: derived from the log alone; losing an index never moves a cursor.
//!
//! Must not: do I/O, know queues or groups.

pub mod ids;
pub mod runs;
