//! Entries: one message inside a run.
//!
//! Packed: fixed part, then transaction id, trace id, producer, payload. A transaction id that is the canonical
//! text of a UUID is stored as 16 bytes; one that equals the message id's text is not stored at all.

use std::borrow::Cow;

use thiserror::Error;

use super::DecodeError;
use super::wire::{Reader, check_crc_at, seal_crc_at};
use crate::types::{IdHash, MessageId};

/// What a message is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its id.
    pub id: MessageId,
    /// Hash of the transaction id.
    pub hash: IdHash,
    /// Its transaction id.
    pub transaction_id: Cow<'a, str>,
    /// Trace id, if a transaction gave one.
    pub trace: Option<u128>,
    /// Subject of the producer's verified token.
    pub producer: Option<&'a str>,
    /// The payload, verbatim JSON.
    pub payload: &'a [u8],
}

/// Bytes of the smallest entry: length, crc32, flags, hash and id, with no payload.
pub const ENTRY_MIN_BYTES: usize = PREFIX_BYTES + BODY_MIN_BYTES;

/// Longest transaction id, in bytes of UTF-8.
pub const TRANSACTION_ID_MAX_BYTES: usize = u16::MAX as usize;

/// Longest producer subject, in bytes of UTF-8.
pub const PRODUCER_MAX_BYTES: usize = u16::MAX as usize;

/// Longest payload, in bytes: what the 32-bit length of an entry leaves beside the longest of everything else.
pub const PAYLOAD_MAX_BYTES: usize = u32::MAX as usize - (1 << 18);

/// Length and crc32.
const PREFIX_BYTES: usize = 8;
/// Flags, hash and id.
const BODY_MIN_BYTES: usize = 33;
/// Where an entry's crc32 stands; it covers the length before it and everything after it.
const CRC_AT: usize = 4;
const WHAT: &str = "entry";

/// The low two bits of the flags: how the transaction id is stored.
const ID_FORM: u8 = 0b0000_0011;
/// Not at all: it is the message id's text.
const ID_IS_MESSAGE_ID: u8 = 0;
/// As the 16 bytes of the UUID whose canonical text it is.
const ID_IS_UUID: u8 = 1;
/// As text behind a 16-bit length.
const ID_IS_TEXT: u8 = 2;
/// A trace id follows.
const HAS_TRACE: u8 = 0b0000_0100;
/// A producer follows.
const HAS_PRODUCER: u8 = 0b0000_1000;
/// Bits that no writer of this version sets.
const RESERVED: u8 = 0b1111_0000;

/// A part of a message that no entry can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the message's {field} has {got} bytes, at most {limit} can be stored: refuse the message")]
pub struct EntryLimit {
    /// The part.
    pub field: &'static str,
    /// Its bytes.
    pub got: usize,
    /// The most there may be.
    pub limit: usize,
}

/// How a transaction id is stored.
enum IdForm<'a> {
    MessageId,
    Uuid(u128),
    Text(&'a str),
}

impl<'a> IdForm<'a> {
    fn of(text: &'a str, id: MessageId) -> IdForm<'a> {
        match parse_canonical(text) {
            Some(uuid) if uuid == id.0 => IdForm::MessageId,
            Some(uuid) => IdForm::Uuid(uuid),
            None => IdForm::Text(text),
        }
    }

    fn code(&self) -> u8 {
        match self {
            IdForm::MessageId => ID_IS_MESSAGE_ID,
            IdForm::Uuid(_) => ID_IS_UUID,
            IdForm::Text(_) => ID_IS_TEXT,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            IdForm::MessageId => 0,
            IdForm::Uuid(_) => 16,
            IdForm::Text(text) => 2 + text.len(),
        }
    }
}

/// The number whose canonical UUID text this is: 32 lower-case hex digits, hyphens after 8, 12, 16 and 20.
///
/// Stricter than a UUID parser, because what is stored as 16 bytes must come back as exactly the same text.
fn parse_canonical(text: &str) -> Option<u128> {
    if text.len() != 36 {
        return None;
    }
    let mut value = 0_u128;
    for (index, byte) in text.bytes().enumerate() {
        let digit = match (index, byte) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => byte - b'0',
            (_, b'a'..=b'f') => byte - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u128::from(digit);
    }
    Some(value)
}

impl Entry<'_> {
    /// Whether an entry can hold the message; to be asked before it is accepted.
    ///
    /// # Errors
    /// `EntryLimit` names the part that is too long.
    pub fn check(&self) -> Result<(), EntryLimit> {
        let parts = [
            ("transaction id", self.transaction_id.len(), TRANSACTION_ID_MAX_BYTES),
            ("producer", self.producer.map_or(0, str::len), PRODUCER_MAX_BYTES),
            ("payload", self.payload.len(), PAYLOAD_MAX_BYTES),
        ];
        match parts.into_iter().find(|(_, got, limit)| got > limit) {
            None => Ok(()),
            Some((field, got, limit)) => Err(EntryLimit { field, got, limit }),
        }
    }

    /// Bytes that `encode` appends.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.bytes_with(&IdForm::of(&self.transaction_id, self.id))
    }

    fn bytes_with(&self, form: &IdForm<'_>) -> usize {
        ENTRY_MIN_BYTES
            + form.bytes()
            + self.trace.map_or(0, |_| 16)
            + self.producer.map_or(0, |producer| 2 + producer.len())
            + self.payload.len()
    }

    /// Appends the entry.
    ///
    /// # Panics
    /// When `check` refuses the message: whoever accepts a message checks it first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let form = IdForm::of(&self.transaction_id, self.id);
        let bytes = self.bytes_with(&form);
        let body = u32::try_from(bytes - PREFIX_BYTES).expect("`check` bounds every part");
        let start = out.len();
        out.reserve(bytes);
        out.extend_from_slice(&body.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let trace = self.trace.map_or(0, |_| HAS_TRACE);
        let producer = self.producer.map_or(0, |_| HAS_PRODUCER);
        out.push(form.code() | trace | producer);
        out.extend_from_slice(&self.hash.0.to_le_bytes());
        out.extend_from_slice(&self.id.0.to_le_bytes());
        match form {
            IdForm::MessageId => {}
            IdForm::Uuid(uuid) => out.extend_from_slice(&uuid.to_le_bytes()),
            IdForm::Text(text) => put_short_text(out, text),
        }
        if let Some(trace) = self.trace {
            out.extend_from_slice(&trace.to_le_bytes());
        }
        if let Some(producer) = self.producer {
            put_short_text(out, producer);
        }
        out.extend_from_slice(self.payload);
        if let Some(entry) = out.get_mut(start..) {
            seal_crc_at(entry, CRC_AT);
        }
    }
}

/// Appends text behind a 16-bit length.
fn put_short_text(out: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("`check` bounds every part");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl<'a> Entry<'a> {
    /// Reads the entry that `bytes` begins with, checksum included, and says how many bytes it takes.
    ///
    /// # Errors
    /// When bytes are missing, the crc32 does not match, or a field holds what no writer writes.
    pub fn decode(bytes: &'a [u8]) -> Result<(Entry<'a>, usize), DecodeError> {
        let bytes = bytes.get(..skip(bytes)?).unwrap_or_default();
        check_crc_at(WHAT, bytes, CRC_AT)?;
        let mut reader = Reader::new(WHAT, bytes);
        reader.bytes(PREFIX_BYTES)?;
        let flags = reader.u8()?;
        if flags & RESERVED != 0 {
            return Err(reader.field("flags", u64::from(flags)));
        }
        let hash = IdHash(reader.u128()?);
        let id = MessageId(reader.u128()?);
        let transaction_id = match flags & ID_FORM {
            ID_IS_MESSAGE_ID => Cow::Owned(id.text()),
            ID_IS_UUID => {
                let uuid = reader.u128()?;
                if uuid == id.0 {
                    return Err(reader.field("transaction id form", u64::from(ID_IS_UUID)));
                }
                Cow::Owned(MessageId(uuid).text())
            }
            ID_IS_TEXT => {
                let len = reader.u16()?;
                let text = reader.text("transaction id", usize::from(len))?;
                if parse_canonical(text).is_some() {
                    return Err(reader.field("transaction id form", u64::from(ID_IS_TEXT)));
                }
                Cow::Borrowed(text)
            }
            other => return Err(reader.field("transaction id form", u64::from(other))),
        };
        let trace = if flags & HAS_TRACE == 0 { None } else { Some(reader.u128()?) };
        let producer = if flags & HAS_PRODUCER == 0 {
            None
        } else {
            let len = reader.u16()?;
            Some(reader.text("producer", usize::from(len))?)
        };
        let payload = reader.rest();
        Ok((Entry { id, hash, transaction_id, trace, producer, payload }, bytes.len()))
    }
}

/// Bytes of the entry that `bytes` begins with, by its length alone; nothing else of it is checked.
///
/// # Errors
/// When bytes are missing or the length is below the least.
pub fn skip(bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut reader = Reader::new(WHAT, bytes);
    let length = reader.u32()?;
    let body = usize::try_from(length).unwrap_or(usize::MAX);
    if body < BODY_MIN_BYTES {
        return Err(reader.field("length", u64::from(length)));
    }
    let _crc = reader.u32()?;
    reader.bytes(body)?;
    Ok(PREFIX_BYTES + body)
}

/// Hash, message id and bytes of the entry that `bytes` begins with, without its checksum: for rebuilding an index
/// from a frame whose body hash has been checked.
///
/// # Errors
/// As `skip`.
pub fn peek(bytes: &[u8]) -> Result<(IdHash, MessageId, usize), DecodeError> {
    let total = skip(bytes)?;
    let mut reader = Reader::new(WHAT, bytes);
    reader.bytes(PREFIX_BYTES)?;
    let _flags = reader.u8()?;
    Ok((IdHash(reader.u128()?), MessageId(reader.u128()?), total))
}

/// The entries of a run, in order, each with its checksum verified. Ends after the first error.
///
/// How many there should be is in the run's header; the caller compares. To step over a damaged entry, use `skip`.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Walks the entries of a run.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Entries<'a> {
        Entries { rest: bytes }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let decoded = Entry::decode(self.rest);
        self.rest = match &decoded {
            Ok((_, bytes)) => self.rest.get(*bytes..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some(decoded.map(|(entry, _)| entry))
    }
}

impl std::iter::FusedIterator for Entries<'_> {}
