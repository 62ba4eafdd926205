//! Runs: consecutive messages of one partition in one record of a message frame.

use super::DecodeError;
use super::entry::{self, ENTRY_MIN_BYTES};
use super::wire::{Cells, Reader, check_crc_at, seal_crc_at};
use crate::types::{IdHash, LogTime, MessageId, Offset, PartitionId, WallTime};

/// Bytes of an encoded run header.
pub const RUN_HEADER_BYTES: usize = 48;

/// What a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunForm {
    /// Messages that were pushed.
    #[default]
    Pushed,
    /// Messages that were pushed earlier and moved here from a segment that goes away. This copy counts.
    Moved,
    /// Ids of messages that are gone: hash and message id of each, 32 bytes, instead of entries.
    Bare,
}

/// Bytes of a message in a bare run.
pub const BARE_BYTES: usize = 32;

/// A run's header. `count` entries of `bytes` bytes in all follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// What it is.
    pub form: RunForm,
    /// The partition.
    pub partition: PartitionId,
    /// Offset of the first message.
    pub base: Offset,
    /// Messages, at least 1.
    pub count: u32,
    /// Bytes of the entries together.
    pub bytes: u32,
    /// Wall time shared by the messages; strictly increasing per partition.
    pub created: WallTime,
    /// Log time of the append.
    pub logged: LogTime,
}

/// First byte of a run header: `R`.
const RUN_MAGIC: u8 = b'R';
const MOVED: u8 = 1;
const BARE: u8 = 2;
/// Where the run header's crc32 stands.
const CRC_AT: usize = 4;
const WHAT: &str = "run header";

impl RunHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RUN_HEADER_BYTES] {
        let mut bytes = [0; RUN_HEADER_BYTES];
        let mut cells = Cells::new(&mut bytes);
        let form = match self.form {
            RunForm::Pushed => 0,
            RunForm::Moved => MOVED,
            RunForm::Bare => BARE,
        };
        cells.put([RUN_MAGIC, form, 0, 0]);
        cells.put([0; 4]);
        cells.put(self.partition.0.to_le_bytes());
        cells.put(self.base.0.to_le_bytes());
        cells.put(self.created.0.to_le_bytes());
        cells.put(self.logged.0.to_le_bytes());
        cells.put(self.count.to_le_bytes());
        cells.put(self.bytes.to_le_bytes());
        seal_crc_at(&mut bytes, CRC_AT);
        bytes
    }

    /// Reads a header from the first bytes of `bytes`. The entries need not be there.
    ///
    /// # Errors
    /// When bytes are missing, magic or crc32 are wrong, a flag or reserved byte is set, the run is empty, too
    /// short for its count, or would pass the last offset.
    pub fn decode(bytes: &[u8]) -> Result<RunHeader, DecodeError> {
        let bytes = bytes.first_chunk::<RUN_HEADER_BYTES>().ok_or(DecodeError::Short {
            what: WHAT,
            need: RUN_HEADER_BYTES,
            got: bytes.len(),
        })?;
        let mut reader = Reader::new(WHAT, bytes);
        if reader.u8()? != RUN_MAGIC {
            return Err(DecodeError::Magic { what: WHAT });
        }
        check_crc_at(WHAT, bytes, CRC_AT)?;
        let form = match reader.u8()? {
            0 => RunForm::Pushed,
            MOVED => RunForm::Moved,
            BARE => RunForm::Bare,
            flags => return Err(reader.field("flags", u64::from(flags))),
        };
        let reserved = reader.u16()?;
        if reserved != 0 {
            return Err(reader.field("reserved", u64::from(reserved)));
        }
        let _crc = reader.u32()?;
        let header = RunHeader {
            form,
            partition: PartitionId(reader.u64()?),
            base: Offset(reader.u64()?),
            created: WallTime(reader.u64()?),
            logged: LogTime(reader.u64()?),
            count: reader.u32()?,
            bytes: reader.u32()?,
        };
        let count = u64::from(header.count);
        if header.count == 0 || header.base.0.checked_add(u64::from(header.count)).is_none() {
            return Err(reader.field("count", u64::from(header.count)));
        }
        let bytes_fit = match form {
            RunForm::Bare => u64::from(header.bytes) == count * BARE_BYTES as u64,
            RunForm::Pushed | RunForm::Moved => u64::from(header.bytes) >= count * ENTRY_MIN_BYTES as u64,
        };
        if !bytes_fit {
            return Err(reader.field("bytes", u64::from(header.bytes)));
        }
        reader.end()?;
        Ok(header)
    }

    /// Offset after the run's last message.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.base.0.saturating_add(u64::from(self.count)))
    }
}

/// One run of a message frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunItem<'a> {
    /// Its header.
    pub header: RunHeader,
    /// Its entries, `header.bytes` bytes; for `entry::Entries`, or for `ids` where it is bare. Not yet checked.
    pub entries: &'a [u8],
    /// Byte of the run's header in the frame's body.
    pub position: u32,
}

impl RunItem<'_> {
    /// Appends hash and id of each message to `ids`, without a look at payloads.
    ///
    /// # Errors
    /// The entries are not as many messages as the header says.
    pub fn ids(&self, ids: &mut Vec<(IdHash, MessageId)>) -> Result<(), DecodeError> {
        let (had, mut rest) = (ids.len(), self.entries);
        while !rest.is_empty() {
            let (hash, id, bytes) = match self.header.form {
                RunForm::Bare => {
                    let mut reader = Reader::new("bare message", rest);
                    (IdHash(reader.u128()?), MessageId(reader.u128()?), BARE_BYTES)
                }
                RunForm::Pushed | RunForm::Moved => entry::peek(rest)?,
            };
            ids.push((hash, id));
            rest = rest.get(bytes..).unwrap_or_default();
        }
        let got = (ids.len() - had) as u64;
        if got != u64::from(self.header.count) {
            return Err(DecodeError::Field { what: "run", field: "number of its messages", got });
        }
        Ok(())
    }
}

/// Appends a message of a bare run.
pub fn put_bare(hash: IdHash, id: MessageId, out: &mut Vec<u8>) {
    out.extend_from_slice(&hash.0.to_le_bytes());
    out.extend_from_slice(&id.0.to_le_bytes());
}

/// The runs of a message frame's body, in order. Ends after the first error, because nothing says where the next
/// run begins once a header is not believed.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    rest: &'a [u8],
    position: usize,
}

impl<'a> Runs<'a> {
    /// Walks a body. How many runs there should be is in the frame's header; the caller compares.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Runs<'a> {
        Runs { rest: body, position: 0 }
    }

    fn step(&mut self) -> Result<RunItem<'a>, DecodeError> {
        let header = RunHeader::decode(self.rest)?;
        let mut reader = Reader::new("run", self.rest);
        reader.bytes(RUN_HEADER_BYTES)?;
        let entries = reader.bytes(usize::try_from(header.bytes).unwrap_or(usize::MAX))?;
        let position = u32::try_from(self.position)
            .map_err(|_| reader.field("position in the body", self.position as u64))?;
        self.position += self.rest.len() - reader.rest().len();
        self.rest = reader.rest();
        Ok(RunItem { header, entries, position })
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Result<RunItem<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.step();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

impl std::iter::FusedIterator for Runs<'_> {}
