//! Checkpoint files: a file header, then chunks of deltas, then a footer that makes it complete.
//!
//! Both ways are streams: a checkpoint may be far larger than the memory that a start may take. The writer hands out
//! whole chunks and, at the end, the file header, which is the only part that needs to know how long the file became.
//!
//! Invariants: every byte of a checkpoint is covered by a checksum or must be zero; a checkpoint whose footer is
//! missing or that is damaged anywhere is refused before any of its deltas is handed out; no more than one chunk is in
//! memory.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::delta::{Delta, Deltas};
use super::file_header::{FileHeader, FileKind};
use super::wire::{Cells, Reader};
use super::{BLOCK_BYTES, DecodeError};
use crate::types::{Epoch, FileNumber, LogId, LogTime, Seq, WallTime};

/// A chunk is closed by the record that reaches this many bytes.
pub const CHUNK_TARGET_BYTES: usize = 1 << 20;

/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 24;

/// Bytes of the footer's contents, behind its chunk header.
pub const FOOTER_BYTES: usize = 64;

/// Most bytes of a chunk's contents: a record is far shorter than the target. Nothing longer is read into memory.
pub const CHUNK_BYTES_MAX: usize = 2 * CHUNK_TARGET_BYTES;

/// First four bytes of a chunk of deltas: `CbDl`.
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"CbDl");
/// First four bytes of the footer: `CbEn`.
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"CbEn");
/// Chunk header bytes in front of its hash; they are part of the hash's seed.
const HASHED_HEADER_BYTES: usize = 16;

/// What a checkpoint says about itself, in its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Everything up to this group commit is in the records; replay goes on behind it.
    pub seq: Seq,
    /// Last group that was staged while the records were taken. A record may say what a group up to here made of its
    /// subject, so the state is whole only once all of them were replayed. Never below `seq`.
    pub until: Seq,
    /// Log time when the first record was taken.
    pub log_time: LogTime,
    /// Newest wall time stamped until the last record was taken.
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
        cells.put(self.until.0.to_le_bytes());
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
            until: Seq(reader.u64()?),
        };
        if info.until < info.seq {
            return Err(reader.field("until", info.until.0));
        }
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

/// Builds a checkpoint file: records go in, whole chunks come out.
#[derive(Clone, Debug)]
pub struct Encoder {
    log: LogId,
    seq: Seq,
    /// Closed chunks that were not taken yet, and the open one.
    out: Vec<u8>,
    /// Where the open chunk's header begins in `out`.
    chunk: usize,
    chunk_records: u32,
    chunks: u32,
    records: u64,
    /// Bytes of the file that were taken.
    taken: u64,
}

/// The end of a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// What follows everything that was taken, padded to a block of the file.
    pub bytes: Vec<u8>,
    /// The first block of the file.
    pub header: Vec<u8>,
    /// Bytes of the whole file.
    pub file_bytes: u64,
}

impl Encoder {
    /// Begins a checkpoint from which replay goes on behind `seq`.
    #[must_use]
    pub fn new(log: LogId, seq: Seq) -> Encoder {
        let out = vec![0; CHUNK_HEADER_BYTES];
        let taken = BLOCK_BYTES as u64; // the file header's place
        Encoder { log, seq, out, chunk: 0, chunk_records: 0, chunks: 0, records: 0, taken }
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

    /// Bytes of records and chunks that were not taken yet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// The chunks that were closed since the last call, if any: the next bytes of the file behind its first block.
    pub fn take_closed(&mut self) -> Option<Vec<u8>> {
        if self.chunk == 0 {
            return None;
        }
        let open = self.out.split_off(self.chunk);
        let closed = std::mem::replace(&mut self.out, open);
        self.chunk = 0;
        self.taken += closed.len() as u64;
        Some(closed)
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

    /// The rest of the file, and its first block, written by process start `epoch`. `seq` and `records` of `info` are
    /// set by the encoder.
    #[must_use]
    pub fn finish(mut self, info: CheckpointInfo, epoch: Epoch) -> Ending {
        if self.chunk_records > 0 {
            self.close(CHUNK_MAGIC);
        }
        let info = CheckpointInfo { seq: self.seq, records: self.records, ..info };
        self.out.extend_from_slice(&info.encode());
        self.close(FOOTER_MAGIC);
        // Not another chunk after the footer.
        self.out.truncate(self.chunk);
        let file_bytes = (self.taken + self.out.len() as u64).next_multiple_of(BLOCK_BYTES as u64);
        let bytes = usize::try_from(file_bytes - self.taken).unwrap_or(self.out.len());
        self.out.resize(bytes, 0);
        let header = FileHeader {
            kind: FileKind::Checkpoint,
            log: self.log,
            number: FileNumber(self.seq.0),
            shard: 0,
            shards: 1,
            file_bytes,
            max_frame_bytes: 0,
            pipeline_depth: 0,
            epoch,
            after_seq: self.seq,
        }
        .encode();
        Ending { bytes: self.out, header, file_bytes }
    }
}

const WHAT: &str = "checkpoint";
const CHUNK: &str = "checkpoint chunk";

fn wrong(what: &'static str, field: &'static str, got: u64) -> DecodeError {
    DecodeError::Field { what, field, got }
}

/// A chunk's header.
struct ChunkHeader {
    hashed: [u8; HASHED_HEADER_BYTES],
    hash: u64,
    magic: u32,
    length: usize,
    records: u32,
    index: u32,
}

impl ChunkHeader {
    fn decode(bytes: &[u8]) -> Result<ChunkHeader, DecodeError> {
        let mut reader = Reader::new(CHUNK, bytes);
        let hashed = reader.take::<HASHED_HEADER_BYTES>()?;
        let hash = reader.u64()?;
        let mut header = Reader::new(CHUNK, &hashed);
        let magic = header.u32()?;
        if magic != CHUNK_MAGIC && magic != FOOTER_MAGIC {
            return Err(DecodeError::Magic { what: CHUNK });
        }
        let length = header.u32()?;
        let (records, index) = (header.u32()?, header.u32()?);
        match usize::try_from(length) {
            Ok(bytes) if (1..=CHUNK_BYTES_MAX).contains(&bytes) => {
                Ok(ChunkHeader { hashed, hash, magic, length: bytes, records, index })
            }
            _ => Err(wrong(CHUNK, "length", u64::from(length))),
        }
    }
}

/// A checkpoint file that has been verified as a whole. It is read piece by piece through `read`, which is asked for
/// exactly so many bytes at a position and only for those that the file has.
#[derive(Debug)]
pub struct Decoder<R> {
    read: R,
    header: FileHeader,
    info: CheckpointInfo,
}

impl<R, B, E> Decoder<R>
where
    R: FnMut(u64, usize) -> Result<B, E>,
    B: AsRef<[u8]>,
    E: From<DecodeError>,
{
    /// Verifies a checkpoint file of that log and seq, `file_bytes` long: header, every chunk's hash, place and record
    /// count, every record, the footer, and that nothing but zeros follows.
    ///
    /// # Errors
    /// When any of it is missing, damaged, of a newer version, of another log or seq, or not what a writer writes, or
    /// cannot be read. The checkpoint is then not to be used at all.
    pub fn new(mut read: R, file_bytes: u64, log: LogId, seq: Seq) -> Result<Decoder<R>, E> {
        let first = usize::try_from(file_bytes.min(BLOCK_BYTES as u64)).unwrap_or(BLOCK_BYTES);
        let first = read(0, first)?;
        let header = FileHeader::decode(first.as_ref(), FileKind::Checkpoint, FileNumber(seq.0))?;
        if header.log != log {
            return Err(wrong(WHAT, "log id, low half", header.log.0 as u64).into());
        }
        if header.file_bytes > file_bytes {
            let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
            let (need, got) = (bytes(header.file_bytes), bytes(file_bytes));
            return Err(DecodeError::Short { what: WHAT, need, got }.into());
        }
        if header.file_bytes != file_bytes {
            return Err(wrong(WHAT, "file bytes", header.file_bytes).into());
        }
        let info = walk(&mut read, &header, &mut |_| Ok(()))?;
        Ok(Decoder { read, header, info })
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

    /// Hands out every record in order. What is read is verified again, chunk by chunk.
    ///
    /// # Errors
    /// The first error of `each`, or of reading. What was handed out before is then not to be used either.
    pub fn for_each(&mut self, mut each: impl FnMut(&Delta<'_>) -> Result<(), E>) -> Result<(), E> {
        walk(&mut self.read, &self.header, &mut each).map(|_| ())
    }
}

/// Verifies what stands behind the header, chunk by chunk, and hands out the records of each chunk that is whole.
fn walk<B: AsRef<[u8]>, E: From<DecodeError>>(
    read: &mut impl FnMut(u64, usize) -> Result<B, E>,
    header: &FileHeader,
    each: &mut dyn FnMut(&Delta<'_>) -> Result<(), E>,
) -> Result<CheckpointInfo, E> {
    let (log, seq) = (header.log, Seq(header.number.0));
    let mut position = BLOCK_BYTES as u64;
    let mut take = |what: &'static str, need: usize| -> Result<(B, u64), E> {
        let left = header.file_bytes.saturating_sub(position);
        if left < need as u64 {
            let got = usize::try_from(left).unwrap_or(usize::MAX);
            return Err(DecodeError::Short { what, need, got }.into());
        }
        let bytes = read(position, need)?;
        position += need as u64;
        Ok((bytes, left - need as u64))
    };
    let mut records = 0_u64;
    let mut index = 0_u32;
    let (info, left) = loop {
        let chunk = ChunkHeader::decode(take(CHUNK, CHUNK_HEADER_BYTES)?.0.as_ref())?;
        let (contents, left) = take(CHUNK, chunk.length)?;
        let contents = contents.as_ref();
        if chunk_hash(log, seq, chunk.hashed, contents) != chunk.hash {
            return Err(DecodeError::Checksum { what: CHUNK }.into());
        }
        if chunk.index != index {
            return Err(wrong(WHAT, "chunk index", u64::from(chunk.index)).into());
        }
        if chunk.magic == FOOTER_MAGIC {
            if chunk.records != 0 {
                return Err(wrong(WHAT, "records of the footer chunk", u64::from(chunk.records)).into());
            }
            break (CheckpointInfo::decode(contents)?, left);
        }
        let mut counted = 0_u64;
        for delta in Deltas::new(contents) {
            each(&delta?)?;
            counted += 1;
        }
        if counted != u64::from(chunk.records) {
            return Err(wrong(WHAT, "records of a chunk", u64::from(chunk.records)).into());
        }
        records += counted;
        index = index.saturating_add(1);
    };
    if info.seq != seq {
        return Err(wrong(WHAT, "seq of the footer", info.seq.0).into());
    }
    if info.records != records {
        return Err(wrong(WHAT, "records of the footer", info.records).into());
    }
    match usize::try_from(left) {
        Ok(0) => {}
        Ok(bytes) if bytes < BLOCK_BYTES => {
            Reader::new(WHAT, take(WHAT, bytes)?.0.as_ref()).zeros("padding")?
        }
        _ => return Err(wrong(WHAT, "bytes after the footer", left).into()),
    }
    Ok(info)
}
