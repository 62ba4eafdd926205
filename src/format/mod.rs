//! Every byte on disk: pure encode and decode.
//!
//! Purpose: the codecs of file headers, frames, records, message entries, the superblock and checkpoints.
//! `docs/FORMAT.md` describes every byte; golden tests pin them.
//!
//! Invariants:
//! - Little-endian; every length and count is checked against the bytes that are there before anything is allocated.
//! - Decoding never panics, whatever the bytes.
//! - A header is valid only under its own file's number, so bytes of an earlier life of a recycled file prove nothing.
//!
//! Must not: do I/O, read clocks, hold state.

pub mod checkpoint;
pub mod delta;
pub mod entry;
pub mod file_header;
pub mod frame;
pub mod index;
mod options;
pub mod run;
pub mod superblock;
mod wire;

use thiserror::Error;

use crate::types::{IdHash, LogId};

/// Version of everything on disk. A file with a newer one is refused and nothing is written.
pub const FORMAT_VERSION: u16 = 1;

pub use crate::types::BLOCK_BYTES;

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Fewer bytes than the structure needs.
    #[error("{what}: {got} bytes where {need} are needed")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        got: usize,
    },
    /// The magic number is another one.
    #[error("{what}: wrong magic number")]
    Magic {
        /// The structure.
        what: &'static str,
    },
    /// Written by a newer version.
    #[error("{what}: format version {got}, this build reads up to {FORMAT_VERSION}")]
    Version {
        /// The structure.
        what: &'static str,
        /// The version found.
        got: u16,
    },
    /// A checksum does not match.
    #[error("{what}: checksum mismatch")]
    Checksum {
        /// The structure.
        what: &'static str,
    },
    /// A field holds a value that no writer writes.
    #[error("{what}: {field} is {got}, which no writer writes")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value.
        got: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what}: {field} is not UTF-8")]
    Text {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
    /// Neither slot of the superblock is valid.
    #[error("superblock: neither slot is valid (first: {first}; second: {second})")]
    BothSlots {
        /// What is wrong with the first.
        first: Box<DecodeError>,
        /// What is wrong with the second.
        second: Box<DecodeError>,
    },
}

/// Hash of a transaction id: xxh3-128 of its bytes, seeded with the log id (the low 64 bits).
#[must_use]
pub fn id_hash(log: LogId, transaction_id: &str) -> IdHash {
    IdHash(xxhash_rust::xxh3::xxh3_128_with_seed(transaction_id.as_bytes(), log.0 as u64))
}
