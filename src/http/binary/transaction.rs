//! `QTB1`: `"QTB1" | u8 flags | u32 head_len | head | groups of frames`.

use bytes::Bytes;

use super::super::error::ApiError;
use super::reader::Reader;
use super::room::Room;
use super::section::{Form, Section};
use super::{FLAG_SHORT, known_flags};

/// A transaction whose lengths were checked.
pub(crate) struct Transaction<'l> {
    /// Answer with counts.
    pub(crate) short: bool,
    /// The JSON body without its pushes; empty for none.
    pub(crate) head: Bytes,
    /// Its pushed messages.
    pub(crate) section: Section<'l>,
}

impl<'l> Transaction<'l> {
    /// Reads a body that begins with the magic.
    ///
    /// # Errors
    /// 400, 413 or 429; nothing was stored.
    pub(crate) fn read(bytes: &Bytes, room: Room<'l>) -> Result<Transaction<'l>, ApiError> {
        let bad = |text: &str| ApiError::bad_body(format!("bad transaction body: {text}"));
        let mut reader = Reader::new(bytes);
        let flags = reader.take(4).and_then(|_| reader.u8()).ok_or_else(|| bad("flags are cut off"))?;
        let flags = known_flags(flags, FLAG_SHORT, "transaction")?;
        let head = reader.bytes().ok_or_else(|| bad("head is cut off"))?;
        let head = bytes.slice_ref(head);
        let section = Section::read("transaction", bytes.slice_ref(reader.rest()), Form::Framed, room)?;
        Ok(Transaction { short: flags & FLAG_SHORT != 0, head, section })
    }
}
