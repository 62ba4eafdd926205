//! Entries: one message inside a run.
//!
//! Packed: fixed part, then transaction id, trace id, producer, payload. A transaction id that is the canonical
//! text of a UUID is stored as 16 bytes; one that equals the message id's text is not stored at all.

use std::borrow::Cow;

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
// Entry::encode(&self, out: &mut Vec<u8>)  (u32 length first, crc32 over everything after the crc)
// Entry::decode(bytes: &'a [u8]) -> Result<(Entry<'a>, usize /*bytes consumed*/), DecodeError>   verifies the crc
// pub fn peek(bytes) -> Result<(IdHash, MessageId, usize), DecodeError>    length, hash and id only, no crc: for index rebuild (the frame's body hash has been checked)
// pub struct Entries<'a>: iterator over a run's entries
