//! Segments and cursor files as files of frames: names, preparation, appending, walking, and the rule for torn tails.
//!
//! Invariants:
//! - Frames are appended at block boundaries; a block that was handed to the kernel is never written again.
//! - A file's number and header are durable before its name is.
//! - A walk follows lengths and chain from the file header and never scans for more; only `later_frames`, whose
//!   findings vouch for nothing but themselves, looks at every block.
//!
//! Must not: know what records mean.

pub mod appender;
pub mod cache;
pub mod files;
pub mod sealed;
pub mod tail;
pub mod walk;
