//! The first block of every segment, cursor file and checkpoint.

use super::wire::{Cells, Prefix, seal_block};
use super::{BLOCK_BYTES, DecodeError, FORMAT_VERSION};
use crate::types::{Epoch, FileNumber, LogId, Seq};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Messages of all partitions.
    Segment,
    /// The write-ahead cursor file.
    Cursor,
    /// Everything the cursor files say, as of one seq.
    Checkpoint,
}

/// A file's header; one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// What it is.
    pub kind: FileKind,
    /// The log it belongs to.
    pub log: LogId,
    /// Its number (for a checkpoint: its seq).
    pub number: FileNumber,
    /// Shard of this log, from 0.
    pub shard: u16,
    /// Shards in all; 1.
    pub shards: u16,
    /// Size of the file.
    pub file_bytes: u64,
    /// Largest frame that may be written to it, header and padding included; binds recovery of this file.
    pub max_frame_bytes: u64,
    /// Groups that may have been in flight at once; binds recovery of this file.
    pub pipeline_depth: u32,
    /// Process start that prepared it.
    pub epoch: Epoch,
    /// Highest seq staged when it was prepared; frames in it are above. Display only.
    pub after_seq: Seq,
}

const WHAT: &str = "file header";

/// Recorded in every header; this version writes and reads one size only.
const BLOCK: u32 = BLOCK_BYTES as u32;

impl FileKind {
    const ALL: [FileKind; 3] = [FileKind::Segment, FileKind::Cursor, FileKind::Checkpoint];

    fn code(self) -> u8 {
        match self {
            FileKind::Segment => 1,
            FileKind::Cursor => 2,
            FileKind::Checkpoint => 3,
        }
    }

    /// First four bytes of a file of this kind: `CbSg`, `CbCu` or `CbCk`.
    #[must_use]
    pub fn magic(self) -> u32 {
        u32::from_le_bytes(match self {
            FileKind::Segment => *b"CbSg",
            FileKind::Cursor => *b"CbCu",
            FileKind::Checkpoint => *b"CbCk",
        })
    }

    /// Name of structures of this kind in errors.
    fn what(self) -> &'static str {
        match self {
            FileKind::Segment => "segment header",
            FileKind::Cursor => "cursor file header",
            FileKind::Checkpoint => "checkpoint header",
        }
    }
}

impl FileHeader {
    /// The header as its whole block, `BLOCK_BYTES` bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut cells = Cells::new(&mut block);
        Prefix { magic: self.kind.magic(), version: FORMAT_VERSION, kind: self.kind.code() }.put(&mut cells);
        cells.put(BLOCK.to_le_bytes());
        cells.put(self.log.0.to_le_bytes());
        cells.put(self.number.0.to_le_bytes());
        cells.put(self.shard.to_le_bytes());
        cells.put(self.shards.to_le_bytes());
        cells.put(self.pipeline_depth.to_le_bytes());
        cells.put(self.file_bytes.to_le_bytes());
        cells.put(self.max_frame_bytes.to_le_bytes());
        cells.put(self.epoch.0.to_le_bytes());
        cells.put(self.after_seq.0.to_le_bytes());
        seal_block(&mut block);
        block
    }

    /// Reads the header of a file that should be of that kind and number, from its first block.
    ///
    /// # Errors
    /// When the block is short, of another kind, damaged, of a newer version, of another number, or holds a field
    /// that no writer writes. The caller compares the log id with its own.
    pub fn decode(bytes: &[u8], kind: FileKind, number: FileNumber) -> Result<FileHeader, DecodeError> {
        let header = decode_as(bytes, kind)?;
        if header.number != number {
            return Err(DecodeError::Field { what: kind.what(), field: "number", got: header.number.0 });
        }
        Ok(header)
    }

    /// Reads the header of a file of any kind and number: for tools.
    ///
    /// # Errors
    /// As `decode`, apart from kind and number.
    pub fn decode_any(bytes: &[u8]) -> Result<FileHeader, DecodeError> {
        let magic = Prefix::magic_of(bytes).ok_or(DecodeError::Short {
            what: WHAT,
            need: BLOCK_BYTES,
            got: bytes.len(),
        })?;
        match FileKind::ALL.into_iter().find(|kind| kind.magic() == magic) {
            Some(kind) => decode_as(bytes, kind),
            None => Err(DecodeError::Magic { what: WHAT }),
        }
    }
}

fn decode_as(bytes: &[u8], kind: FileKind) -> Result<FileHeader, DecodeError> {
    let (code, mut reader) = Prefix::check(kind.what(), bytes, BLOCK_BYTES, kind.magic())?;
    if code != kind.code() {
        return Err(reader.field("kind", u64::from(code)));
    }
    let block = reader.u32()?;
    if block != BLOCK {
        return Err(reader.field("block size", u64::from(block)));
    }
    let log = LogId(reader.u128()?);
    let number = FileNumber(reader.u64()?);
    let shard = reader.u16()?;
    let shards = reader.u16()?;
    if shard >= shards {
        return Err(reader.field("shard", u64::from(shard)));
    }
    let pipeline_depth = reader.u32()?;
    let header = FileHeader {
        kind,
        log,
        number,
        shard,
        shards,
        file_bytes: reader.u64()?,
        max_frame_bytes: reader.u64()?,
        pipeline_depth,
        epoch: Epoch(reader.u64()?),
        after_seq: Seq(reader.u64()?),
    };
    reader.zeros("reserved")?;
    Ok(header)
}
