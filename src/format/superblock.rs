//! The superblock: two 4 KiB slots, written in turn; the valid one with the higher generation counts.

use super::wire::{Cells, Prefix, seal_block};
use super::{BLOCK_BYTES, DecodeError, FORMAT_VERSION};
use crate::types::{Epoch, LogId, Seq};

/// Contents of a superblock slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Raised by every write.
    pub generation: u64,
    /// Identity of the log.
    pub log: LogId,
    /// Shard of this log, from 0.
    pub shard: u16,
    /// Shards in all; 1.
    pub shards: u16,
    /// Newest process start.
    pub epoch: Epoch,
    /// Newest kept checkpoint; 0 for none.
    pub checkpoint: Seq,
    /// The kept checkpoint before it; 0 for none.
    pub previous_checkpoint: Seq,
    /// The last process shut down cleanly at this seq; 0 while one runs or after a crash.
    pub clean_seq: Seq,
}

/// First four bytes of a slot: `CbSb`.
pub const SUPERBLOCK_MAGIC: u32 = u32::from_le_bytes(*b"CbSb");

/// Bytes of the superblock file: two slots.
pub const SUPERBLOCK_FILE_BYTES: usize = 2 * BLOCK_BYTES;

const KIND: u8 = 4;
const BLOCK: u32 = BLOCK_BYTES as u32;
const WHAT: &str = "superblock slot";

impl Superblock {
    /// A slot's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut cells = Cells::new(&mut block);
        Prefix { magic: SUPERBLOCK_MAGIC, version: FORMAT_VERSION, kind: KIND }.put(&mut cells);
        cells.put(BLOCK.to_le_bytes());
        cells.put(self.log.0.to_le_bytes());
        cells.put(self.generation.to_le_bytes());
        cells.put(self.shard.to_le_bytes());
        cells.put(self.shards.to_le_bytes());
        cells.put([0; 4]);
        cells.put(self.epoch.0.to_le_bytes());
        cells.put(self.checkpoint.0.to_le_bytes());
        cells.put(self.previous_checkpoint.0.to_le_bytes());
        cells.put(self.clean_seq.0.to_le_bytes());
        seal_block(&mut block);
        block
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// When it is short, was never written, is damaged, of a newer version, or holds a field no writer writes.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, DecodeError> {
        let (kind, mut reader) = Prefix::check(WHAT, bytes, BLOCK_BYTES, SUPERBLOCK_MAGIC)?;
        if kind != KIND {
            return Err(reader.field("kind", u64::from(kind)));
        }
        let block = reader.u32()?;
        if block != BLOCK {
            return Err(reader.field("block size", u64::from(block)));
        }
        let log = LogId(reader.u128()?);
        let generation = reader.u64()?;
        let shard = reader.u16()?;
        let shards = reader.u16()?;
        if shard >= shards {
            return Err(reader.field("shard", u64::from(shard)));
        }
        let reserved = reader.u32()?;
        if reserved != 0 {
            return Err(reader.field("reserved", u64::from(reserved)));
        }
        let superblock = Superblock {
            generation,
            log,
            shard,
            shards,
            epoch: Epoch(reader.u64()?),
            checkpoint: Seq(reader.u64()?),
            previous_checkpoint: Seq(reader.u64()?),
            clean_seq: Seq(reader.u64()?),
        };
        if superblock.previous_checkpoint > superblock.checkpoint {
            return Err(reader.field("previous checkpoint", superblock.previous_checkpoint.0));
        }
        reader.zeros("reserved")?;
        Ok(superblock)
    }

    /// The slot that counts, and which one it is (0 or 1): the valid one of the higher generation.
    ///
    /// # Errors
    /// `Version` when either slot is valid and of a newer version, whatever the other holds: nothing may be
    /// written then. `BothSlots` when neither is valid. `Field` when both are valid but cannot have been written
    /// by one log: two log ids, or one generation with two contents.
    pub fn pick(slot0: &[u8], slot1: &[u8]) -> Result<(Superblock, usize), DecodeError> {
        match (Superblock::decode(slot0), Superblock::decode(slot1)) {
            (Err(newer @ DecodeError::Version { .. }), _) | (_, Err(newer @ DecodeError::Version { .. })) => {
                Err(newer)
            }
            (Ok(first), Ok(second)) => {
                if first.log != second.log {
                    return Err(DecodeError::Field {
                        what: "superblock slots of two logs",
                        field: "generation of the second",
                        got: second.generation,
                    });
                }
                if first.generation == second.generation && first != second {
                    return Err(DecodeError::Field {
                        what: "superblock slots with two contents",
                        field: "generation of both",
                        got: first.generation,
                    });
                }
                Ok(if second.generation > first.generation { (second, 1) } else { (first, 0) })
            }
            (Ok(first), Err(_)) => Ok((first, 0)),
            (Err(_), Ok(second)) => Ok((second, 1)),
            (Err(first), Err(second)) => {
                Err(DecodeError::BothSlots { first: Box::new(first), second: Box::new(second) })
            }
        }
    }
}
