//! Frames: one group commit's bytes in one file.
//!
//! A frame starts at a block boundary: header, body, zero padding to the next block. A message frame's body is a
//! sequence of runs (`run`), a cursor frame's body is a message reference followed by deltas (`delta`), a seal's
//! body names the successor, a noop has no body.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::wire::{Cells, Prefix, Reader, seal_block};
use super::{BLOCK_BYTES, DecodeError, FORMAT_VERSION};
use crate::types::{Epoch, FileNumber, LogId, LogTime, Seq};

/// First four bytes of a frame: `CbFr`.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"CbFr");

const WHAT: &str = "frame header";
const MESSAGE_REF: &str = "message reference";

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
    /// `mark` of the log and the file. Nobody outside the daemon can know it, so bytes that a client chose can never
    /// pass for a frame, wherever they land. The reader compares.
    pub mark: u32,
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

impl FrameKind {
    fn code(self) -> u8 {
        match self {
            FrameKind::Commit => 1,
            FrameKind::Seal => 2,
            FrameKind::Noop => 3,
            FrameKind::Rewrite => 4,
        }
    }

    fn from_code(code: u8) -> Option<FrameKind> {
        match code {
            1 => Some(FrameKind::Commit),
            2 => Some(FrameKind::Seal),
            3 => Some(FrameKind::Noop),
            4 => Some(FrameKind::Rewrite),
            _ => None,
        }
    }
}

impl FrameHeader {
    /// Writes the header; every byte of `out` is set.
    pub fn encode(&self, out: &mut [u8; FRAME_HEADER_BYTES]) {
        *out = [0; FRAME_HEADER_BYTES];
        let mut cells = Cells::new(out);
        Prefix { magic: FRAME_MAGIC, version: FORMAT_VERSION, kind: self.kind.code() }.put(&mut cells);
        cells.put(self.body_bytes.to_le_bytes());
        cells.put(self.file.0.to_le_bytes());
        cells.put(self.epoch.0.to_le_bytes());
        cells.put(self.seq.0.to_le_bytes());
        cells.put(self.watermark.0.to_le_bytes());
        cells.put(self.chain.to_le_bytes());
        cells.put(self.records.to_le_bytes());
        cells.put(self.mark.to_le_bytes());
        cells.put(self.body_hash.to_le_bytes());
        cells.put(self.log_time.0.to_le_bytes());
        seal_block(out);
    }

    /// Reads a header from the first bytes of `bytes`, which may be longer.
    ///
    /// # Errors
    /// When it is not a valid header of a frame that was written for `file`: another magic, a crc32 that does not
    /// match, a newer version, another file's number (bytes of an earlier life), or a field no writer writes.
    pub fn decode(bytes: &[u8], file: FileNumber) -> Result<FrameHeader, DecodeError> {
        let (kind, mut reader) = Prefix::check(WHAT, bytes, FRAME_HEADER_BYTES, FRAME_MAGIC)?;
        let kind = FrameKind::from_code(kind).ok_or_else(|| reader.field("kind", u64::from(kind)))?;
        let body_bytes = reader.u32()?;
        let header = FrameHeader {
            kind,
            file: FileNumber(reader.u64()?),
            epoch: Epoch(reader.u64()?),
            seq: Seq(reader.u64()?),
            watermark: Seq(reader.u64()?),
            chain: reader.u64()?,
            body_bytes,
            records: reader.u32()?,
            mark: reader.u32()?,
            body_hash: reader.u64()?,
            log_time: LogTime(reader.u64()?),
        };
        if header.file != file {
            return Err(reader.field("file number", header.file.0));
        }
        let watermark_fits = match kind {
            FrameKind::Commit | FrameKind::Rewrite => header.watermark < header.seq,
            FrameKind::Seal | FrameKind::Noop => header.watermark <= header.seq,
        };
        if !watermark_fits {
            return Err(reader.field("watermark", header.watermark.0));
        }
        if kind == FrameKind::Noop && header.body_bytes != 0 {
            return Err(reader.field("body length of a noop", u64::from(header.body_bytes)));
        }
        reader.zeros("reserved")?;
        Ok(header)
    }

    /// Bytes of the whole frame: header and body, rounded up to a block.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        round_up(u64::from(self.body_bytes))
    }
}

fn round_up(body_bytes: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    body_bytes.saturating_add(FRAME_HEADER_BYTES as u64).div_ceil(block).saturating_mul(block)
}

/// Bytes of a frame with a body of that length: header and body, rounded up to a block.
#[must_use]
pub fn frame_bytes(body_bytes: usize) -> u64 {
    round_up(body_bytes as u64)
}

/// The chain value of the header that follows `header`: xxh3-64 of its first `FRAME_HEADER_BYTES` bytes.
///
/// Takes an encoded frame header or an encoded file header; bytes beyond the first `FRAME_HEADER_BYTES` do not
/// count, so either a whole block or the header alone may be given.
#[must_use]
pub fn chain_after(header: &[u8]) -> u64 {
    xxh3_64(header.get(..FRAME_HEADER_BYTES).unwrap_or(header))
}

/// The mark of a file's frames: the low half of the xxh3-64 of log id and file number, little-endian, 24 bytes.
#[must_use]
pub fn mark(log: LogId, file: FileNumber) -> u32 {
    let mut place = [0; 24];
    let (id, number) = place.split_at_mut(16);
    id.copy_from_slice(&log.0.to_le_bytes());
    number.copy_from_slice(&file.0.to_le_bytes());
    (xxh3_64(&place) & u64::from(u32::MAX)) as u32
}

/// Hash of a frame's body: xxh3-64, seeded so that the same bytes in another log, file or group do not match.
///
/// The seed is the xxh3-64 of log id, file number and seq, little-endian, 32 bytes.
#[must_use]
pub fn body_hash(log: LogId, file: FileNumber, seq: Seq, body: &[u8]) -> u64 {
    let mut place = [0; 32];
    let mut cells = Cells::new(&mut place);
    cells.put(log.0.to_le_bytes());
    cells.put(file.0.to_le_bytes());
    cells.put(seq.0.to_le_bytes());
    xxh3_64_with_seed(body, xxh3_64(&place))
}

impl MessageRef {
    /// Bytes of an encoded `Option<MessageRef>`, with which every commit frame of a cursor file begins.
    pub const BYTES: usize = 32;

    /// Appends a reference, or none: `BYTES` bytes either way.
    pub fn encode_option(reference: Option<&MessageRef>, out: &mut Vec<u8>) {
        let mut bytes = [0; MessageRef::BYTES];
        if let Some(reference) = reference {
            let mut cells = Cells::new(&mut bytes);
            cells.put([1, 0, 0, 0]);
            cells.put(reference.body_bytes.to_le_bytes());
            cells.put(reference.segment.0.to_le_bytes());
            cells.put(reference.position.to_le_bytes());
            cells.put(reference.body_hash.to_le_bytes());
        }
        out.extend_from_slice(&bytes);
    }

    /// Reads what `encode_option` wrote and moves `bytes` behind it.
    ///
    /// # Errors
    /// When bytes are missing, the marker is neither 0 nor 1, a reserved byte or a byte of an absent reference is
    /// not zero, or the position is not a block after the file header. `bytes` is then left alone.
    pub fn decode_option(bytes: &mut &[u8]) -> Result<Option<MessageRef>, DecodeError> {
        let mut reader = Reader::new(MESSAGE_REF, bytes);
        let mut own = Reader::new(MESSAGE_REF, reader.bytes(MessageRef::BYTES)?);
        let reference = match own.u8()? {
            0 => {
                own.zeros("byte of an absent reference")?;
                None
            }
            1 => {
                Reader::new(MESSAGE_REF, &own.take::<3>()?).zeros("reserved")?;
                let body_bytes = own.u32()?;
                let segment = FileNumber(own.u64()?);
                let position = own.u64()?;
                let block = BLOCK_BYTES as u64;
                if position < block || !position.is_multiple_of(block) {
                    return Err(own.field("position", position));
                }
                Some(MessageRef { segment, position, body_bytes, body_hash: own.u64()? })
            }
            other => return Err(own.field("marker", u64::from(other))),
        };
        *bytes = reader.rest();
        Ok(reference)
    }
}

impl SealBody {
    /// Bytes of an encoded seal body.
    pub const BYTES: usize = 24;

    /// Appends the body of a seal.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.frames.to_le_bytes());
        out.extend_from_slice(&self.last_seq.0.to_le_bytes());
        out.extend_from_slice(&self.successor.0.to_le_bytes());
    }

    /// Reads the body of a seal; `body` is exactly that.
    ///
    /// # Errors
    /// When it is shorter or longer than `BYTES`.
    pub fn decode(body: &[u8]) -> Result<SealBody, DecodeError> {
        let mut reader = Reader::new("seal body", body);
        let seal = SealBody {
            frames: reader.u64()?,
            last_seq: Seq(reader.u64()?),
            successor: FileNumber(reader.u64()?),
        };
        reader.end()?;
        Ok(seal)
    }
}
