//! Checkpoint files: a file header, then chunks of deltas, then a footer that makes it complete.
//!
//! Invariants: every byte of a checkpoint is covered by a checksum or must be zero; a checkpoint whose footer is
//! missing or that is damaged anywhere is refused before any of its deltas is handed out.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::delta::{self, Delta, Deltas};
use super::file_header::{FileHeader, FileKind};
use super::wire::{Cells, Reader};
use super::{BLOCK_BYTES, DecodeError};
use crate::types::{Epoch, FileNumber, LogId, LogTime, Seq, WallTime};

/// A chunk is closed by the record that reaches this many bytes.
pub const CHUNK_TARGET_BYTES: usize = 1 << 20;

/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 24;

/// Bytes of the footer's contents, behind its chunk header.
pub const FOOTER_BYTES: usize = 56;

/// First four bytes of a chunk of deltas: `CbDl`.
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"CbDl");
/// First four bytes of the footer: `CbEn`.
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"CbEn");
/// Chunk header bytes in front of its hash; they are part of the hash's seed.
const HASHED_HEADER_BYTES: usize = 16;

/// What a checkpoint says about itself, in its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// The state is as of this group commit.
    pub seq: Seq,
    /// Log time of that group.
    pub log_time: LogTime,
    /// Newest wall time stamped until then.
    pub last_stamp: WallTime,
    /// First cursor file that holds seq + 1 or is where it will be written.
    pub cursor_file: u64,
    /// Deltas in all.
    pub records: u64,
    /// First segment that can hold a message frame of seq + 1 or later; 0 when there is none yet.
    pub segment: FileNumber,
    /// Position in that segment before which no such frame begins.
    pub segment_position: u64,
}

impl CheckpointInfo {
    fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        let mut cells = Cells::new(&mut bytes);
        cells.put(self.seq.0.to_le_bytes());
        cells.put(self.log_time.0.to_le_bytes());
        cells.put(self.last_stamp.0.to_le_bytes());
        cells.put(self.cursor_file.to_le_bytes());
        cells.put(self.records.to_le_bytes());
        cells.put(self.segment.0.to_le_bytes());
        cells.put(self.segment_position.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<CheckpointInfo, DecodeError> {
        let mut reader = Reader::new("checkpoint footer", bytes);
        let info = CheckpointInfo {
            seq: Seq(reader.u64()?),
            log_time: LogTime(reader.u64()?),
            last_stamp: WallTime(reader.u64()?),
            cursor_file: reader.u64()?,
            records: reader.u64()?,
            segment: FileNumber(reader.u64()?),
            segment_position: reader.u64()?,
        };
        reader.end()?;
        Ok(info)
    }
}

/// Hash of a chunk: xxh3-64 of its contents, seeded with its log, its checkpoint and the header bytes before it, so
/// that a chunk of another place, length or count does not match.
fn chunk_hash(log: LogId, seq: Seq, header: [u8; HASHED_HEADER_BYTES], contents: &[u8]) -> u64 {
    let mut place = [0; 24 + HASHED_HEADER_BYTES];
    let mut cells = Cells::new(&mut place);
    cells.put(log.0.to_le_bytes());
    cells.put(seq.0.to_le_bytes());
    cells.put(header);
    xxh3_64_with_seed(contents, xxh3_64(&place))
}

/// Builds a checkpoint file in memory.
#[derive(Clone, Debug)]
pub struct Encoder {
    log: LogId,
    seq: Seq,
    epoch: Epoch,
    out: Vec<u8>,
    /// Where the open chunk's header begins.
    chunk: usize,
    chunk_records: u32,
    chunks: u32,
    records: u64,
}

impl Encoder {
    /// Begins a checkpoint as of `seq`, written by process start `epoch`.
    #[must_use]
    pub fn new(log: LogId, seq: Seq, epoch: Epoch) -> Encoder {
        // The file header is filled in by `finish`, when the size is known.
        let out = vec![0; BLOCK_BYTES + CHUNK_HEADER_BYTES];
        Encoder { log, seq, epoch, out, chunk: BLOCK_BYTES, chunk_records: 0, chunks: 0, records: 0 }
    }

    /// Adds a record. Order is kept.
    pub fn push(&mut self, delta: &Delta<'_>) {
        delta.encode(&mut self.out);
        self.chunk_records += 1;
        self.records += 1;
        if self.out.len() - self.chunk - CHUNK_HEADER_BYTES >= CHUNK_TARGET_BYTES {
            self.close(CHUNK_MAGIC);
        }
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Fills in the open chunk's header and leaves room for the next one's.
    fn close(&mut self, magic: u32) {
        let Some((header, contents)) = self
            .out
            .get_mut(self.chunk..)
            .and_then(|chunk| chunk.split_first_chunk_mut::<CHUNK_HEADER_BYTES>())
        else {
            return;
        };
        let mut hashed = [0; HASHED_HEADER_BYTES];
        let mut cells = Cells::new(&mut hashed);
        cells.put(magic.to_le_bytes());
        // One record passes the target at most, and a record's parts are bounded far below 4 GiB.
        cells.put(u32::try_from(contents.len()).unwrap_or(u32::MAX).to_le_bytes());
        cells.put(self.chunk_records.to_le_bytes());
        cells.put(self.chunks.to_le_bytes());
        let hash = chunk_hash(self.log, self.seq, hashed, contents);
        let mut cells = Cells::new(header);
        cells.put(hashed);
        cells.put(hash.to_le_bytes());
        self.chunk = self.out.len();
        self.chunk_records = 0;
        self.chunks += 1;
        self.out.extend_from_slice(&[0; CHUNK_HEADER_BYTES]);
    }

    /// The whole file, padded to a block. `seq` and `records` of `info` are set by the encoder.
    #[must_use]
    pub fn finish(mut self, info: CheckpointInfo) -> Vec<u8> {
        if self.chunk_records > 0 {
            self.close(CHUNK_MAGIC);
        }
        let info = CheckpointInfo { seq: self.seq, records: self.records, ..info };
        self.out.extend_from_slice(&info.encode());
        self.close(FOOTER_MAGIC);
        // Not another chunk after the footer.
        self.out.truncate(self.chunk);
        let bytes = self.out.len().next_multiple_of(BLOCK_BYTES);
        self.out.resize(bytes, 0);
        let header = FileHeader {
            kind: FileKind::Checkpoint,
            log: self.log,
            number: FileNumber(self.seq.0),
            shard: 0,
            shards: 1,
            file_bytes: bytes as u64,
            max_frame_bytes: 0,
            pipeline_depth: 0,
            epoch: self.epoch,
            after_seq: self.seq,
        }
        .encode();
        for (cell, byte) in self.out.iter_mut().zip(header) {
            *cell = byte;
        }
        self.out
    }
}

/// A chunk behind its header.
struct Chunk<'a> {
    magic: u32,
    records: u32,
    index: u32,
    contents: &'a [u8],
}

/// Reads the chunk at the front and verifies its hash.
fn take_chunk<'a>(reader: &mut Reader<'a>, log: LogId, seq: Seq) -> Result<Chunk<'a>, DecodeError> {
    const WHAT: &str = "checkpoint chunk";
    let hashed = reader.take::<HASHED_HEADER_BYTES>()?;
    let hash = reader.u64()?;
    let mut header = Reader::new(WHAT, &hashed);
    let magic = header.u32()?;
    if magic != CHUNK_MAGIC && magic != FOOTER_MAGIC {
        return Err(DecodeError::Magic { what: WHAT });
    }
    let length = usize::try_from(header.u32()?).unwrap_or(usize::MAX);
    let records = header.u32()?;
    let index = header.u32()?;
    let contents = reader.bytes(length)?;
    if chunk_hash(log, seq, hashed, contents) != hash {
        return Err(DecodeError::Checksum { what: WHAT });
    }
    Ok(Chunk { magic, records, index, contents })
}

/// A checkpoint file that has been verified as a whole; iterates over its deltas.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    header: FileHeader,
    info: CheckpointInfo,
    /// Chunks not handed out yet; the footer ends them.
    rest: &'a [u8],
    chunk: Deltas<'a>,
    failed: bool,
}

impl<'a> Decoder<'a> {
    /// Verifies a checkpoint file of that log and seq: header, every chunk's hash, place and record count, the
    /// footer, and that nothing but zeros follows. `bytes` is the whole file.
    ///
    /// # Errors
    /// When any of it is missing, damaged, of a newer version, of another log or seq, or not what a writer writes.
    /// The checkpoint is then not to be used at all.
    pub fn new(bytes: &'a [u8], log: LogId, seq: Seq) -> Result<Decoder<'a>, DecodeError> {
        const WHAT: &str = "checkpoint";
        let header = FileHeader::decode(bytes, FileKind::Checkpoint, FileNumber(seq.0))?;
        let mut reader = Reader::new(WHAT, bytes);
        if header.log != log {
            return Err(reader.field("log id, low half", header.log.0 as u64));
        }
        if header.file_bytes > bytes.len() as u64 {
            let need = usize::try_from(header.file_bytes).unwrap_or(usize::MAX);
            return Err(DecodeError::Short { what: WHAT, need, got: bytes.len() });
        }
        if header.file_bytes != bytes.len() as u64 {
            return Err(reader.field("file bytes", header.file_bytes));
        }
        reader.bytes(BLOCK_BYTES)?;
        let rest = reader.rest();
        let mut records = 0_u64;
        let mut index = 0_u32;
        let info = loop {
            let chunk = take_chunk(&mut reader, log, seq)?;
            if chunk.index != index {
                return Err(reader.field("chunk index", u64::from(chunk.index)));
            }
            if chunk.magic == FOOTER_MAGIC {
                if chunk.records != 0 {
                    return Err(reader.field("records of the footer chunk", u64::from(chunk.records)));
                }
                break CheckpointInfo::decode(chunk.contents)?;
            }
            let counted = delta::count(chunk.contents)?;
            if counted != u64::from(chunk.records) {
                return Err(reader.field("records of a chunk", u64::from(chunk.records)));
            }
            records += counted;
            index = index.saturating_add(1);
        };
        if info.seq != seq {
            return Err(reader.field("seq of the footer", info.seq.0));
        }
        if info.records != records {
            return Err(reader.field("records of the footer", info.records));
        }
        if reader.rest().len() >= BLOCK_BYTES {
            return Err(reader.field("bytes after the footer", reader.rest().len() as u64));
        }
        reader.zeros("padding")?;
        Ok(Decoder { header, info, rest, chunk: Deltas::new(&[]), failed: false })
    }

    /// The footer.
    #[must_use]
    pub fn info(&self) -> &CheckpointInfo {
        &self.info
    }

    /// The file's header.
    #[must_use]
    pub fn header(&self) -> &FileHeader {
        &self.header
    }
}

impl<'a> Iterator for Decoder<'a> {
    type Item = Result<Delta<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.failed {
                return None;
            }
            if let Some(delta) = self.chunk.next() {
                self.failed = delta.is_err();
                return Some(delta);
            }
            let (header, rest) = self.rest.split_first_chunk::<CHUNK_HEADER_BYTES>()?;
            let mut reader = Reader::new("checkpoint chunk", header);
            // Hashes were verified by `new`; only the way through the chunks is read again.
            let (Ok(CHUNK_MAGIC), Ok(length)) = (reader.u32(), reader.u32()) else {
                return None;
            };
            let (contents, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            self.rest = rest;
            self.chunk = Deltas::new(contents);
        }
    }
}

impl std::iter::FusedIterator for Decoder<'_> {}
