//! The index file of a sealed segment: a header block, then pages, each with a checksum of its own.
//!
//! Sections, in this order: runs sorted by partition and offset; spans, a table by partition; messages in commit order;
//! slots, a table by transaction id that names messages; filter bits. Rows never straddle pages. A table's rows stand in
//! the page that their key hashes to, or in the next one that has room.
//!
//! Invariants: nothing is read without its page's checksum, which is bound to log, segment and page number, so that a
//! page of another place never passes; no count is believed before it was held against the file's size.

mod build;
mod filter;

pub use build::Builder;
pub use filter::Filter;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::wire::{Cells, Prefix, Reader, seal_block};
use super::{BLOCK_BYTES, DecodeError, FORMAT_VERSION};
use crate::types::{FileNumber, IdHash, LogId, LogTime, MessageId, Offset, PartitionId, WallTime};

/// First four bytes of an index file: `CbIx`.
const MAGIC: u32 = u32::from_le_bytes(*b"CbIx");
const KIND: u8 = 5;
const WHAT: &str = "index header";
const PAGE_WHAT: &str = "index page";

/// Bytes of rows in a page; its checksum follows them.
pub const PAGE_ROW_BYTES: usize = BLOCK_BYTES - 8;

/// Bytes of a block of filter bits: one cache line.
pub const FILTER_BLOCK_BYTES: usize = 64;

/// One run of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// The partition.
    pub partition: PartitionId,
    /// Offset of its first message.
    pub base: Offset,
    /// Messages, at least 1.
    pub count: u32,
    /// Bytes of its entries.
    pub bytes: u32,
    /// Wall time of the append.
    pub created: WallTime,
    /// Log time of the append.
    pub logged: LogTime,
    /// Byte of its header in the segment.
    pub position: u32,
    /// Row of its first message.
    pub first_id: u32,
    /// It has hashes only, no payloads.
    pub bare: bool,
}

/// Consecutive messages of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRow {
    /// The partition.
    pub partition: PartitionId,
    /// First offset.
    pub base: Offset,
    /// Offset behind the last.
    pub end: Offset,
    /// Row of its first run.
    pub first_run: u32,
    /// Runs.
    pub runs: u32,
    /// Wall time of the first message.
    pub first_created: WallTime,
    /// Log time of the last message.
    pub last_logged: LogTime,
    /// It has hashes only, no payloads.
    pub bare: bool,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRow {
    /// Hash of its transaction id.
    pub hash: IdHash,
    /// Its id.
    pub id: MessageId,
    /// Row of its run.
    pub run: u32,
}

/// A place in the table of transaction ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRow {
    /// High half of the message's key.
    pub print: u32,
    /// Row of the message.
    pub message: u32,
}

/// A row of fixed size. All zeros is no row.
pub trait Row: Sized {
    /// Bytes of a row.
    const BYTES: usize;
    /// Rows of a page.
    const PER_PAGE: usize = PAGE_ROW_BYTES / Self::BYTES;

    /// Writes the row into exactly `BYTES` bytes.
    fn encode(&self, out: &mut [u8]);

    /// Reads a row; `None` where there is none.
    ///
    /// # Errors
    /// No writer writes this.
    fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError>;
}

/// Flags of runs and spans. `THERE` tells a row from zeros.
const THERE: u32 = 1;
const BARE: u32 = 2;

fn flags(bare: bool) -> u32 {
    THERE | if bare { BARE } else { 0 }
}

/// Whether a row is there, and is bare.
fn read_flags(reader: &mut Reader<'_>) -> Result<Option<bool>, DecodeError> {
    match reader.u32()? {
        0 => Ok(None),
        THERE => Ok(Some(false)),
        flags if flags == THERE | BARE => Ok(Some(true)),
        flags => Err(reader.field("flags", u64::from(flags))),
    }
}

impl Row for RunRow {
    const BYTES: usize = 52;

    fn encode(&self, out: &mut [u8]) {
        let mut cells = Cells::new(out);
        cells.put(flags(self.bare).to_le_bytes());
        cells.put(self.partition.0.to_le_bytes());
        cells.put(self.base.0.to_le_bytes());
        cells.put(self.count.to_le_bytes());
        cells.put(self.bytes.to_le_bytes());
        cells.put(self.created.0.to_le_bytes());
        cells.put(self.logged.0.to_le_bytes());
        cells.put(self.position.to_le_bytes());
        cells.put(self.first_id.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Option<RunRow>, DecodeError> {
        let mut reader = Reader::new("index run", bytes);
        let Some(bare) = read_flags(&mut reader)? else { return Ok(None) };
        let row = RunRow {
            partition: PartitionId(reader.u64()?),
            base: Offset(reader.u64()?),
            count: reader.u32()?,
            bytes: reader.u32()?,
            created: WallTime(reader.u64()?),
            logged: LogTime(reader.u64()?),
            position: reader.u32()?,
            first_id: reader.u32()?,
            bare,
        };
        if row.count == 0 || row.base.0.checked_add(u64::from(row.count)).is_none() {
            return Err(reader.field("count", u64::from(row.count)));
        }
        Ok(Some(row))
    }
}

impl Row for SpanRow {
    const BYTES: usize = 52;

    fn encode(&self, out: &mut [u8]) {
        let mut cells = Cells::new(out);
        cells.put(flags(self.bare).to_le_bytes());
        cells.put(self.partition.0.to_le_bytes());
        cells.put(self.base.0.to_le_bytes());
        cells.put(self.end.0.to_le_bytes());
        cells.put(self.first_run.to_le_bytes());
        cells.put(self.runs.to_le_bytes());
        cells.put(self.first_created.0.to_le_bytes());
        cells.put(self.last_logged.0.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Option<SpanRow>, DecodeError> {
        let mut reader = Reader::new("index span", bytes);
        let Some(bare) = read_flags(&mut reader)? else { return Ok(None) };
        let row = SpanRow {
            partition: PartitionId(reader.u64()?),
            base: Offset(reader.u64()?),
            end: Offset(reader.u64()?),
            first_run: reader.u32()?,
            runs: reader.u32()?,
            first_created: WallTime(reader.u64()?),
            last_logged: LogTime(reader.u64()?),
            bare,
        };
        if row.base >= row.end || row.runs == 0 {
            return Err(reader.field("end", row.end.0));
        }
        Ok(Some(row))
    }
}

impl Row for IdRow {
    const BYTES: usize = 36;

    fn encode(&self, out: &mut [u8]) {
        let mut cells = Cells::new(out);
        cells.put(self.hash.0.to_le_bytes());
        cells.put(self.id.0.to_le_bytes());
        cells.put((self.run + 1).to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Option<IdRow>, DecodeError> {
        let mut reader = Reader::new("index message", bytes);
        let (hash, id) = (IdHash(reader.u128()?), MessageId(reader.u128()?));
        Ok(reader.u32()?.checked_sub(1).map(|run| IdRow { hash, id, run }))
    }
}

impl Row for SlotRow {
    const BYTES: usize = 8;

    fn encode(&self, out: &mut [u8]) {
        let mut cells = Cells::new(out);
        cells.put(self.print.to_le_bytes());
        cells.put((self.message + 1).to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Option<SlotRow>, DecodeError> {
        let mut reader = Reader::new("index slot", bytes);
        let print = reader.u32()?;
        Ok(reader.u32()?.checked_sub(1).map(|message| SlotRow { print, message }))
    }
}

/// What one message is filed under: a mix of its partition and its id's hash.
#[must_use]
pub fn id_key(partition: PartitionId, hash: IdHash) -> u64 {
    let mut bytes = [0; 24];
    let mut cells = Cells::new(&mut bytes);
    cells.put(hash.0.to_le_bytes());
    cells.put(partition.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// What a span is filed under.
#[must_use]
pub fn span_key(partition: PartitionId) -> u64 {
    xxh3_64(&partition.0.to_le_bytes())
}

/// The half of a key that a slot keeps. The other half chooses the page.
#[must_use]
pub fn print_of(key: u64) -> u32 {
    (key & u64::from(u32::MAX)) as u32
}

/// Which of `of` pages, blocks or other places a key belongs to: by its high half.
#[must_use]
pub fn place_of(key: u64, of: u32) -> u32 {
    (((key >> 32) * u64::from(of)) >> 32) as u32
}

/// What an index file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexInfo {
    /// The log.
    pub log: LogId,
    /// The segment.
    pub segment: FileNumber,
    /// Runs.
    pub runs: u32,
    /// Spans.
    pub spans: u32,
    /// Messages, those of bare runs included.
    pub messages: u32,
    /// Messages of bare runs.
    pub bare: u32,
    /// Bytes of entries, bare runs excepted.
    pub entry_bytes: u64,
    /// Log time of the newest append.
    pub last_logged: LogTime,
}

/// A section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `RunRow`s.
    Runs,
    /// `SpanRow`s.
    Spans,
    /// `IdRow`s.
    Messages,
    /// `SlotRow`s.
    Slots,
    /// Filter bits.
    Filter,
}

impl IndexInfo {
    /// Pages of a section: it follows from the counts.
    #[must_use]
    pub fn pages(&self, section: Section) -> u32 {
        let packed = |rows: u32, per_page: usize| rows.div_ceil(per_page as u32);
        // A table is three quarters full, so that few rows stand in another page than their own.
        let table = |rows: u32, per_page: usize| rows.div_ceil((per_page * 3 / 4) as u32).max(1);
        match section {
            Section::Runs => packed(self.runs, RunRow::PER_PAGE),
            Section::Spans => table(self.spans, SpanRow::PER_PAGE),
            Section::Messages => packed(self.messages, IdRow::PER_PAGE),
            Section::Slots => table(self.messages, SlotRow::PER_PAGE),
            Section::Filter => packed(self.filter_blocks(), PAGE_ROW_BYTES / FILTER_BLOCK_BYTES),
        }
    }

    /// Blocks of filter bits: about twelve bits a message.
    #[must_use]
    pub fn filter_blocks(&self) -> u32 {
        filter_blocks(self.messages)
    }

    /// Page in which a section begins.
    #[must_use]
    pub fn first_page(&self, section: Section) -> u32 {
        let order = [Section::Runs, Section::Spans, Section::Messages, Section::Slots, Section::Filter];
        order.iter().take_while(|other| **other != section).map(|other| self.pages(*other)).sum()
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let pages = self.first_page(Section::Filter) + self.pages(Section::Filter);
        (u64::from(pages) + 1) * BLOCK_BYTES as u64
    }

    /// The header block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut cells = Cells::new(&mut block);
        Prefix { magic: MAGIC, version: FORMAT_VERSION, kind: KIND }.put(&mut cells);
        cells.put((BLOCK_BYTES as u32).to_le_bytes());
        cells.put(self.log.0.to_le_bytes());
        cells.put(self.segment.0.to_le_bytes());
        cells.put(self.runs.to_le_bytes());
        cells.put(self.spans.to_le_bytes());
        cells.put(self.messages.to_le_bytes());
        cells.put(self.bare.to_le_bytes());
        cells.put(self.entry_bytes.to_le_bytes());
        cells.put(self.last_logged.0.to_le_bytes());
        cells.put(self.file_bytes().to_le_bytes());
        seal_block(&mut block);
        block
    }

    /// Reads the header block of the index of a segment of a log; `file_bytes` is the length of the file.
    ///
    /// # Errors
    /// It is short, damaged, of a newer version, of another log, segment or length, or holds what no writer writes.
    pub fn decode(
        bytes: &[u8],
        log: LogId,
        segment: FileNumber,
        file_bytes: u64,
    ) -> Result<IndexInfo, DecodeError> {
        let (kind, mut reader) = Prefix::check(WHAT, bytes, BLOCK_BYTES, MAGIC)?;
        if kind != KIND {
            return Err(reader.field("kind", u64::from(kind)));
        }
        let block = reader.u32()?;
        if block != BLOCK_BYTES as u32 {
            return Err(reader.field("block size", u64::from(block)));
        }
        let found = LogId(reader.u128()?);
        if found != log {
            return Err(reader.field("log id, low half", found.0 as u64));
        }
        let number = reader.u64()?;
        if number != segment.0 {
            return Err(reader.field("segment", number));
        }
        let (runs, spans, messages) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let bare = reader.u32()?;
        if bare > messages {
            return Err(reader.field("bare messages", u64::from(bare)));
        }
        let (entry_bytes, last_logged) = (reader.u64()?, LogTime(reader.u64()?));
        let info = IndexInfo { log, segment, runs, spans, messages, bare, entry_bytes, last_logged };
        // Counts that no file of this length has room for are not even multiplied.
        let most = file_bytes / 8;
        for (field, count) in [("runs", runs), ("spans", spans), ("messages", messages)] {
            if u64::from(count) > most {
                return Err(reader.field(field, u64::from(count)));
            }
        }
        let stated = reader.u64()?;
        if stated != info.file_bytes() || stated != file_bytes {
            return Err(reader.field("file bytes", stated));
        }
        reader.zeros("reserved")?;
        Ok(info)
    }
}

/// Blocks of filter bits for so many messages.
#[must_use]
pub fn filter_blocks(messages: u32) -> u32 {
    let bits = u64::from(messages) * 12;
    u32::try_from(bits.div_ceil(8 * FILTER_BLOCK_BYTES as u64)).unwrap_or(u32::MAX).max(1)
}

/// Checksum of a page's rows.
fn page_hash(info: &IndexInfo, page: u32, rows: &[u8]) -> u64 {
    let mut place = [0; 28];
    let mut cells = Cells::new(&mut place);
    cells.put(info.log.0.to_le_bytes());
    cells.put(info.segment.0.to_le_bytes());
    cells.put(page.to_le_bytes());
    xxh3_64_with_seed(rows, xxh3_64(&place))
}

/// Puts a page's checksum behind its rows. `page` is `BLOCK_BYTES` long.
fn seal_page(info: &IndexInfo, number: u32, page: &mut [u8]) {
    let Some((rows, sum)) = page.split_at_mut_checked(PAGE_ROW_BYTES) else { return };
    let hash = page_hash(info, number, rows);
    Cells::new(sum).put(hash.to_le_bytes());
}

/// The rows of a page, if its checksum is right.
///
/// # Errors
/// It is damaged, or not this page.
pub fn open_page<'a>(info: &IndexInfo, number: u32, page: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let short = DecodeError::Short { what: PAGE_WHAT, need: BLOCK_BYTES, got: page.len() };
    let (rows, sum) = page.split_at_checked(PAGE_ROW_BYTES).ok_or(short)?;
    if Reader::new(PAGE_WHAT, sum).u64()? != page_hash(info, number, rows) {
        return Err(DecodeError::Checksum { what: PAGE_WHAT });
    }
    Ok(rows)
}
