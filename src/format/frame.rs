//! Frames: one group commit's bytes in one file.
//!
//! A frame starts at a block boundary: header, body, zero padding to the next block. A message frame's body is a
//! sequence of runs (`run`), a cursor frame's body is a message reference followed by deltas (`delta`), a seal's
//! body names the successor, a noop has no body.

use super::DecodeError;
use crate::types::{Epoch, FileNumber, LogId, LogTime, Seq};

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 128;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A group commit.
    Commit,
    /// The end of a file; nothing follows it.
    Seal,
    /// Carries the watermark only.
    Noop,
    /// Messages moved from a mostly dead segment. Reserved.
    Rewrite,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it is.
    pub kind: FrameKind,
    /// Number of the file it was written for.
    pub file: FileNumber,
    /// Process start that wrote it.
    pub epoch: Epoch,
    /// Its group commit. A noop or seal carries the last one before it.
    pub seq: Seq,
    /// Highest seq known complete when it was written; always below `seq` for a commit.
    pub watermark: Seq,
    /// `chain_after` of the previous header in this file (of the file header for the first frame).
    pub chain: u64,
    /// Bytes of the body, without padding.
    pub body_bytes: u32,
    /// Records in the body: runs of a message frame, deltas of a cursor frame.
    pub records: u32,
    /// `body_hash` of the body.
    pub body_hash: u64,
    /// Log time of the group.
    pub log_time: LogTime,
}

/// Where a cursor frame's messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRef {
    /// The segment.
    pub segment: FileNumber,
    /// Byte of the message frame's header.
    pub position: u64,
    /// Bytes of the message frame's body.
    pub body_bytes: u32,
    /// Its body hash.
    pub body_hash: u64,
}

/// Body of a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealBody {
    /// Frames before the seal.
    pub frames: u64,
    /// Last seq in the file.
    pub last_seq: Seq,
    /// The file that follows.
    pub successor: FileNumber,
}

// The signatures the engine relies on:
// impl FrameHeader {
//     pub fn encode(&self, out: &mut [u8; FRAME_HEADER_BYTES])
//     pub fn decode(bytes: &[u8], file: FileNumber) -> Result<FrameHeader, DecodeError>   // checks crc32, magic, version, file number
//     pub fn frame_bytes(&self) -> u64        // header + body, rounded up to a block
// }
// pub fn chain_after(header: &[u8]) -> u64    // xxh3-64 of the encoded header (frame or file)
// pub fn body_hash(log: LogId, file: FileNumber, seq: Seq, body: &[u8]) -> u64
// pub fn frame_bytes(body_bytes: usize) -> u64
// impl MessageRef { BYTES (of Option<MessageRef>), encode_option(Option<&MessageRef>, &mut Vec<u8>-like), decode_option(&mut &[u8]) }
// impl SealBody   { encode/decode }
